"""Board queries from the knowledge: signals, rules and families, bound to one set of board variables.

A query is built as an expression, gets the variables' matchers on every selector, and is printed with Grafana's
`$__interval` as its window. So a board never holds a second definition of a signal, and a query that
reads a series which nobody exports, or a label that it does not have, cannot be built. Signals are read as they are
recorded: their windows and buckets are evaluated once, by rules or by an agent, and not by each board that is open.
Agents export the families; without agents, rules record them of the engines' pages
(`kvitals.dashboards.recording_raw`), so the same boards serve both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvitals.dashboards.alerts_options import duration as written
from kvitals.dashboards.parsed import parse_once
from kvitals.dashboards.recording_raw import PageCoverage
from kvitals.diagnoser.sources.survey import FAST_SECONDS
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
)
from kvitals.series.promql.nodes import duration
from kvitals.series.promql.rewrite import map_children
from kvitals.series.types import Matcher, MatchOp

WINDOW = "$__interval"
"""The step of a query, so that each sample is read once. With the rules' window as the least step it is that window
while the range is short, and then grows with the step."""
FAST = "1m"
RECORDED_STEP = "1m"
"""Between the samples of a recorded signal that a point of a longer range stands for."""
SELECTED = (Matcher("cluster", MatchOp.RE, "$cluster"), Matcher("engine", MatchOp.RE, "$engine|"))
"""What the board's variables select; what is of a node and no engine is always among it. `model` and `role` narrow the
choice of engines, see `kvitals.dashboards.grafana`."""
OF_TENANT = Matcher("tenant", MatchOp.RE, "$tenant")
MAX_QUERY = 2000
"""Characters of a query that a person can still read and edit."""

ENTITY_LABELS = ("cluster", "pool", "node", "engine", "model")
_STAND_IN = duration(3723.0)  # for the window while the query is a tree; no signal has such a range
WINDOWS = WindowDurations(fast=_STAND_IN)


class UnknownSeriesError(Exception):
    """A query reads a series that is neither a signal nor of a family, or a label that its families do not have."""


@dataclass(frozen=True)
class SignalQuery:
    """Asks for a recorded signal. Of this moment it is NaN below its minimum of samples, so that too little traffic
    differs from no data; over time both are gaps."""

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
class RuleLimit:
    """The limit of a figure over several engines, from what a rule judges of each of them."""

    code: str
    op: str
    limit: float
    why: str


Judge = ConditionQuery | RuleLimit


@dataclass(frozen=True)
class BoardQuery:
    """A query as a board has it, and what is known of what it reads."""

    expr: str
    families: tuple[str, ...]
    signals: tuple[str, ...] = ()
    unit: str = ""
    scope: Scope = "engine"
    rule: str = ""  # the rule whose condition it asks for
    needs_agent: bool = False  # whether it has no value where only engines' own pages are scraped


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
    """Builds queries from one state of the knowledge."""

    def __init__(self, knowledge: Knowledge, window: float = FAST_SECONDS) -> None:
        """window: that of the rules, in seconds."""
        self.knowledge = knowledge
        self._pages = PageCoverage(knowledge)
        self.window = written(window)

    def ask(self, ask: Ask, *, now: bool = False) -> BoardQuery:
        """The query that answers: over time, or of this moment if `now`. Raises UnknownSeriesError."""
        if isinstance(ask, SignalQuery):
            return self.signal(ask.signal, now=now)
        if isinstance(ask, Holds):
            return self.firing(ask.code)
        return self.family(ask.text, ask.unit, ask.scope)

    def signal(self, name: str, *, now: bool = False) -> BoardQuery:
        """See `SignalQuery`. Over time, each point is the worst minute of its step where a signal has a worse end."""
        signal = self._signal(name)
        compiled = compile_signal(signal, WINDOWS)
        expr: Expr = Selector(SIGNAL_PREFIX + name)
        if now and (few := compiled.too_few) is not None:
            expr = Binary("or", expr, Binary("*", few, NumberLiteral(float("nan"))))
        query = self._query(expr, signal.unit, signal.scope)
        worst = {"lower": "max", "higher": "min"}.get(signal.better)
        if not now and worst:
            query = replace(query, expr=f"{worst}_over_time({query.expr}[{WINDOW}:{RECORDED_STEP}])")
        return query

    def family(self, text: str, unit: str, scope: Scope = "engine") -> BoardQuery:
        """See `ExpressionQuery`."""
        expr = parse_once(expand(text, WINDOWS.values("fast", scope)))
        self._check_labels(expr)
        return self._query(expr, unit, scope, tenants=True)

    def firing(self, code: str) -> BoardQuery:
        """See `Holds`."""
        rule = self.rule(code)
        when = parse_once(expand(rule.when, {**WINDOWS.values("fast", rule.scope), **parameters(rule)}))
        known = Aggregate("count", Selector("kvitals_target_up"))
        counted = Binary("or", Aggregate("count", when), Binary("*", NumberLiteral(0), known))
        needs_agent = bool(self._pages.why_not(inline(when, self._definitions(names(when)))))
        return replace(self._query(counted, "count", "fleet"), rule=code, needs_agent=needs_agent)

    def judged(self, by: Judge) -> JudgedBy:
        """The limit at which a rule judges a signal. Raises UnknownSeriesError where it makes no such comparison."""
        if isinstance(by, RuleLimit):
            rule = self.rule(by.code)
            return JudgedBy(by.code, rule.title, rule.severity, by.op, by.limit, by.why)
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

    def _query(self, expr: Expr, unit: str, scope: Scope, *, tenants: bool = False) -> BoardQuery:
        read = sorted(names(expr))
        whole = inline(expr, self._definitions(read))
        signals = tuple(n.removeprefix(SIGNAL_PREFIX) for n in read if n.startswith(SIGNAL_PREFIX))
        needs_agent = bool(self._pages.why_not(whole))
        return BoardQuery(self._text(expr, tenants), self._families(whole), signals, unit, scope, "", needs_agent)

    def _text(self, expr: Expr, tenants: bool) -> str:
        text = str(_bind(expr, self._matchers(tenants)))
        return text.replace(f"[{_STAND_IN}", f"[{WINDOW}")

    def _matchers(self, tenants: bool) -> Callable[[str], tuple[Matcher, ...]]:
        """What narrows a selector of a name. Signals that compare tenants go on comparing all of them."""

        def chosen(name: str) -> tuple[Matcher, ...]:
            family = self.knowledge.families.get(family_of(name, self.knowledge.families) or "")
            return (*SELECTED, OF_TENANT) if tenants and family is not None and "tenant" in family.labels else SELECTED

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
                raise UnknownSeriesError(f"no label {', '.join(sorted(wrong))} on the series that this reads: {node}")

    def _families(self, expr: Expr) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._family(name) for name in sorted(names(expr))))

    def _family(self, name: str) -> str:
        family = family_of(name, self.knowledge.families)
        if family is None:
            raise UnknownSeriesError(f"`{name}` is neither a signal nor belongs to a family")
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
    return parse_once(expr.replace(WINDOW, window))


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
