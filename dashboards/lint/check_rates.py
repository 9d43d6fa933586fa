"""Counters and gauges taken for one another, and sums since the start taken for now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from kvitals.dashboards.lint.defect import LintedQuery
from kvitals.dashboards.lint.metrics import Metrics
from kvitals.dashboards.lint.trees import (
    COMPARISONS,
    Path,
    TreeDefect,
    base_of,
    raw_counters,
    rewrite_tree,
    selectors,
    swap_node,
    with_path,
)
from kvitals.series.promql import Aggregate, Binary, Call, Expr, NumberLiteral, Range, Selector, Subquery

_OF_COUNTERS = {"rate": "deriv", "irate": "deriv", "increase": "delta"}
_OF_GAUGES = {"deriv": "rate", "delta": "increase", "idelta": "increase"}
_TIME = re.compile(r"time|latenc|duration|ttft|tpot|itl|delay|\bwait", re.IGNORECASE)
RECENT_SECONDS = 600.0
"""For so long an event counts as news, at least."""
_TIME_UNITS = ("s", "ms", "dtdurations", "dtdurationms", "clocks", "clockms")


def check_functions(expr: Expr, metrics: Metrics) -> Iterator[TreeDefect]:
    """`rate` of a gauge, `delta` of a counter."""
    for node, path in with_path(expr):
        if not isinstance(node, Call) or not node.args or not isinstance(node.args[0], Range) or _is_for_nothing(path):
            continue
        name = node.args[0].selector.name
        known = metrics.known(name)
        if known is None:
            continue
        is_counter = known.type == "counter" or bool(known.part)
        if node.func in _OF_COUNTERS and not is_counter:
            other = replace(node, func=_OF_COUNTERS[node.func])
            yield TreeDefect(
                "rate-of-gauge",
                f"{name} is a gauge: {node.func} treats each fall as a restart and adds increases that never happened",
                swap_node(expr, node, other),
            )
        elif node.func in _OF_GAUGES and is_counter and not _is_clamped(path):
            other = replace(node, func=_OF_GAUGES[node.func])
            why = f"{name} is a counter: {node.func} is far below zero after each restart of the engine"
            yield TreeDefect("delta-of-counter", why, swap_node(expr, node, other))


def check_rate_of_sum(expr: Expr) -> Iterator[TreeDefect]:
    """`rate` of a sum: a counter of one series that starts anew is a fall of the whole."""
    for node in expr.walk():
        if not isinstance(node, Call) or node.func not in _OF_COUNTERS or not isinstance(node.args[0], Subquery):
            continue
        whole = node.args[0].expr
        if isinstance(whole, Aggregate) and whole.op == "sum":
            inside = whole.expr
            rate = Call(node.func, (Range(inside, node.args[0].range),)) if isinstance(inside, Selector) else None
            yield TreeDefect(
                "rate-of-sum",
                f"{node.func} of a sum: when one engine restarts, the sum falls, and {node.func} adds all that the "
                f"other engines ever counted",
                swap_node(expr, node, replace(whole, expr=rate)) if rate is not None else None,
                advice="" if rate is not None else f"take the {node.func} of each series first, then the sum",
            )


def check_windows(expr: Expr) -> Iterator[TreeDefect]:
    """A ratio of two counters over windows of different lengths. Of the same counter it is a comparison over time."""
    for node in expr.walk():
        if not isinstance(node, Binary) or node.op != "/":
            continue
        (names, ranges), (others, longer) = (_looked_at(side) for side in (node.left, node.right))
        if len(ranges) == len(longer) == 1 and ranges != longer and names.isdisjoint(others):
            yield TreeDefect(
                "windows-differ",
                "the two sides of the ratio have windows of different lengths, so a change of load is shown as a "
                "change of the ratio",
                swap_node(expr, node, replace(node, right=_with_window(node.right, *ranges))),
                warning=True,
            )


def _with_window(expr: Expr, seconds: float) -> Expr:
    return rewrite_tree(expr, lambda e: replace(e, range=seconds) if isinstance(e, Range) else None)


def _looked_at(expr: Expr) -> tuple[set[str], set[float]]:
    """The metrics of an expression, and the windows over which it looks at them."""
    return {one.name for one in selectors(expr)}, {one.range for one in expr.walk() if isinstance(one, Range)}


def check_since_start(expr: Expr, metrics: Metrics, window: float) -> Iterator[TreeDefect]:
    """Averages, ratios, quantiles and conditions on counters as they stand."""
    for node in expr.walk():
        if isinstance(node, Binary) and node.op == "/":
            found = [raw_counters(side, metrics) for side in (node.left, node.right)]
            if all(found) and not any(_has_rate(side) for side in (node.left, node.right)):
                several = {selector for side in found for selector, _ in side}
                if len({base_of(one.name)[0] for one in several}) > 1 and not all(
                    metrics.meant(one.name) for one in several
                ):
                    continue
                yield TreeDefect(
                    "lifetime-average",
                    "both sides count from the engine's start, so this is the mean since the start: after a "
                    "day, ten bad minutes hardly change it",
                    swap_node(expr, node, _over(node, several, "rate", window)),
                )
        elif isinstance(node, Call) and node.func == "histogram_quantile" and not _has_rate(node):
            raw = {one for one in selectors(node) if one.name.endswith("_bucket")}
            if raw:
                yield TreeDefect(
                    "lifetime-quantile",
                    "buckets count from the engine's start, so this is the quantile since its start",
                    swap_node(expr, node, _over(node, raw, "rate", window)),
                )


def check_conditions(expr: Expr, metrics: Metrics, window: float) -> Iterator[TreeDefect]:
    """A counter, or a gauge that holds the last event, compared with a number.

    A comparison that every sound counter fulfils from its start, such as `>= 0` or `<= 1e30`, only leaves out values.
    """
    for node in expr.walk():
        if not isinstance(node, Binary) or node.op not in COMPARISONS or not isinstance(node.right, NumberLiteral):
            continue
        if node.returns_bool:  # "was there ever" is a question too
            continue
        held = [one for one in selectors(node.left) if _holds_the_last(one, metrics)]
        if held and not _has_rate(node.left) and not _asks_for_changes(expr, held[0].name):
            moved = Binary(">", _over(node.left, set(held), "changes", max(window, RECENT_SECONDS)), NumberLiteral(0.0))
            yield TreeDefect(
                "last-event-gauge",
                f"{held[0].name} keeps the code of the last event until the exporter restarts, so it stays set "
                f"long after the event; codes caused by a program also count",
                swap_node(expr, node, Binary("and", moved, node)),
            )
            continue
        if node.op in ("<", "<=") or (node.op == ">=" and node.right.value <= 0):
            continue
        counters = raw_counters(node.left, metrics)
        told = {selector for selector, known in counters if metrics.known(selector.name) is not None}
        if told and len(told) == len(counters) and not _has_rate(node.left) and not _is_share(node.left):
            yield TreeDefect(
                "counter-since-start",
                f"{min(one.name for one in told)} only grows:"
                " once the condition is true, it stays true until the engine restarts",
                swap_node(expr, node, _over(node, told, "increase", window)),
            )


def check_sums(expr: Expr, query: LintedQuery, metrics: Metrics) -> Iterator[TreeDefect]:
    """The rate of a histogram's sum shown as if it were a time."""
    shown_as_time = _TIME.search(query.title) or query.unit in _TIME_UNITS
    for node, path in with_path(expr):
        if not isinstance(node, Call) or node.func not in ("rate", "irate") or not isinstance(node.args[0], Range):
            continue
        base, part = base_of(node.args[0].selector.name)
        known = metrics.known(node.args[0].selector.name)
        is_time = base.endswith("_seconds") or (known is not None and known.unit == "seconds")
        if part == "_sum" and is_time and shown_as_time and not _is_divided(path):
            per = _per_request(expr, base)
            yield TreeDefect(
                "sum-rate-as-time",
                f"the rate of {base}_sum is the time that all requests together spend per second: it shows how "
                f"many requests are in that phase at once, not the time of one request",
                Binary("/", expr, per),
            )
            return


