"""From a source's frames to what the evaluator computes on.

Times become whole milliseconds here, as in Prometheus, so that a sample on the edge of a window is inside it
whatever the rounding of seconds in a double.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvitals.series.promql.grid import Grid, Ints, QueryBudget
from kvitals.series.promql.promql_error import QueryLimitError
from kvitals.series.promql.windows import Result, SampleWindows
from kvitals.series.types import (
    STALE,
    Bools,
    Floats,
    Frame,
    Labels,
    LabelSets,
    Matcher,
    SeriesSource,
    is_stale,
    newest_rows,
)

HALF_MILLISECOND = 0.0005


@dataclass(frozen=True, slots=True)
class SeriesBlock:
    """Some series on one time axis: times int64[T] in milliseconds, values float64[T, S]."""

    times: Ints
    values: Floats
    labels: LabelSets

    def columns(self, first: int, end: int) -> SeriesBlock:
        """Some of the series."""
        return SeriesBlock(self.times, self.values[:, first:end], LabelSets(self.labels[first:end]))


def select(
    source: SeriesSource, matchers: Sequence[Matcher], start: int, end: int, budget: QueryBudget
) -> list[SeriesBlock]:
    """The series with samples in start <= t <= end (milliseconds), every series in one block only."""
    frames = source.select(matchers, start / 1000.0 - HALF_MILLISECOND, end / 1000.0 + HALF_MILLISECOND)
    blocks = []
    for frame in frames:
        budget.take(frame.values.size)
        block = _block(frame, start, end)
        if block.values.size:
            blocks.append(block)
    total = sum(len(b.labels) for b in blocks)
    if total > budget.series:
        raise QueryLimitError(
            f"a selector finds {total} series, but only {budget.series} are allowed: add matchers to it"
        )
    return blocks if len(blocks) < 2 else _unique(blocks, total)


def newest(
    source: SeriesSource, matchers: Sequence[Matcher], start: int, end: int, budget: QueryBudget
) -> tuple[Grid, Ints] | None:
    """What `instant` gives at the one reference `end`, of a source that knows its newest rows. None of any other, and
    where a series is in two places."""
    rows = newest_rows(source, matchers, start / 1000.0 - HALF_MILLISECOND, end / 1000.0 + HALF_MILLISECOND)
    if rows is None:
        return None
    if not rows:
        return empty(1), np.zeros((1, 0), dtype=np.int64)
    sampled = [round(row.time * 1000.0) for row in rows]
    labels = LabelSets(label for row in rows for label in row.labels)
    in_two_places = len(rows) > 1 and len(set(labels)) < len(labels)
    if in_two_places or len(labels) > budget.series or min(sampled) < start or max(sampled) > end:
        return None
    budget.take(len(labels))
    values = np.concatenate([row.values for row in rows])[None, :]
    times = np.repeat(np.array(sampled, dtype=np.int64), [len(row.labels) for row in rows])[None, :]
    grid = Grid(labels, values, ~is_stale(values))
    if grid.present.all():
        return grid, times
    alive = np.flatnonzero(grid.present[0])
    return grid.pick(alive), times[:, alive]


def _block(frame: Frame, start: int, end: int) -> SeriesBlock:
    times = milliseconds(frame.times)
    if len(times) and start <= times[0] and times[-1] <= end:
        return SeriesBlock(times, frame.values, LabelSets(frame.labels))
    low, high = times.searchsorted(start, "left"), times.searchsorted(end, "right")
    return SeriesBlock(times[low:high], frame.values[low:high], LabelSets(frame.labels))


def milliseconds(seconds: Floats) -> Ints:
    """Seconds as whole milliseconds."""
    rounded: Ints = np.rint(np.asarray(seconds) * 1000.0).astype(np.int64)
    return rounded


def _unique(blocks: list[SeriesBlock], total: int) -> list[SeriesBlock]:
    """Joins the parts of series that came in several frames, as when an engine's series have changed."""
    homes: dict[Labels, list[tuple[int, int]]] = {}
    if len({labels for block in blocks for labels in block.labels}) == total:
        return blocks
    for i, block in enumerate(blocks):
        for column, labels in enumerate(block.labels):
            homes.setdefault(labels, []).append((i, column))
    result = []
    for block in blocks:
        alone = [c for c, labels in enumerate(block.labels) if len(homes[labels]) == 1]
        if alone:
            kept = LabelSets(block.labels[c] for c in alone)
            result.append(SeriesBlock(block.times, block.values[:, alone], kept))
    for labels, places in homes.items():
        if len(places) > 1:
            result.append(_joined(labels, [(blocks[i].times, blocks[i].values[:, c]) for i, c in places]))
    return result


def _joined(labels: Labels, parts: list[tuple[Ints, Floats]]) -> SeriesBlock:
    """One series from several pieces; of two samples at one time the later piece's counts."""
    times = np.concatenate([t for t, _ in parts])
    values = np.concatenate([v for _, v in parts])
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    keep = np.append(times[1:] != times[:-1], True)
    return SeriesBlock(times[keep], values[keep][:, None], LabelSets((labels,)))


