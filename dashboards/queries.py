"""Board queries from the knowledge: signals, rules and families, bound to one set of board variables.

A query is built as an expression, gets the variables' matchers on every selector, and is printed with Grafana's
`$__rate_interval` as its window. So a board never holds a second definition of a signal, and a query that
reads a series which nobody exports, or a label that it does not have, cannot be built. Of the same asks two flavours
are built: over agents' families, and over the names on engines' own pages (`kvitals.dashboards.raw`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvitals.dashboards.raw import RawTranslator
from kvitals.rules.compiled_signal import WindowDurations, compile_signal
from kvitals.rules.condition import Comparison, comparisons
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, family_of, parameters
from kvitals.rules.model import Rule, Scope, Severity, Signal
from kvitals.series.promql import (
    Aggregate,
    Binary,
    Call,
    Expr,
    NumberLiteral,
    Range,
    Selector,
    String,
    expand,
    inline,
    names,
    parse,
)
from kvitals.series.promql.nodes import duration
from kvitals.series.promql.rewrite import map_children
from kvitals.series.types import Matcher, MatchOp

WINDOW = "$__rate_interval"
FAST = "1m"  # the least interval of every panel, which makes Grafana's window at least as long as the signals'
SELECTED = (Matcher("cluster", MatchOp.RE, "$cluster"), Matcher("engine", MatchOp.RE, "$engine|"))
"""What the board's variables select; what is of a node and no engine is always among it. `model` and `role` narrow the
choice of engines, see `kvitals.dashboards.grafana`."""
OF_TENANT = Matcher("tenant", MatchOp.RE, "$tenant")
OF_PAGE = (Matcher("cluster", MatchOp.RE, "$cluster"), Matcher("engine", MatchOp.RE, "$engine"))
"""The same where engines are scraped themselves; their pages know no tenants."""

ENTITY_LABELS = ("cluster", "pool", "node", "engine", "model")
_STAND_IN = duration(3723.0)  # for the window while the query is a tree; no signal has such a range
WINDOWS = WindowDurations(fast=_STAND_IN)


class UnknownSeriesError(Exception):
    """A query reads a series that is neither a signal nor of a family, or a label that its families do not have."""


class NotToldError(Exception):
    """A query reads what no engine's page tells."""


@dataclass(frozen=True)
class SignalQuery:
    """Asks for a signal. Below its minimum of samples it is NaN, so that too little traffic differs from no data."""

    signal: str


@dataclass(frozen=True)
class ExpressionQuery:
    """Asks for what no signal covers, in the notation of signals (`$window`, `$scope`)."""

    text: str
    unit: str
    scope: Scope = "engine"


@dataclass(frozen=True)
class Holds:
    """Asks on how many entities a rule's condition holds; 0 where it holds on none. Unknown counts as 0 here."""

    code: str


Ask = SignalQuery | ExpressionQuery | Holds


@dataclass(frozen=True)
class ConditionQuery:
    """The comparison of a rule with a signal: with the value of `param`, or with the number in its condition."""

    code: str
    signal: str
    param: str = ""


@dataclass(frozen=True)
class BoardQuery:
    """A query as a board has it, and what is known of what it reads."""

    expr: str
    families: tuple[str, ...]
    reads: tuple[str, ...]  # names of series as the server has them
    signals: tuple[str, ...] = ()
    unit: str = ""
    scope: Scope = "engine"
    rule: str = ""  # the rule whose condition it asks for


@dataclass(frozen=True)
class JudgedBy:
    """The comparison of a rule that gives a panel its colours."""

    code: str
    title: str
    severity: Severity
    op: str
    limit: float
    why: str


