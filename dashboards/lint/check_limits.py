"""Limits that can not be reached, or that lie where nothing can be told."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace

from kvitals.dashboards.lint.check_shown import DEFAULT_THRESHOLD
from kvitals.dashboards.lint.defect import LintedQuery
from kvitals.dashboards.lint.metrics import Metrics
from kvitals.dashboards.lint.trees import COMPARISONS, TreeDefect, bounds_of, rewrite_tree, swap_node, upper
from kvitals.series.promql import Binary, Call, Expr, NumberLiteral, Selector
from kvitals.series.types import Matcher, MatchOp

_ABOVE = (">", ">=")
_PAGING = re.compile(r"crit|page|emerg")
_BUDGETS = (0.01, 0.005, 0.001, 0.0005, 0.0001)
"""Of errors, as objectives allow them."""
_SCALES = {"s": 1.0, "ms": 1000.0}


def check_limits(expr: Expr, query: LintedQuery, metrics: Metrics) -> Iterator[TreeDefect]:
    """Of conditions and of colours."""
    for node in expr.walk():
        if isinstance(node, Binary) and node.op in COMPARISONS and isinstance(node.right, NumberLiteral):
            yield from _reach(expr, node, node.right.value, metrics)
            if query.kind == "alert":
                yield from _between(expr, node, metrics)
    if query.kind == "panel":
        yield from _colours(expr, query, metrics)


def _colours(expr: Expr, query: LintedQuery, metrics: Metrics) -> Iterator[TreeDefect]:
    """The values at which a panel of a quantile changes its colour."""
    quantile, factor = _scaled_quantile(expr)
    bounds = [round(bound * factor, 9) for bound in bounds_of(quantile, metrics)] if quantile is not None else []
    if not bounds or _SCALES.get(query.unit) != factor or query.thresholds == DEFAULT_THRESHOLD:
        return
    for limit in query.thresholds:
        if limit > bounds[-1]:
            why = f"the colour changes at {limit:g}, above the last bucket bound {bounds[-1]:g}, so it never changes"
            yield TreeDefect("limit-above-buckets", why, advice=f"take {bounds[-1]:g} or less")
        elif limit > 0 and limit not in bounds:
            place = bisect_left(bounds, limit)
            lower, above = bounds[place - 1] if place else 0.0, bounds[place]
            yield TreeDefect(
                "limit-between-buckets",
                f"the colour changes at {limit:g}, between the bucket bounds {lower:g} and {above:g}, where a"
                " quantile is only an estimate",
                advice=f"take {above:g}" + (f" or {lower:g}" if lower else ""),
                warning=True,
            )


def check_bounds(expr: Expr, metrics: Metrics) -> Iterator[TreeDefect]:
    """`le` of a bucket that is not there."""
    for node in expr.walk():
        if not isinstance(node, Selector) or not node.name.endswith("_bucket"):
            continue
        known = metrics.known(node.name)
        wanted = next((m for m in node.matchers if m.name == "le" and m.op is MatchOp.EQ and m.value != "+Inf"), None)
        if known is None or not known.bounds or wanted is None:
            continue
        try:
            limit = float(wanted.value)
        except ValueError:
            continue
        there = known.bounds[min(bisect_left(known.bounds, limit), len(known.bounds) - 1)]
        if limit in known.bounds and wanted.value == repr(limit):
            continue
        other = Matcher("le", MatchOp.EQ, repr(there))
        fixed = replace(node, matchers=tuple(other if m is wanted else m for m in node.matchers))
        why = (
            f'the bucket is written le="{limit!r}": before Prometheus 3, le="{wanted.value}" selects nothing'
            if limit in known.bounds
            else f"{known.name} has no bucket le={limit:g}, so this selects nothing; the next is {there:g}"
        )
        yield TreeDefect("bucket-not-there", why, swap_node(expr, node, fixed))


def check_burn(expr: Expr, query: LintedQuery) -> Iterator[TreeDefect]:
    """A page for spending an error budget just as fast as it is given."""
    if query.kind != "alert" or not _PAGING.search(query.severity):
        return
    for node in expr.walk():
        if not isinstance(node, Binary) or not isinstance(node.right, NumberLiteral) or "/" not in str(node.left):
            continue
        limit = node.right.value
        budget = round(1 - limit, 9) if node.op in ("<", "<=") else limit if node.op in _ABOVE else 0.0
        if budget not in _BUDGETS:
            continue
        fast = round(budget * 14.4, 6)
        other = NumberLiteral(round(1 - fast, 6) if node.op in ("<", "<=") else fast)
        yield TreeDefect(
            "budget-at-one",
            f"errors of {budget * 100:g} % spend the budget exactly as fast as allowed, and this pages: 20 % "
            f"more errors for some minutes page the on-call, but hardly change the month's budget",
            rewrite_tree(expr, _moving(node, other)),
            advice="page at 14.4 times the budget over an hour and five minutes, and send tickets for the rest",
        )
        return


def _reach(expr: Expr, node: Binary, limit: float, metrics: Metrics) -> Iterator[TreeDefect]:
    most = upper(node.left, metrics)
    if most is None or not math.isfinite(most):
        return
    never = limit >= most if node.op == ">" else limit > most
    if node.op in _ABOVE and never:
        fixed: Expr | None = None
        if isinstance(node.left, Call) and node.left.func == "histogram_quantile":
            why = f"a quantile is never above the last bucket bound, {most:g}, so it is never above {limit:g}"
        else:
            why = f"the value is from 0 to {most:g}, so it is never above {limit:g}"
            fixed = (
                swap_node(expr, node, replace(node, right=NumberLiteral(limit / 100)))
                if most == 1 and 1 < limit <= 100
                else None
            )
        yield TreeDefect("never-true", why, fixed, advice="" if fixed else f"take a limit below {most:g}")
    elif node.op in ("<", "<=") and limit > most:
        fixed = (
            swap_node(expr, node, replace(node, right=NumberLiteral(limit / 100)))
            if most == 1 and limit <= 100
            else None
        )
        yield TreeDefect("always-true", f"the value is from 0 to {most:g}, so it is always below {limit:g}", fixed)


def _moving(like: Binary, limit: Expr) -> Callable[[Expr], Expr | None]:
    """Puts another limit into all comparisons like one: the same is asked over several windows."""

    def moved(node: Expr) -> Expr | None:
        alike = isinstance(node, Binary) and node.op == like.op and node.right == like.right
        return replace(node, right=limit) if alike else None  # type: ignore[type-var]

    return moved


def _between(expr: Expr, node: Binary, metrics: Metrics) -> Iterator[TreeDefect]:
    """An objective inside of a bucket, where a quantile is drawn as a straight line."""
    assert isinstance(node.right, NumberLiteral)
    quantile, scale = _scaled_quantile(node.left)
    bounds = bounds_of(quantile, metrics) if quantile is not None else ()
    limit = node.right.value / scale
    if not bounds or limit in bounds or limit >= bounds[-1] or limit <= 0:
        return
    place = bisect_left(bounds, limit)
    lower, above = bounds[place - 1] if place else 0.0, bounds[place]
    near = min((b for b in (lower, above) if b), key=lambda b: abs(b - limit))
    yield TreeDefect(
        "limit-between-buckets",
        f"{limit:g} s is between the bucket bounds {lower:g} and {above:g}, so a quantile there is only an estimate",
        swap_node(expr, node, replace(node, right=NumberLiteral(round(near * scale, 9)))),
        warning=True,
    )


def _scaled_quantile(expr: Expr) -> tuple[Call | None, float]:
    if isinstance(expr, Call) and expr.func == "histogram_quantile":
        return expr, 1.0
    if isinstance(expr, Binary) and expr.op == "*" and isinstance(expr.right, NumberLiteral) and expr.right.value > 0:
        inner, scale = _scaled_quantile(expr.left)
        return inner, scale * expr.right.value
    return None, 1.0
