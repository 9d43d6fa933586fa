"""histogram_quantile over classic buckets, as in Prometheus 2.42 (promql/quantile.go)."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np

from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.promql.grid import ColumnGroups, Grid, Ints, QueryBudget, group_by, layout, regroup
from kvitals.series.types import METRIC_NAME, Floats, LabelSets

LE = "le"


@dataclass(frozen=True, slots=True)
class _Shape:
    """Histograms with equally many buckets. columns: int64[G, B] by rising bound; bounds: float64[G, B].

    of: int64[G], the histogram's place among all. plain: no bound twice and the last is +Inf.
    """

    of: Ints
    columns: Ints
    bounds: Floats
    plain: bool


@dataclass(frozen=True, slots=True)
class _Histograms:
    """How the columns of a vector make up histograms. names: the groups of histograms with equal labels."""

    labels: LabelSets
    shapes: list[_Shape]
    names: ColumnGroups


def quantile(q: Floats, grid: Grid, budget: QueryBudget) -> Grid:
    """The q[n]-quantile of every histogram in `grid` at every step n.

    Series without a usable `le` are ignored. Raises PromQLError when the budget's time has run out.
    """
    found = layout("histogram", grid.labels, lambda: _find(grid.labels))
    steps, count = len(q), len(found.labels)
    values = np.full((steps, count), np.nan)
    present = np.zeros((steps, count), dtype=bool)
    for shape in found.shapes:
        cells, here = grid.values[:, shape.columns], grid.present[:, shape.columns]
        complete = here.all(axis=2) & np.isfinite(cells).all(axis=2)
        present[:, shape.of] = here.any(axis=2)
        if shape.plain:
            values[:, shape.of] = _interpolated(q, cells, shape.bounds)
            odd = here.any(axis=2) & ~complete
        else:
            odd = here.any(axis=2)
        for step, g in np.argwhere(odd).tolist():
            budget.take(0)
            mask = here[step, g]
            values[step, shape.of[g]] = bucket_quantile(
                float(q[step]), shape.bounds[g][mask].tolist(), cells[step, g][mask].tolist()
            )
    return regroup(Grid(found.labels, values, present), found.names)


def _find(labels: LabelSets) -> _Histograms:
    buckets: dict[object, list[tuple[float, int]]] = {}
    for column, one in enumerate(labels):
        bound = bucket_bound(one.get(LE, ""))
        if bound is not None:
            buckets.setdefault(one.drop(LE), []).append((bound, column))
    keys = list(buckets)
    shapes = []
    sizes = np.array([len(buckets[k]) for k in keys], dtype=np.int64)
    for size in sorted(set(sizes.tolist())):
        members = np.flatnonzero(sizes == size)
        ordered = [sorted(buckets[keys[i]]) for i in members.tolist()]
        columns = np.array([[c for _, c in one] for one in ordered], dtype=np.int64)
        bounds = np.array([[b for b, _ in one] for one in ordered])
        regular = (np.diff(bounds, axis=1) > 0).all(axis=1) & np.isposinf(bounds[:, -1]) & (size > 1)
        for plain in (True, False):
            rows = np.flatnonzero(regular == plain)
            if len(rows):
                shapes.append(_Shape(members[rows], columns[rows], bounds[rows], plain))
    histograms = LabelSets(labels[buckets[k][0][1]].drop(LE) for k in keys)
    names = group_by([x.drop(METRIC_NAME) for x in histograms])
    return _Histograms(histograms, shapes, names)


def _interpolated(q: Floats, cells: Floats, bounds: Floats) -> Floats:
    """[N, G] from counts [N, G, B] and rising bounds [G, B] that end in +Inf."""
    counts = np.maximum.accumulate(cells, axis=2)
    size = bounds.shape[1]
    total = counts[:, :, -1]
    rank = q[:, None] * total
    at = (counts[:, :, :-1] < rank[:, :, None]).sum(axis=2)  # the first bucket that reaches the rank
    before = np.maximum(at - 1, 0)
    step, group = np.arange(len(q))[:, None], np.arange(len(bounds))[None, :]
    count = counts[step, group, at]
    below = np.where(at > 0, counts[step, group, before], 0.0)
    start = np.where(at > 0, bounds[group, before], 0.0)
    end = bounds[group, at]
    result = start + (end - start) * ((rank - below) / (count - below))
    # In the first bucket with a bound of 0 or less there is nothing to interpolate from, in the last no end.
    result = np.where((at == 0) & (end <= 0), end, result)
    result = np.where(at == size - 1, bounds[:, -2][None, :], result)
    result = np.where(total == 0, np.nan, result)
    outside = np.where(q < 0, -np.inf, np.where(q > 1, np.inf, np.nan))[:, None]
    inside = ((q >= 0) & (q <= 1))[:, None]
    return np.where(inside, result, outside)


def bucket_quantile(q: float, bounds: list[float], counts: list[float]) -> float:
    """bucketQuantile of Prometheus, for a histogram that is not regular."""
    if math.isnan(q):
        return math.nan
    if not 0 <= q <= 1:
        return -math.inf if q < 0 else math.inf
    if bounds[-1] != math.inf:
        return math.nan
    bounds, counts = _coalesced(bounds, counts)
    top = counts[0]
    for i in range(1, len(counts)):
        if counts[i] > top:
            top = counts[i]
        elif counts[i] < top:
            counts[i] = top
    if len(bounds) < 2 or counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    at = bisect.bisect_left(range(len(bounds) - 1), True, key=lambda i: counts[i] >= rank)
    if at == len(bounds) - 1:
        return bounds[-2]
    if at == 0 and bounds[0] <= 0:
        return bounds[0]
    start, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    part = np.float64(rank - below) / np.float64(counts[at] - below)
    return float(start + (bounds[at] - start) * part)


def _coalesced(bounds: list[float], counts: list[float]) -> tuple[list[float], list[float]]:
    """Buckets of equal bounds added up."""
    merged: dict[float, float] = {}
    for bound, count in zip(bounds, counts, strict=True):
        merged[bound] = merged[bound] + count if bound in merged else count
    return list(merged), list(merged.values())
