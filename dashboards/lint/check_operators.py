"""Comparisons that are taken for 0 and 1, units that do not fit, and texts that say what is not so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvitals.dashboards.lint.defect import LintedQuery
from kvitals.dashboards.lint.metrics import Metrics
from kvitals.dashboards.lint.trees import COMPARISONS, TreeDefect, selectors, swap_node, upper
from kvitals.series.promql import Aggregate, Binary, Call, Expr, NumberLiteral, Subquery


def check_bool(expr: Expr) -> Iterator[TreeDefect]:
    """`1 - (x > 0)` where `bool` was meant."""
    for node in expr.walk():
        if not isinstance(node, Binary) or node.op not in "+-":
            continue
        for side, other in ((node.left, node.right), (node.right, node.left)):
            compared = _comparison(side)
            if compared is not None and isinstance(other, NumberLiteral):
                yield TreeDefect(
                    "comparison-without-bool",
                    f"{compared.op} without bool keeps the value if the comparison holds and drops the series "
                    f"if not: the result is {node.op} that value, or no value at all",
                    swap_node(expr, compared, replace(compared, returns_bool=True)),
                )


def check_unit(expr: Expr, query: LintedQuery, metrics: Metrics) -> Iterator[TreeDefect]:
    """A ratio that is shown as per cent."""
    if query.unit == "percent" and upper(expr, metrics) == 1.0:
        yield TreeDefect(
            "ratio-as-percent",
            "the value is from 0 to 1 but is shown as percent of 100: 100 % appears as 1 %",
            Binary("*", NumberLiteral(100.0), expr),
            advice="or use the unit percentunit",
        )


@dataclass(frozen=True)
class Contradiction:
    """Words beside metrics of a family that say the contrary of how it works."""

    families: tuple[str, ...]
    words: re.Pattern[str]
    why: str
    advice: str


CONTRADICTIONS = (
    Contradiction(
        ("kvitals_kv_usage_ratio",),
        re.compile(r"out.of.memory|\bOOM", re.IGNORECASE),
        "a full KV cache does not run out of memory: its memory was reserved when the engine started, and "
        "requests wait or are preempted",
        "alert on waiting or preempted requests",
    ),
    Contradiction(
        ("kvitals_preemptions_total",),
        re.compile(
            r"(decreas|lower|reduc)\w*\W+(?:\w+\W+){0,3}?(gpu.memory.utili[sz]ation|mem.fraction.static)", re.IGNORECASE
        ),
        "requests are preempted because there are too few KV blocks; less memory for the engine means fewer blocks",
        "advise to raise it, or to run fewer requests at once",
    ),
)


def check_words(expr: Expr, query: LintedQuery, metrics: Metrics) -> Iterator[TreeDefect]:
    """What title, description and annotations say of the metric."""
    families = {known.family for one in selectors(expr) if (known := metrics.meant(one.name)) is not None}
    words = f"{_spaced(query.title)} {query.said}"
    for one in CONTRADICTIONS:
        if families & set(one.families) and one.words.search(words):
            yield TreeDefect("words-contradict", one.why, advice=one.advice)


def _spaced(title: str) -> str:
    """ImminentOOM as two words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", title)


def _comparison(expr: Expr) -> Binary | None:
    """A comparison without bool that is all of an expression but for functions around it."""
    if isinstance(expr, Binary):
        return expr if expr.op in COMPARISONS and not expr.returns_bool else None
    if isinstance(expr, Aggregate) and expr.op in ("avg", "sum", "max", "min"):
        return _comparison(expr.expr)
    if isinstance(expr, Call) and expr.args and not expr.func.startswith("count"):
        return _comparison(expr.args[0])
    return _comparison(expr.expr) if isinstance(expr, Subquery) else None
