"""Looking through a query's tree, and making another one of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from kvitals.dashboards.lint.metrics import Metrics, ResolvedMetric
from kvitals.rules.loader import HISTOGRAM_PARTS
from kvitals.series.promql import Aggregate, Binary, Call, Expr, NumberLiteral, Range, Selector, Subquery
from kvitals.series.promql.rewrite import map_children

COMPARISONS = frozenset((">", "<", ">=", "<=", "==", "!="))
PASSING = frozenset(
    ("avg_over_time", "min_over_time", "max_over_time", "last_over_time", "quantile_over_time", "abs", "clamp_min")
)
"""Functions whose result lies among their argument's values."""
_INSIDE = frozenset(("avg", "min", "max", "quantile", "topk", "bottomk"))

Path = tuple[Expr, ...]
"""What stands above a node, the nearest last."""


@dataclass(frozen=True)
class TreeDefect:
    """What a check has to say of a query."""

    code: str
    why: str
    fixed: Expr | None = None
    advice: str = ""
    warning: bool = False
    renames: tuple[tuple[str, str], ...] = ()  # where it is mended by other names alone


def with_path(expr: Expr, above: Path = ()) -> Iterator[tuple[Expr, Path]]:
    """Every node with what stands above it, parents first."""
    yield expr, above
    for child in expr.children():
        yield from with_path(child, (*above, expr))


def rewrite_tree(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """A copy in which the nodes for which `change` has another are that."""
    other = change(expr)
    if other is not None:
        return other
    if isinstance(expr, Range):
        selector = rewrite_tree(expr.selector, change)
        return replace(expr, selector=selector) if isinstance(selector, Selector) else expr
    return map_children(expr, lambda child: rewrite_tree(child, change))


def swap_node(expr: Expr, old: Expr, new: Expr) -> Expr:
    """A copy with one node in place of another."""
    return rewrite_tree(expr, lambda node: new if node == old else None)


def is_raw(path: Path) -> bool:
    """Whether a selector's value is taken as it is now, and not what it did over a time."""
    return not any(isinstance(one, Range) or (isinstance(one, Call) and one.func in _OVER_TIME) for one in path)


_OVER_TIME = frozenset(
    (
        "changes",
        "resets",
        "delta",
        "idelta",
        "deriv",
        "increase",
        "rate",
        "irate",
        "absent",
        "count",
    )
)


def raw_counters(expr: Expr, metrics: Metrics) -> list[tuple[Selector, ResolvedMetric]]:
    """The counters of an expression, histograms' parts included, that are not looked at over a time."""
    found = []
    for node, path in with_path(expr):
        if not isinstance(node, Selector) or not is_raw(path):
            continue
        known = metrics.meant(node.name) or _by_convention(node.name)
        if known is not None and (known.type == "counter" or known.part):
            found.append((node, known))
    return found


def _by_convention(name: str) -> ResolvedMetric | None:
    """A sum and a count by their names; others may end so as well, so only both together say something."""
    part = next((part for part in ("_sum", "_count") if name.endswith(part)), "")
    return ResolvedMetric(name.removesuffix(part), part, "histogram") if part else None


@lru_cache(maxsize=2048)
def selectors(expr: Expr) -> tuple[Selector, ...]:
    """All selectors, those in ranges included. Each check asks for them."""
    return tuple(node for node in expr.walk() if isinstance(node, Selector))


def upper(expr: Expr, metrics: Metrics) -> float | None:
    """The greatest value that an expression can have, where that is known."""
    if isinstance(expr, NumberLiteral):
        return expr.value
    if isinstance(expr, Selector):
        known = metrics.known(expr.name)
        return 1.0 if known is not None and known.unit == "ratio" and known.type == "gauge" else None
    if isinstance(expr, Range):
        return upper(expr.selector, metrics)
    if isinstance(expr, Subquery):
        return upper(expr.expr, metrics)
    if isinstance(expr, Aggregate) and expr.op in _INSIDE:
        return upper(expr.expr, metrics)
    if isinstance(expr, Call) and expr.func in PASSING and expr.args:
        return upper(expr.args[-1 if expr.func == "quantile_over_time" else 0], metrics)
    if isinstance(expr, Call) and expr.func == "histogram_quantile":
        bounds = bounds_of(expr, metrics)
        return bounds[-1] if bounds else None
    if isinstance(expr, Binary) and expr.op in "*/":
        return _scaled(expr, metrics)
    return None


def _scaled(expr: Binary, metrics: Metrics) -> float | None:
    for value, number in ((expr.left, expr.right), (expr.right, expr.left)):
        if isinstance(number, NumberLiteral) and number.value > 0 and (found := upper(value, metrics)) is not None:
            if expr.op == "*":
                return found * number.value
            return found / number.value if value is expr.left else None
    return None


def bounds_of(quantile: Call, metrics: Metrics) -> tuple[float, ...]:
    """The bucket bounds of the one histogram that a quantile is of, where they are known."""
    found = [metrics.known(one.name) for one in selectors(quantile)]
    bounds = {known.bounds if known is not None else () for known in found}
    return bounds.pop() if len(bounds) == 1 else ()


def base_of(name: str) -> tuple[str, str]:
    """A histogram's name and the part that a series is."""
    part = next((part for part in HISTOGRAM_PARTS if name.endswith(part)), "")
    return name.removesuffix(part), part
