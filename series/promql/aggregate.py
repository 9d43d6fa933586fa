"""Aggregation over series, as in Prometheus 2.42."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kvitals.series.promql import windows
from kvitals.series.promql.grid import ColumnGroups, Grid, Ints, QueryBudget, group_by, layout
from kvitals.series.promql.nodes import Aggregate
from kvitals.series.promql.promql_error import PromQLError
from kvitals.series.types import METRIC_NAME, Floats, Labels, LabelSets


def aggregate(node: Aggregate, grid: Grid, param: Floats | None, budget: QueryBudget) -> Grid:
    """The aggregation `node` of `grid`. param: float64[N], for those that take one.

    Raises PromQLError when the budget has run out.
    """
    if param is not None and node.op != "quantile":
        _check_count(param, node.op)
    if node.op not in _LEAN:
        budget.take(grid.values.size)
    kind = ("aggregate", node.grouping, node.without)
    groups = layout(kind, grid.labels, lambda: group_by(_keys(grid.labels, node)))
    if param is not None and node.op != "quantile":
        return _extreme(grid, groups, param, budget, largest=node.op == "topk")
    present = groups.reduce(np.logical_or, grid.present)
    if param is not None:
        return Grid(groups.labels, _quantiles(grid, groups, param, budget), present)
    return Grid(groups.labels, _AGGREGATIONS[node.op](grid, groups), present)


def _keys(labels: LabelSets, node: Aggregate) -> list[Labels]:
    if node.without:
        return [x.drop(METRIC_NAME, *node.grouping) for x in labels]
    return [x.keep(node.grouping) for x in labels]


def _filled(grid: Grid, value: float) -> Floats:
    return np.where(grid.present, grid.values, value)


def _sum(grid: Grid, groups: ColumnGroups) -> Floats:
    return groups.reduce(np.add, _filled(grid, 0.0))


def _count(grid: Grid, groups: ColumnGroups) -> Floats:
    return groups.reduce(np.add, grid.present.astype(np.float64))


def _min(grid: Grid, groups: ColumnGroups) -> Floats:
    return groups.reduce(np.fmin, _filled(grid, np.nan))


def _max(grid: Grid, groups: ColumnGroups) -> Floats:
    return groups.reduce(np.fmax, _filled(grid, np.nan))


def _group(grid: Grid, groups: ColumnGroups) -> Floats:
    return np.ones((len(grid.values), len(groups.labels)))


def _base(grid: Grid, groups: ColumnGroups) -> Floats:
    """[N, G]: some finite value of each group, 0 where it has none; means are taken around it.

    A mean around one of the values is exact where all are equal, and big numbers lose no digits.
    """
    base = groups.reduce(np.fmin, np.where(grid.present & np.isfinite(grid.values), grid.values, np.nan))
    return np.where(np.isnan(base), 0.0, base)


def _avg(grid: Grid, groups: ColumnGroups) -> Floats:
    base = _base(grid, groups)
    around = np.where(grid.present, grid.values - base[:, groups.of], 0.0)
    count = np.maximum(_count(grid, groups), 1)
    result: Floats = base + groups.reduce(np.add, around) / count
    odd = ~np.isfinite(result)
    if odd.any():
        # Dividing first, as Prometheus does, keeps huge values from overflowing.
        apart = _filled(grid, 0.0) / count[:, groups.of]
        result[odd] = groups.reduce(np.add, apart)[odd]
    return result


def _stddev(grid: Grid, groups: ColumnGroups) -> Floats:
    count = _count(grid, groups)
    deviation = np.where(grid.present, grid.values - _avg(grid, groups)[:, groups.of], 0.0)
    result = np.sqrt(groups.reduce(np.add, deviation * deviation) / np.maximum(count, 1))
    # Of a single value it is 0, whatever the value.
    return np.where(count == 1, 0.0, result)


_AGGREGATIONS: dict[str, Callable[[Grid, ColumnGroups], Floats]] = {
    "sum": _sum,
    "avg": _avg,
    "min": _min,
    "max": _max,
    "count": _count,
    "group": _group,
    "stddev": _stddev,
}


_LEAN = ("sum", "min", "max", "count", "group")
"""Aggregations that make one copy of the values at most; the others make several."""


def _quantiles(grid: Grid, groups: ColumnGroups, q: Floats, budget: QueryBudget) -> Floats:
    out = np.full((len(q), len(groups.labels)), np.nan)
    for g in range(len(groups.labels)):
        budget.take(0)
        columns = groups.columns(g)
        values, present = grid.values[:, columns].T, grid.present[:, columns].T
        if (q == q[0]).all() or len(q) == 1:
            out[:, g] = windows.quantile(float(q[0]), values, present)
            continue
        for step in range(len(q)):
            budget.take(0)
            one = slice(step, step + 1)
            out[step, g] = windows.quantile(float(q[step]), values[:, one], present[:, one])[0]
    return out


def _check_count(param: Floats, op: str) -> None:
    fits = (param >= -(2.0**63)) & (param < 2.0**63)
    if not fits.all():
        raise PromQLError(f"the count of {op} must be a whole number, not {param[~fits][0]}")


def _extreme(grid: Grid, groups: ColumnGroups, param: Floats, budget: QueryBudget, *, largest: bool) -> Grid:
    """The `param[n]` largest or smallest series of each group with all their labels; NaN comes last."""
    wanted = np.trunc(param)
    kept = np.zeros(grid.present.shape, dtype=bool)
    order: list[Ints] = []
    key = np.where(np.isnan(grid.values), math.inf, -grid.values if largest else grid.values)
    rank_class = np.where(grid.present, np.isnan(grid.values), 2)
    for g in range(len(groups.labels)):
        budget.take(0)
        columns = groups.columns(g)
        ranked = np.lexsort((key[:, columns], rank_class[:, columns]), axis=1)
        chosen = np.arange(len(columns))[None, :] < wanted[:, None]
        mask = np.zeros_like(chosen)
        np.put_along_axis(mask, ranked, np.broadcast_to(chosen, ranked.shape), axis=1)
        kept[:, columns] = mask & grid.present[:, columns]
        order.append(columns[ranked[0]])
    result = Grid(grid.labels, grid.values, kept)
    # An instant query gives them in order; a range query has no order of values.
    if len(kept) == 1 and order:
        result = result.pick(np.concatenate(order))
    return result.pruned()