def _is_for_nothing(path: Path) -> bool:
    """Whether it is multiplied by 0: such a term says that something is there, and no more."""
    return any(
        isinstance(one, Binary) and one.op == "*" and NumberLiteral(0.0) in (one.left, one.right) for one in path
    )


def _is_clamped(path: Path) -> bool:
    """Whether what falls with a restart is cut off."""
    return any(isinstance(one, Call) and one.func in ("clamp_min", "clamp") for one in path)


def _is_divided(path: Path) -> bool:
    return any(isinstance(one, Binary) and one.op in "/*" for one in path)


def _per_request(expr: Expr, base: str) -> Expr:
    """The same of the histogram's count."""

    def counted(node: Expr) -> Expr | None:
        is_sum = isinstance(node, Selector) and node.name == f"{base}_sum"
        return replace(node, name=f"{base}_count") if is_sum else None  # type: ignore[type-var]

    return rewrite_tree(expr, counted)


def _asks_for_changes(expr: Expr, name: str) -> bool:
    calls = (node for node in expr.walk() if isinstance(node, Call) and node.func in ("changes", "delta", "increase"))
    return any(isinstance(call.args[0], Range) and call.args[0].selector.name == name for call in calls)


def _has_rate(expr: Expr) -> bool:
    return any(isinstance(node, Range) for node in expr.walk())


def _is_share(expr: Expr) -> bool:
    """A ratio of counters, of which `check_since_start` speaks."""
    return any(isinstance(node, Binary) and node.op == "/" for node in expr.walk())


def _holds_the_last(selector: Selector, metrics: Metrics) -> bool:
    known = metrics.known(selector.name)
    return known is not None and known.entry is not None and bool(known.entry.changes)


def _over(expr: Expr, several: set[Selector], func: str, window: float) -> Expr:
    """The expression with these selectors over a window."""
    return rewrite_tree(
        expr, lambda e: Call(func, (Range(e, window),)) if isinstance(e, Selector) and e in several else None
    )
