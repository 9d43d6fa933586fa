"""Board queries from the knowledge: signals, rules and families, bound to one set of board variables.

A query is built as an expression, gets the variables' matchers on every selector, and is printed with Grafana's
`$__rate_interval` as its window. So a board never holds a second definition of a signal, and a query that
reads a series which nobody exports cannot be built.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rules.condition import Comparison, comparisons
from rules.loader import SIGNAL_PREFIX, Knowledge, family_of, parameters
from rules.model import SCOPES, Rule, Severity, Signal
from series.promql import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Number,
    Range,
    Selector,
    Subquery,
    Unary,
    expand,
    inline,
    names,
    parse,
)
from series.promql.nodes import duration
from series.types import Matcher, MatchOp

WINDOW = "$__rate_interval"
FAST = "1m"  # the least interval of every panel, which makes Grafana's window at least as long as the signals'
SLOW = "15m"
BASELINE = "1h"
SELECTED = (Matcher("cluster", MatchOp.RE, "$cluster"), Matcher("engine", MatchOp.RE, "$engine"))
"""What the board's variables select. `model` narrows the choice of engines, see `dashboards.grafana`."""

_STAND_IN = duration(3723.0)  # for the window while the query is a tree; no signal has such a range


class UnknownSeriesError(Exception):
    """A query reads a series that is neither a signal nor of a family."""


@dataclass(frozen=True)
class Query:
    """A query as a board has it, and what is known of what it reads."""

    expr: str
    families: tuple[str, ...]
    signals: tuple[str, ...] = ()
    unit: str = ""
    rule: str = ""  # the rule whose condition it asks for


@dataclass(frozen=True)
class Judged:
    """The comparison of a rule that gives a panel its colours."""

    code: str
    title: str
    severity: Severity
    op: str
    limit: float
    why: str


class Queries:
    """Builds queries from one state of the knowledge."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge

    def signal(self, name: str) -> Query:
        """A signal. Below its minimum of samples it is NaN, so that too little traffic differs from no data."""
        signal = self._signal(name)
        expr = self._parse(signal.expr, signal)
        if signal.samples is not None:
            few = Binary("<", self._parse(signal.samples.expr, signal), Number(signal.samples.min))
            blank = Binary("*", few, Number(float("nan")))
            expr = Binary("or", Binary("unless", expr, few), blank)
        return replace(self._query(expr, unit=signal.unit), signals=(name,))

    def family(self, text: str, unit: str, scope: str = "engine") -> Query:
        """A query over families that no signal covers, in the notation of signals (`$window`, `$scope`)."""
        return self._query(parse(expand(text, _values(SCOPES[scope]))), unit=unit)

    def firing(self, code: str) -> Query:
        """On how many entities a rule's condition holds; 0 where it holds on none. Unknown counts as 0 here."""
        rule = self._rule(code)
        when = parse(expand(rule.when, {**_values(SCOPES[rule.scope]), **parameters(rule)}))
        known = Aggregate("count", Selector("kvitals_target_up"))
        counted = Binary("or", Aggregate("count", when), Binary("*", Number(0), known))
        return replace(self._query(counted, unit="count"), rule=code)

    def judged(self, code: str, signal: str, param: str = "") -> Judged:
        """The limit at which a rule judges a signal: the value of `param`, or the number in its condition."""
        rule = self._rule(code)
        condition = self.knowledge.condition(rule)
        wanted = rule.params[param].default if param else None
        for c in comparisons(condition):
            limit = c.right.value if isinstance(c.right, Number) else None
            if _compares(c, signal) and limit is not None and wanted in (None, limit):
                why = rule.params[param].why if param else ""
                return Judged(code, rule.title, rule.severity, c.op, limit, why)
        raise UnknownSeriesError(f"{code} does not compare {signal} with {param or 'a number'}")

    def rule(self, code: str) -> Rule:
        """A rule by its code."""
        return self._rule(code)

    def _query(self, expr: Expr, unit: str) -> Query:
        read = sorted(names(expr))
        whole = inline(expr, self._definitions(read))
        families = self._families(whole)
        text = str(_bind(whole)).replace(f"[{_STAND_IN}", f"[{WINDOW}")
        signals = tuple(n.removeprefix(SIGNAL_PREFIX) for n in read if n.startswith(SIGNAL_PREFIX))
        return Query(text, families, signals, unit)

    def _families(self, expr: Expr) -> tuple[str, ...]:
        found = []
        for name in sorted(names(expr)):
            family = family_of(name, self.knowledge.families)
            if family is None:
                raise UnknownSeriesError(f"`{name}` is neither a signal nor of a family: {expr}")
            found.append(family)
        return tuple(dict.fromkeys(found))

    def _definitions(self, read: Iterable[str]) -> dict[str, Expr]:
        """The signals that are read, directly or by one another, each absent below its minimum of samples."""
        found: dict[str, Expr] = {}
        todo = [n for n in read if n.startswith(SIGNAL_PREFIX)]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            signal = self._signal(name.removeprefix(SIGNAL_PREFIX))
            expr = self._parse(signal.expr, signal)
            if signal.samples is not None:
                enough = Binary(">=", self._parse(signal.samples.expr, signal), Number(signal.samples.min))
                expr = Binary("and", expr, enough)
            found[name] = expr
            todo += [n for n in names(expr) if n.startswith(SIGNAL_PREFIX)]
        return found

    def _parse(self, text: str, signal: Signal) -> Expr:
        return parse(expand(text, _values(SCOPES[signal.scope], signal.window)))

    def _signal(self, name: str) -> Signal:
        try:
            return self.knowledge.signals[name]
        except KeyError:
            raise UnknownSeriesError(f"no signal `{name}` in rules/signals/") from None

    def _rule(self, code: str) -> Rule:
        try:
            return self.knowledge.rules[code]
        except KeyError:
            raise UnknownSeriesError(f"no rule {code} in rules/codes/") from None


def readable(expr: str, window: str = FAST) -> Expr:
    """A board's query as Prometheus gets it when everything is selected. Raises PromQLError."""
    for matcher in SELECTED:
        expr = expr.replace(matcher.value, ".*")
    return parse(expr.replace(WINDOW, window))


def _values(scope: tuple[str, ...], window: str = "fast") -> dict[str, str]:
    return {
        "window": _STAND_IN if window == "fast" else SLOW,
        "baseline": BASELINE,
        "scope": ", ".join(scope),
    }


def _compares(comparison: Comparison, signal: str) -> bool:
    return isinstance(comparison.left, Selector) and comparison.left.name == SIGNAL_PREFIX + signal


def _bound(selector: Selector) -> Selector:
    return replace(selector, matchers=(*selector.matchers, *SELECTED))


def _bind(expr: Expr) -> Expr:
    """The expression with the board's variables on every selector."""
    if isinstance(expr, Selector):
        return _bound(expr)
    if isinstance(expr, Range):
        return replace(expr, selector=_bound(expr.selector))
    if isinstance(expr, Call):
        return replace(expr, args=tuple(_bind(a) for a in expr.args))
    if isinstance(expr, Aggregate):
        return replace(expr, expr=_bind(expr.expr), param=_bind(expr.param) if expr.param else None)
    if isinstance(expr, Unary | Subquery):
        return replace(expr, expr=_bind(expr.expr))
    if isinstance(expr, Binary):
        return replace(expr, left=_bind(expr.left), right=_bind(expr.right))
    return expr