def instant(blocks: list[SeriesBlock], references: Ints, lookback: int) -> tuple[Grid, Ints]:
    """The newest sample of each series in [reference - lookback, reference], and its time in milliseconds.

    A series whose newest cell there is `STALE` has no value: it ended, or was not sampled.
    """
    labels = LabelSets(one for block in blocks for one in block.labels)
    values = np.empty((len(references), len(labels)))
    sampled: list[Ints] = []  # by block: int64[N]
    stale: list[Bools] = []
    left = 0
    for block in blocks:
        place = slice(left, left + len(block.labels))
        rows = block.times.searchsorted(references, "right") - 1  # row -1 is the last row; masked out just below
        at = block.times[rows]
        block.values.take(rows, axis=0, out=values[:, place], mode="wrap")
        sampled.append(at)
        stale.append((rows < 0) | (at < references - lookback))
        left = place.stop
    present = ~is_stale(values)
    left = 0
    for block, old in zip(blocks, stale, strict=True):
        if old.any():
            present[old, left : left + len(block.labels)] = False
        left += len(block.labels)
    grid = Grid(labels, values, present)
    alive = np.flatnonzero(present.any(axis=0))
    if len(alive) < len(labels):
        grid = grid.pick(alive)
    return grid, _times(sampled, [len(block.labels) for block in blocks], alive, len(references))


def _times(sampled: list[Ints], sizes: list[int], alive: Ints, steps: int) -> Ints:
    """By step and series when it was sampled: int64[N, S], a view where all were sampled together."""
    if not len(alive):
        return np.zeros((steps, 0), dtype=np.int64)
    of = np.repeat(np.arange(len(sampled)), sizes)[alive]
    if of[0] == of[-1]:
        return np.broadcast_to(sampled[of[0]][:, None], (steps, len(alive)))
    found: Ints = np.stack(sampled, axis=1)[:, of]
    return found


def in_parts(blocks: Sequence[SeriesBlock], most: int) -> Iterator[list[SeriesBlock]]:
    """The blocks, so many series at a time."""
    part: list[SeriesBlock] = []
    room = most
    for block in blocks:
        for first in range(0, len(block.labels), most):
            some = block if len(block.labels) <= most else block.columns(first, first + most)
            if part and len(some.labels) > room:
                yield part
                part, room = [], most
            part.append(some)
            room -= len(some.labels)
    if part:
        yield part


def side_by_side(grids: Sequence[Grid], steps: int) -> Grid:
    """One grid of several that have no series in common."""
    if len(grids) < 2:
        return grids[0] if grids else empty(steps)
    labels = LabelSets(one for grid in grids for one in grid.labels)
    return Grid(labels, np.hstack([grid.values for grid in grids]), np.hstack([grid.present for grid in grids]))


def empty(steps: int) -> Grid:
    """No series, at so many steps."""
    return Grid(LabelSets(), np.zeros((steps, 0)), np.zeros((steps, 0), dtype=bool))


@dataclass(frozen=True, slots=True)
class SelectedWindows:
    """The windows of a range vector: several, where series do not share their times."""

    labels: LabelSets
    windows: list[SampleWindows]

    def join(self, results: Sequence[Result], steps: int) -> Grid:
        """One grid of the results of a function over each of the windows."""
        if not results:
            return empty(steps)
        if len(results) == 1:
            return Grid(self.labels, *results[0])
        return Grid(self.labels, np.hstack([r[0] for r in results]), np.hstack([r[1] for r in results]))


def ranges(blocks: list[SeriesBlock], ends: Ints, length: int, budget: QueryBudget) -> SelectedWindows:
    """The windows [end - length, end], both included, over all of the series."""
    labels = LabelSets(x for block in blocks for x in block.labels)
    if len(ends) == 1 and len(blocks) > 1:
        # One step over many small frames: stacked into one, so that numpy is called once and not per frame.
        times, values, stacked = _stack(blocks)
        low, high = np.array([0]), np.array([len(values)])
        return SelectedWindows(labels, [SampleWindows(times, values, stacked, low, high, ends, length, budget)])
    windows = []
    for block in blocks:
        low = block.times.searchsorted(ends - length, "left")
        high = block.times.searchsorted(ends, "right")
        present = _samples(block.values)
        windows.append(SampleWindows(block.times[:, None], block.values, present, low, high, ends, length, budget))
    return SelectedWindows(labels, windows)


def _samples(values: Floats) -> Bools | None:
    """Which cells hold samples, None for all of them."""
    stale = is_stale(values)
    return ~stale if stale.any() else None


def _stack(blocks: list[SeriesBlock]) -> tuple[Ints, Floats, Bools | None]:
    """All blocks side by side, shorter ones filled up with `STALE` at the top: times, values, samples."""
    height = max(len(b.times) for b in blocks)
    if all(len(b.times) == height for b in blocks):
        times = np.repeat(np.column_stack([b.times for b in blocks]), [len(b.labels) for b in blocks], axis=1)
        values = np.hstack([b.values for b in blocks])
        return times, values, _samples(values)
    width = sum(len(b.labels) for b in blocks)
    times = np.empty((height, width), dtype=np.int64)
    values = np.empty((height, width))
    left = 0
    for block in blocks:
        right, top = left + len(block.labels), height - len(block.times)
        times[:top, left:right] = block.times[0]
        times[top:, left:right] = block.times[:, None]
        values[:top, left:right] = STALE
        values[top:, left:right] = block.values
        left = right
    return times, values, _samples(values)


def select_recorded(steps: Ints, grid: Grid, ends: Ints, length: int, budget: QueryBudget) -> SelectedWindows:
    """The windows [end - length, end] over the values of an expression that was evaluated at `steps`."""
    grid = grid.pruned()
    if not grid.labels:
        return SelectedWindows(LabelSets(), [])
    low = np.searchsorted(steps, ends - length, "left")
    high = np.searchsorted(steps, ends, "right")
    present = None if grid.present.all() else grid.present
    return SelectedWindows(
        grid.labels, [SampleWindows(steps[:, None], grid.values, present, low, high, ends, length, budget)]
    )
