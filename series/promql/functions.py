"""Functions of instant vectors and scalars, as in Prometheus 2.42."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from kvitals.series import patterns
from kvitals.series.promql import histogram
from kvitals.series.promql.grid import Grid, QueryBudget, layout, relabel, without_names
from kvitals.series.promql.nodes import Call, Expr, Selector, String
from kvitals.series.promql.promql_error import PromQLError
from kvitals.series.types import METRIC_NAME, Floats, Labels, LabelSets, MatchOp

if TYPE_CHECKING:
    from kvitals.series.promql.evaluate import Evaluation

MAX_LABEL_CHARACTERS = 10_000
"""Of a label's value that `label_replace` or `label_join` makes."""

_ELEMENTWISE: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
}


def call(node: Call, evaluation: Evaluation) -> Grid:
    """The value of any function that takes no range vector and is not a scalar."""
    if node.func in _ELEMENTWISE:
        grid = evaluation.vector(node.args[0])
        return _values(grid, _ELEMENTWISE[node.func](grid.values))
    if node.func in _CLAMPS:
        limits = [evaluation.scalar(arg)[:, None] for arg in node.args[1:]]
        return _CLAMPS[node.func](evaluation.vector(node.args[0]), *limits)
    if node.func in ("label_replace", "label_join"):
        relabelled = _label_replace if node.func == "label_replace" else _label_join
        grid = evaluation.vector(node.args[0])
        texts = tuple(arg.value for arg in node.args[1:] if isinstance(arg, String))
        kind = (node.func, texts)
        return relabel(grid, layout(kind, grid.labels, lambda: relabelled(grid.labels, texts, evaluation.budget)))
    return _OTHERS[node.func](node, evaluation)


def scalar(grid: Grid) -> Floats:
    """[N]: the value where there is exactly one, else NaN."""
    if not grid.labels:
        return np.full(len(grid.values), np.nan)
    only = grid.present.sum(axis=1) == 1
    column = grid.present.argmax(axis=1)
    return np.where(only, grid.values[np.arange(len(column)), column], np.nan)


def _values(grid: Grid, values: Floats) -> Grid:
    return without_names(Grid(grid.labels, values, grid.present))


def go_max(a: Floats, b: Floats) -> Floats:
    """math.Max of Go: NaN wins over numbers, but +Inf wins over NaN."""
    return np.where(np.isposinf(a) | np.isposinf(b), np.inf, np.maximum(a, b))


def go_min(a: Floats, b: Floats) -> Floats:
    """math.Min of Go: NaN wins over numbers, but -Inf wins over NaN."""
    return np.where(np.isneginf(a) | np.isneginf(b), -np.inf, np.minimum(a, b))


def _clamp(grid: Grid, low: Floats, high: Floats) -> Grid:
    clamped = go_max(low, go_min(high, grid.values))
    return without_names(Grid(grid.labels, clamped, grid.present & ~(high < low)))


def _round(grid: Grid, nearest: Floats | None = None) -> Grid:
    inverse = 1.0 / (np.ones((1, 1)) if nearest is None else nearest)
    return _values(grid, np.floor(grid.values * inverse + 0.5) / inverse)


_CLAMPS: dict[str, Callable[..., Grid]] = {
    "clamp": _clamp,
    "clamp_min": lambda grid, low: _values(grid, go_max(low, grid.values)),
    "clamp_max": lambda grid, high: _values(grid, go_min(high, grid.values)),
    "round": _round,
}


def _absent(node: Call, evaluation: Evaluation) -> Grid:
    grid = evaluation.vector(node.args[0])
    missing = ~grid.anything()
    return Grid(LabelSets((_absent_labels(node.args[0]),)), np.ones(missing.shape), missing)


def _absent_labels(expr: Expr) -> Labels:
    """What is known of a missing series: the labels on which a selector has one equality and nothing else."""
    if not isinstance(expr, Selector):
        return Labels()
    known: dict[str, str] = {}
    equal: set[str] = set()
    for matcher in expr.matchers:
        if matcher.name == METRIC_NAME:
            continue
        if matcher.op is MatchOp.EQ and matcher.name not in equal:
            known[matcher.name] = matcher.value
            equal.add(matcher.name)
        else:
            known.pop(matcher.name, None)
    return Labels(known)


def _timestamp(node: Call, evaluation: Evaluation) -> Grid:
    # Of anything but a selector, whose samples' own times `Evaluation` knows, it is the evaluation time.
    grid = evaluation.vector(node.args[0])
    return _values(grid, np.broadcast_to(evaluation.steps[:, None] / 1000.0, grid.values.shape))


def _vector(node: Call, evaluation: Evaluation) -> Grid:
    values = evaluation.scalar(node.args[0])[:, None]
    return Grid(LabelSets((Labels(),)), values, np.ones(values.shape, dtype=bool))


def _histogram_quantile(node: Call, evaluation: Evaluation) -> Grid:
    return histogram.quantile(evaluation.scalar(node.args[0]), evaluation.vector(node.args[1]), evaluation.budget)


def _sort(node: Call, evaluation: Evaluation) -> Grid:
    grid = evaluation.vector(node.args[0])
    if len(evaluation.steps) > 1:  # the order of a range query is that of its labels
        return grid
    values = grid.values[0]
    sign = -1.0 if node.func == "sort_desc" else 1.0
    order = np.lexsort((sign * values, np.isnan(values)))
    return grid.pick(order.astype(np.int64))


_OTHERS: dict[str, Callable[[Call, Evaluation], Grid]] = {
    "absent": _absent,
    "timestamp": _timestamp,
    "vector": _vector,
    "histogram_quantile": _histogram_quantile,
    "sort": _sort,
    "sort_desc": _sort,
}


def _label_replace(labels: LabelSets, texts: tuple[str, ...], budget: QueryBudget) -> LabelSets:
    target, replacement, source, pattern = texts
    regex = patterns.groups(pattern)
    result = []
    for one in labels:
        budget.take(0)
        found = regex.of(one.get(source, ""))
        result.append(one if found is None else _with(one, target, _expanded(replacement, found), budget))
    return LabelSets(result)


_REFERENCE = re.compile(r"\$(?:\$|\{(?P<braced>\w+)\}|(?P<bare>\w+))")


def _expanded(template: str, groups: Mapping[str, str]) -> str:
    """Regexp.Expand of Go: $1, ${1}, $name; $1x is a group named 1x; an unknown group is empty."""

    def group(found: re.Match[str]) -> str:
        name = found["braced"] or found["bare"]
        return "$" if name is None else groups.get(name, "")

    return _REFERENCE.sub(group, template)


def _label_join(labels: LabelSets, texts: tuple[str, ...], budget: QueryBudget) -> LabelSets:
    target, separator, *sources = texts
    return LabelSets(_with(x, target, separator.join(x.get(s, "") for s in sources), budget) for x in labels)


def _with(labels: Labels, name: str, value: str, budget: QueryBudget) -> Labels:
    """The labels with another one. Eight bytes cost as much of the budget as a sample, which takes as many."""
    if len(value) > MAX_LABEL_CHARACTERS:
        raise PromQLError(
            f"the label {name} would have {len(value)} characters, but only {MAX_LABEL_CHARACTERS} are allowed"
        )
    budget.take(len(value) * (1 if value.isascii() else 4) // 8)  # Python keeps up to four bytes for each character
    return Labels({**labels, name: value})
