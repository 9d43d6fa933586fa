"""Quantiles of nothing, of each series alone, and means of quantiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from kvitals.dashboards.lint.defect import LintedQuery
from kvitals.dashboards.lint.trees import Path, TreeDefect, rewrite_tree, selectors, swap_node, with_path
from kvitals.series.promql import Aggregate, Call, Expr, NumberLiteral, Range, Selector, Subquery

_LEGEND = re.compile(r"\{\{\s*\.?(\w+)\s*\}\}")
_PERCENTILE = re.compile(
    r"_p(50|75|90|95|99|999)(_|$)|_(50|90|95|99)(th)?_?(percentile|quantile)|percentile_?(50|90|95|99)"
)
_MEANS = ("avg", "sum")
_WORST = ("max", "min", "topk", "bottomk", "count")


def check_quantiles(expr: Expr, query: LintedQuery) -> Iterator[TreeDefect]:
    for node, path in with_path(expr):
        if isinstance(node, Call) and node.func == "histogram_quantile" and len(node.args) == 2:
            yield from _arguments(expr, node, path, query)
        if isinstance(node, Aggregate) and node.op in _MEANS:
            yield from _mean(expr, node)
        if isinstance(node, Call) and node.func == "avg_over_time" and isinstance(node.args[0], Subquery):
            inner = _quantile_in(node.args[0].expr)
            if inner is not None:
                yield TreeDefect(
                    "mean-of-quantiles",
                    "a mean of quantiles over time is not a quantile: calculate one quantile over the whole time",
                    swap_node(expr, node, _longer(inner, node.args[0].range)),
                )


def _arguments(expr: Expr, node: Call, path: Path, query: LintedQuery) -> Iterator[TreeDefect]:
    rank, inside = node.args
    if isinstance(rank, NumberLiteral) and not 0 <= rank.value <= 1:
        share = rank.value / 100 if rank.value <= 100 else 1.0
        fixed = swap_node(expr, node, replace(node, args=(NumberLiteral(share), inside)))
        yield TreeDefect("quantile-rank", f"a quantile rank is between 0 and 1: {rank} always gives infinity", fixed)
    if isinstance(inside, Aggregate) and inside.op in ("sum", "avg", "max", "min"):
        has_le = ("le" in inside.grouping) != inside.without
        if not has_le:
            grouping = tuple(x for x in inside.grouping if x != "le") if inside.without else (*inside.grouping, "le")
            fixed = swap_node(expr, node, replace(node, args=(rank, replace(inside, grouping=tuple(sorted(grouping))))))
            yield TreeDefect(
                "quantile-without-le", "the buckets are summed without `le`, so the result is not a quantile", fixed
            )
        elif inside.op in ("max", "min"):
            fixed = swap_node(expr, node, replace(node, args=(rank, replace(inside, op="sum"))))
            yield TreeDefect(
                "quantile-of-extremes",
                f"buckets are aggregated over series: their {inside.op} is not a histogram",
                fixed,
            )
    elif _is_buckets(inside) and not any(_is_worst(one) or _is_mean(one) for one in path):
        labels = [name for name in _LEGEND.findall(query.legend) if name != "le"]
        grouped = Aggregate("sum", inside, tuple(sorted({"le", *labels})))
        yield TreeDefect(
            "quantile-of-each-series",
            "the buckets are not summed by `le`, so each series has its own line, and no line covers all series",
            swap_node(expr, node, replace(node, args=(rank, grouped))),
            warning=True,
        )


def _mean(expr: Expr, node: Aggregate) -> Iterator[TreeDefect]:
    inner = _quantile_in(node.expr)
    if inner is not None:
        if not _is_one_series(inner, node):
            yield TreeDefect(
                "mean-of-quantiles",
                f"the {'mean' if node.op == 'avg' else 'sum'} of quantiles is not a quantile: a replica with ten"
                " requests weighs as much as one with ten thousand",
                swap_node(expr, node, _whole(inner, node)),
            )
        return
    named = next((one for one in selectors(node.expr) if _is_percentile(one)), None)
    if named is not None:
        yield TreeDefect(
            "mean-of-quantiles",
            f"{named.name} is already a percentile: its mean over replicas is not a percentile",
            swap_node(expr, node, replace(node, op="max")),
            advice="use the worst replica's percentile; for a percentile of all, use the histogram's buckets",
        )


def _quantile_in(expr: Expr) -> Call | None:
    """A quantile that is all of an expression, but for parentheses and factors."""
    if isinstance(expr, Call) and expr.func == "histogram_quantile" and len(expr.args) == 2:
        return expr
    children = [child for child in expr.children() if not isinstance(child, NumberLiteral)]
    return _quantile_in(children[0]) if len(children) == 1 and not isinstance(expr, Aggregate) else None


def _is_one_series(quantile: Call, outer: Aggregate) -> bool:
    """Whether the quantile has one series for each of the outer's, so that the mean changes nothing."""
    inside = quantile.args[1]
    if not isinstance(inside, Aggregate) or inside.without or outer.without:
        return False
    return set(inside.grouping) - {"le"} <= set(outer.grouping)


def _whole(quantile: Call, outer: Aggregate) -> Expr:
    """The quantile of the buckets of all that the outer takes together."""
    rank, inside = quantile.args
    rates = inside.expr if isinstance(inside, Aggregate) else inside
    if outer.without:
        grouped = Aggregate("sum", rates, tuple(sorted(set(outer.grouping) - {"le"})), without=True)
    else:
        grouped = Aggregate("sum", rates, tuple(sorted({"le", *outer.grouping})))
    return replace(quantile, args=(rank, grouped))


def _longer(quantile: Call, seconds: float) -> Expr:
    return rewrite_tree(quantile, lambda e: replace(e, range=seconds) if isinstance(e, Range) else None)


def _is_buckets(expr: Expr) -> bool:
    found = selectors(expr)
    return bool(found) and all(one.name.endswith("_bucket") for one in found) and not _has_aggregate(expr)


def _has_aggregate(expr: Expr) -> bool:
    return any(isinstance(node, Aggregate) for node in expr.walk())


def _is_worst(expr: Expr) -> bool:
    return isinstance(expr, Aggregate) and expr.op in _WORST


def _is_mean(expr: Expr) -> bool:
    return isinstance(expr, Aggregate) and expr.op in _MEANS


def _is_percentile(selector: Selector) -> bool:
    return bool(_PERCENTILE.search(selector.name)) or any(one.name == "quantile" for one in selector.matchers)
