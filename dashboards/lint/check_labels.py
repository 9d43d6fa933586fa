"""Labels that a metric does not have, where it has one of nearly that name; and variables that a board does not have.

Any label can come from a scrape configuration, so a name alone proves nothing: only a near miss is reported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Set
from dataclasses import replace

from kvitals.dashboards.lint.metrics import Metrics, ResolvedMetric
from kvitals.dashboards.lint.trees import TreeDefect, rewrite_tree, selectors
from kvitals.series.promql import Aggregate, Expr, Selector

NEAR = 0.8
"""How alike two names are (0 to 1, by difflib) before one is taken for a slip of the other."""
_OF_GRAFANA = ("__", "timeFilter")
"""How the names of Grafana's own variables begin."""


def check_labels(expr: Expr, metrics: Metrics) -> Iterator[TreeDefect]:
    """Matchers and groupings by a label that the engine writes otherwise."""
    told: set[tuple[str, str]] = set()
    for node in expr.walk():
        for label, of in _read_labels(node):
            known = metrics.known(of.name)
            meant = _meant(label, known, metrics) if known is not None else ""
            if not meant or (label, meant) in told:
                continue
            told.add((label, meant))
            plausible = meant.startswith(label)
            yield TreeDefect(
                "label-not-there",
                f"{of.name} has the label {meant}, not {label}"
                + ("; the query finds nothing unless your scrape configuration adds that label" if plausible else ""),
                _with_label(expr, of.name, label, meant),
                warning=plausible,
            )


def check_variables(text_variables: Set[str], known: Set[str] | None) -> Iterator[TreeDefect]:
    """Variables of a query that neither its board nor Grafana has. known: None where there is no board."""
    if known is None:
        return
    for name in sorted(text_variables - known):
        if not name.startswith(_OF_GRAFANA) and not name[0].isdigit():
            yield TreeDefect(
                "undefined-variable",
                f"the board has no variable {name}, so ${name} is sent to Prometheus as it is",
                advice=f"add the variable {name} to the board, or remove it from the query",
            )


def _read_labels(node: Expr) -> Iterator[tuple[str, Selector]]:
    """The labels that a node reads, each with a selector whose series have to have it."""
    if isinstance(node, Selector):
        yield from ((one.name, node) for one in node.matchers if not one.matches({}))
    elif isinstance(node, Aggregate) and not node.without:
        of = selectors(node)
        if len({one.name for one in of}) == 1:
            yield from ((label, of[0]) for label in node.grouping)


def _meant(label: str, known: ResolvedMetric, metrics: Metrics) -> str:
    """The label of a metric that another name is a slip of; empty where it is none."""
    labels = metrics.labels(known)
    if label in labels:
        return ""
    longer = [one for one in labels if one.startswith(f"{label}_")]
    near = difflib.get_close_matches(label, [one for one in labels if not label.startswith(one)], 1, NEAR)
    return next(iter([*near, *longer]), "")


def _with_label(expr: Expr, metric: str, label: str, meant: str) -> Expr:
    def renamed(node: Expr) -> Expr | None:
        if isinstance(node, Selector) and node.name == metric:
            matchers = (replace(one, name=meant) if one.name == label else one for one in node.matchers)
            return replace(node, matchers=tuple(matchers))
        if isinstance(node, Aggregate) and label in node.grouping and {one.name for one in selectors(node)} == {metric}:
            grouping = tuple(sorted({meant if one == label else one for one in node.grouping}))
            return replace(node, expr=rewrite_tree(node.expr, renamed), grouping=grouping)
        return None

    return rewrite_tree(expr, renamed)