class Queries:
    """Builds queries from one state of the knowledge; with `raw`, over the names on engines' own pages."""

    def __init__(self, knowledge: Knowledge, raw: RawTranslator | None = None) -> None:
        self.knowledge = knowledge
        self.raw = raw

    def ask(self, ask: Ask) -> BoardQuery:
        """The query that answers. Raises UnknownSeriesError, and NotToldError where no engine's page tells it."""
        if isinstance(ask, SignalQuery):
            return self.signal(ask.signal)
        if isinstance(ask, Holds):
            return self.firing(ask.code)
        return self.family(ask.text, ask.unit, ask.scope)

    def signal(self, name: str) -> BoardQuery:
        """See `SignalQuery`."""
        signal = self._signal(name)
        compiled = compile_signal(signal, WINDOWS)
        expr = compiled.expr
        if (few := compiled.too_few) is not None:
            blank = Binary("*", few, NumberLiteral(float("nan")))
            self._check_told(expr)
            expr = Binary("or", Binary("unless", expr, few), blank)
        return replace(self._query(expr, signal.unit, signal.scope), signals=(name,))

    def family(self, text: str, unit: str, scope: Scope = "engine") -> BoardQuery:
        """See `ExpressionQuery`."""
        expr = parse(expand(text, WINDOWS.values("fast", scope)))
        self._check_labels(expr)
        return self._query(expr, unit, scope, tenants=True)

    def firing(self, code: str) -> BoardQuery:
        """See `Holds`."""
        rule = self.rule(code)
        when = parse(expand(rule.when, {**WINDOWS.values("fast", rule.scope), **parameters(rule)}))
        self._check_told(when)
        known = Aggregate("count", Selector("kvitals_target_up"))
        counted = Binary("or", Aggregate("count", when), Binary("*", NumberLiteral(0), known))
        return replace(self._query(counted, "count", "fleet"), rule=code)

    def judged(self, by: ConditionQuery) -> JudgedBy:
        """The limit at which a rule judges a signal. Raises UnknownSeriesError where it makes no such comparison."""
        code, signal, param = by.code, by.signal, by.param
        rule = self.rule(code)
        condition = self.knowledge.condition(rule)
        wanted = rule.params[param].default if param else None
        for c in comparisons(condition):
            limit = c.right.value if isinstance(c.right, NumberLiteral) else None
            if _compares(c, signal) and limit is not None and wanted in (None, limit):
                why = rule.params[param].why if param else ""
                return JudgedBy(code, rule.title, rule.severity, c.op, limit, why)
        raise UnknownSeriesError(f"{code} does not compare {signal} with {param or 'a number'}")

    def rule(self, code: str) -> Rule:
        """A rule by its code. Raises UnknownSeriesError."""
        try:
            return self.knowledge.rules[code]
        except KeyError:
            raise UnknownSeriesError(f"no rule {code} in rules/codes/") from None

    def _check_told(self, expr: Expr) -> None:
        """That what a query is about is told, and not only what stands in for it. Raises NotToldError."""
        self._query(expr, "", "engine")

    def _query(self, expr: Expr, unit: str, scope: Scope, *, tenants: bool = False) -> BoardQuery:
        read = sorted(names(expr))
        whole = inline(expr, self._definitions(read))
        families = self._families(whole)
        bound = _bind(whole, self._matchers(tenants))
        if self.raw is not None:
            told = self.raw.translate(bound)
            if told is None:
                raise NotToldError(", ".join(f"`{f}`" for f in families))
            bound = told
        text = str(bound).replace(f"[{_STAND_IN}", f"[{WINDOW}")
        signals = tuple(n.removeprefix(SIGNAL_PREFIX) for n in read if n.startswith(SIGNAL_PREFIX))
        reads = tuple(sorted(names(bound))) if self.raw is not None else families
        return BoardQuery(text, families, reads, signals, unit, scope)

    def _matchers(self, tenants: bool) -> Callable[[str], tuple[Matcher, ...]]:
        """What narrows a selector of a name. Signals that compare tenants go on comparing all of them."""
        if self.raw is not None:
            return lambda name: OF_PAGE

        def chosen(name: str) -> tuple[Matcher, ...]:
            labels = self.knowledge.families[self._family(name)].labels
            return (*SELECTED, OF_TENANT) if tenants and "tenant" in labels else SELECTED

        return chosen

    def _check_labels(self, expr: Expr) -> None:
        """That a query groups and selects by labels that what it reads has. Raises UnknownSeriesError."""
        families = [self.knowledge.families[self._family(n)] for n in names(expr) if not n.startswith(SIGNAL_PREFIX)]
        made = {str(a.value) for c in expr.walk() if isinstance(c, Call) for a in c.args if isinstance(a, String)}
        known = {label for f in families for label in f.labels} | {*ENTITY_LABELS, "le"} | made
        for node in expr.walk():
            if isinstance(node, Selector):
                own = self.knowledge.families.get(family_of(node.name, self.knowledge.families) or "")
                wrong = {m.name for m in node.matchers} - {*(own.labels if own else known), *ENTITY_LABELS, "le"}
            elif isinstance(node, Aggregate):
                wrong = set(node.grouping) - known
            else:
                continue
            if wrong:
                raise UnknownSeriesError(f"no label {', '.join(sorted(wrong))} on what this reads: {node}")

    def _families(self, expr: Expr) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._family(name) for name in sorted(names(expr))))

    def _family(self, name: str) -> str:
        family = family_of(name, self.knowledge.families)
        if family is None:
            raise UnknownSeriesError(f"`{name}` is neither a signal nor of a family")
        return family

    def _definitions(self, read: Iterable[str]) -> dict[str, Expr]:
        """The signals that are read, directly or by one another, each absent below its minimum of samples."""
        found: dict[str, Expr] = {}
        todo = [n for n in read if n.startswith(SIGNAL_PREFIX)]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            expr = compile_signal(self._signal(name.removeprefix(SIGNAL_PREFIX)), WINDOWS).gated
            found[name] = expr
            todo += [n for n in names(expr) if n.startswith(SIGNAL_PREFIX)]
        return found

    def _signal(self, name: str) -> Signal:
        try:
            return self.knowledge.signals[name]
        except KeyError:
            raise UnknownSeriesError(f"no signal `{name}` in rules/signals/") from None


def readable(expr: str, window: str = FAST) -> Expr:
    """A board's query as Prometheus gets it when everything is selected. Raises PromQLError."""
    for variable in ("$cluster", "$engine", "$tenant"):
        expr = expr.replace(variable, ".*")
    return parse(expr.replace(WINDOW, window))


def _compares(comparison: Comparison, signal: str) -> bool:
    return isinstance(comparison.left, Selector) and comparison.left.name == SIGNAL_PREFIX + signal


def _bind(expr: Expr, matchers: Callable[[str], tuple[Matcher, ...]]) -> Expr:
    """The expression with the board's variables on every selector."""
    if isinstance(expr, Selector):
        return replace(expr, matchers=(*expr.matchers, *matchers(expr.name)))
    if isinstance(expr, Range):
        selector = _bind(expr.selector, matchers)
        assert isinstance(selector, Selector)
        return replace(expr, selector=selector)
    return map_children(expr, lambda child: _bind(child, matchers))
