"""Names that are not there: dead, renamed, misspelt, without their end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvitals.dashboards.lint.defect import LintedQuery
from kvitals.dashboards.lint.metrics import Metrics, ResolvedMetric, Wrong
from kvitals.dashboards.lint.trees import TreeDefect, rewrite_tree
from kvitals.series.promql import Expr, Range, Selector, expand, parse
from kvitals.series.promql.nodes import duration

_CODES = {
    "dead": "dead-metric",
    "unknown": "unknown-metric",
    "total": "counter-without-total",
    "part": "histogram-without-part",
}


def check_names(
    names: list[str], query: LintedQuery, metrics: Metrics, expr: Expr | None = None, window: float = 300.0
) -> Iterator[TreeDefect]:
    """`expr`: the query, where it could be parsed."""
    for name in names:
        found = metrics.look_up(name)
        if isinstance(found, Wrong):
            yield _wrong(name, found, query, expr, window)
        elif isinstance(found, ResolvedMetric) and (usual := metrics.usual(found)):
            yield TreeDefect(
                "rewritten-name",
                f"{found.system} itself exports {usual}; {name} exists only if something renames metrics, such "
                f"as Ray Serve or an OpenTelemetry collector",
                warning=True,
                renames=((name, usual + found.part),),
            )


def _wrong(name: str, found: Wrong, query: LintedQuery, expr: Expr | None, window: float) -> TreeDefect:
    version = f" {found.version}" if found.version else ""
    why = f"{name}: {found.why}; {found.system}{version} shows no series of it"
    if query.kind == "alert":
        absent = "absent(" in query.text.replace(" ", "")
        why += ", so this alert always fires" if absent else ", so it can never make the alert fire"
    fixed = _said_otherwise(name, found.query, expr, window) if found.query and expr is not None else None
    advice = (
        ""
        if found.instead or fixed
        else "it has no replacement: remove it, or watch the same condition with another metric"
    )
    if found.kind == "part":
        advice = "use _bucket for quantiles, _sum divided by _count for a mean, _count for a number of events"
    renames = ((name, found.instead),) if found.instead else ()
    return TreeDefect(_CODES[found.kind], why, fixed, advice, warning=not found.sure, renames=renames)


def _said_otherwise(name: str, query: str, expr: Expr, window: float) -> Expr | None:
    """The expression with a query in place of a name; None where it asks for a range of the name."""
    if any(isinstance(node, Range) and node.selector.name == name for node in expr.walk()):
        return None
    template = parse(expand(query, {"window": duration(window)}))

    def instead(node: Expr) -> Expr | None:
        return _with_matchers(template, node) if isinstance(node, Selector) and node.name == name else None

    return rewrite_tree(expr, instead)


def _with_matchers(template: Expr, old: Selector) -> Expr:
    def bound(node: Expr) -> Expr | None:
        is_selector = isinstance(node, Selector)
        return replace(node, matchers=old.matchers, offset=old.offset) if is_selector else None  # type: ignore[type-var]

    return rewrite_tree(template, bound)
