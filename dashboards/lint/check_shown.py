"""What a panel makes of a query: units and colours; buckets and means that are added up as if they were values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvitals.dashboards.lint.defect import LintedQuery
from kvitals.dashboards.lint.metrics import Metrics
from kvitals.dashboards.lint.trees import Path, TreeDefect, base_of, rewrite_tree, selectors, swap_node, with_path
from kvitals.series.promql import Aggregate, Binary, Call, Expr, NumberLiteral, Range, Selector

DEFAULT_THRESHOLD = (80.0,)
"""What Grafana puts into every new panel: red from 80 on."""
_MILLISECONDS = ("ms", "clockms", "dtdurationms")
_OTHER_RATES = {"cps": "counts", "reqps": "requests", "rps": "reads", "wps": "writes", "iops": "I/O operations"}
_RATES = ("rate", "irate", "increase")


def check_shown(expr: Expr, query: LintedQuery, metrics: Metrics) -> Iterator[TreeDefect]:
    """Of panels alone."""
    if query.kind != "panel":
        return
    if query.unit in _MILLISECONDS and _is_seconds(expr, metrics):
        yield TreeDefect(
            "seconds-as-milliseconds",
            "the value is in seconds but is shown as milliseconds: 2 s appears as 2 ms",
            Binary("*", expr, NumberLiteral(1000.0)),
            advice="or use the unit s",
        )
    if (unit := _OTHER_RATES.get(query.unit)) and _is_tokens(expr, metrics):
        yield TreeDefect(
            "tokens-as-others",
            f"these are tokens, but the unit is {unit} per second",
            advice="take the unit suffix:tokens/s",
            warning=True,
        )
    if query.thresholds == DEFAULT_THRESHOLD and query.unit != "percent":
        yield TreeDefect(
            "default-threshold",
            "the colour changes at 80, Grafana's default in every panel, which has no meaning for this value",
            advice="use the limit of a rule, or remove the threshold",
            warning=True,
        )


def check_buckets(expr: Expr) -> Iterator[TreeDefect]:
    """Buckets are cumulative: added up without `le`, a request counts once for each bound above it."""
    for node, path in with_path(expr):
        if isinstance(node, Binary) and node.op == "/" and _is_all_buckets(node.left) and _is_all_buckets(node.right):
            if not _has_le(node.right):
                fixed = swap_node(expr, node, replace(node, right=_counted(node.right)))
                why = "the total is the sum of cumulative buckets, in which a request counts several times"
                yield TreeDefect("bucket-by-bucket", why, fixed)
        elif _adds_up_buckets(node) and not _is_read_otherwise(path):
            assert isinstance(node, Aggregate)
            grouping = tuple(sorted({*node.grouping, "le"}))
            kept = None if node.without else swap_node(expr, node, replace(node, grouping=grouping))
            why = "the buckets are summed without `le`: a request counts once for each bound above it"
            yield TreeDefect("buckets-without-le", why, kept, advice="" if kept is not None else "keep `le`")


def check_means(expr: Expr) -> Iterator[TreeDefect]:
    """The mean over replicas of each one's mean."""
    for node in expr.walk():
        if not isinstance(node, Aggregate) or node.op != "avg" or not isinstance(node.expr, Binary):
            continue
        ratio = node.expr
        over, under = (_base_and_part(side) for side in (ratio.left, ratio.right))
        if ratio.op == "/" and over and under and over == (under[0], "_sum") and under[1] == "_count":
            left, right = (replace(node, op="sum", expr=side) for side in (ratio.left, ratio.right))
            yield TreeDefect(
                "mean-of-means",
                "a mean of means is not the mean of all: a replica with ten requests weighs as much as one with ten"
                " thousand",
                swap_node(expr, node, Binary("/", left, right)),
            )


def _is_seconds(expr: Expr, metrics: Metrics) -> bool:
    """Whether a value is a time in seconds: a quantile or a mean of such a histogram, not scaled."""
    if isinstance(expr, Aggregate):
        return expr.op in ("avg", "max", "min", "topk", "bottomk") and _is_seconds(expr.expr, metrics)
    if isinstance(expr, Call) and expr.func == "histogram_quantile":
        return any(_counts_seconds(one, metrics) for one in selectors(expr))
    if isinstance(expr, Binary) and expr.op == "/":
        left, right = (selectors(side) for side in (expr.left, expr.right))
        return (
            bool(left and right)
            and all(one.name.endswith("_sum") and _counts_seconds(one, metrics) for one in left)
            and all(one.name.endswith("_count") for one in right)
            and not any(isinstance(one, NumberLiteral) for one in expr.walk())
        )
    return False


def _counts_seconds(selector: Selector, metrics: Metrics) -> bool:
    known = metrics.known(selector.name)
    return base_of(selector.name)[0].endswith("_seconds") or (known is not None and known.unit == "seconds")


def _is_tokens(expr: Expr, metrics: Metrics) -> bool:
    """Whether a value is a rate of tokens."""
    found = selectors(expr)
    if not found or not any(isinstance(one, Call) and one.func in _RATES for one in expr.walk()):
        return False
    if any(isinstance(one, Binary) for one in expr.walk()):
        return False
    known = [metrics.known(one.name) for one in found]
    return all(
        one.name.endswith(("_tokens", "_tokens_total")) or (about is not None and about.unit == "tokens")
        for one, about in zip(found, known, strict=True)
    )


def _adds_up_buckets(node: Expr) -> bool:
    return (
        isinstance(node, Aggregate) and node.op in ("sum", "avg") and _is_all_buckets(node.expr) and not _has_le(node)
    )


def _is_all_buckets(expr: Expr) -> bool:
    found = selectors(expr)
    calls = [one for one in expr.walk() if isinstance(one, Call)]
    return (
        bool(found)
        and all(one.name.endswith("_bucket") for one in found)
        and any(isinstance(one, Range) for one in expr.walk())
        and all(one.func in _RATES for one in calls)
    )


def _has_le(expr: Expr) -> bool:
    """Whether an expression selects by the bound or keeps it."""
    if any(one.name == "le" for selector in selectors(expr) for one in selector.matchers):
        return True
    aggregates = [one for one in expr.walk() if isinstance(one, Aggregate)]
    return not aggregates or all(("le" in one.grouping) != one.without for one in aggregates)


def _is_read_otherwise(path: Path) -> bool:
    """Whether a quantile or a share is made of the buckets, of which other checks speak."""
    return any(
        (isinstance(one, Call) and one.func == "histogram_quantile") or (isinstance(one, Binary) and one.op == "/")
        for one in path
    )


def _counted(expr: Expr) -> Expr:
    def changed(node: Expr) -> Expr | None:
        is_bucket = isinstance(node, Selector) and node.name.endswith("_bucket")
        return replace(node, name=f"{base_of(node.name)[0]}_count") if is_bucket else None  # type: ignore[type-var, attr-defined]

    return rewrite_tree(expr, changed)


def _base_and_part(expr: Expr) -> tuple[str, str] | None:
    """The histogram and the part that a side is a rate of; None where it adds up itself or is something else."""
    found = selectors(expr)
    if len(found) != 1 or any(isinstance(one, Aggregate) for one in expr.walk()):
        return None
    return base_of(found[0].name)
