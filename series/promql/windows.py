"""Functions of range vectors: the samples of many series in the windows of many steps.

All of them take `SampleWindows` and return `(values, present)`, both [N, S]. Formulas, thresholds and the
treatment of NaN and Inf are those of Prometheus 2.42 (promql/functions.go); means and deviations are not
Kahan-compensated but taken around the first sample, which keeps a constant series exactly constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvitals.series.promql.grid import Ints, QueryBudget
from kvitals.series.types import Bools, Floats

Result = tuple[Floats, Bools]

MAX_CELLS = 100_000
"""Of windows that are laid side by side: less than a megabyte."""

PART_CELLS = 100_000
"""Of the samples that a function is given at a time: some 6 MB with what it makes of them."""


@dataclass
class SampleWindows:
    """The samples that range functions look at.

    times: int64[T, S] or [T, 1], milliseconds, not falling down a column.
    values: float64[T, S].
    present: bool[T, S], or None where every cell holds a sample.
    low, high: int64[N]; the window of step n is the rows low[n] <= r < high[n].
    ends: int64[N], where each window ends, milliseconds; it begins `length` before, both included.
    """

    times: Ints
    values: Floats
    present: Bools | None
    low: Ints
    high: Ints
    ends: Ints
    length: int
    budget: QueryBudget

    @property
    def seconds(self) -> float:
        return self.length / 1000.0

    def in_parts(self) -> Iterator[SampleWindows]:
        """The same windows over some of the series at a time: functions make several arrays of the size of `values`."""
        height, width = self.values.shape
        step = max(PART_CELLS // max(height, 1), 1)
        if step >= width:
            yield self
            return
        for first in range(0, width, step):
            some = slice(first, first + step)
            yield SampleWindows(
                self.times if self.times.shape[1] == 1 else self.times[:, some],
                self.values[:, some],
                None if self.present is None else self.present[:, some],
                self.low,
                self.high,
                self.ends,
                self.length,
                self.budget,
            )

    @cached_property
    def columns(self) -> Ints:
        """[1, S]: the columns, to index with beside rows of shape [N, S] or [N, 1]."""
        return np.arange(self.values.shape[1])[None, :]

    @cached_property
    def _before(self) -> Ints:
        """[T, S]: the last row at or before each row that holds a sample, -1 where none does."""
        assert self.present is not None
        rows = np.arange(len(self.values))[:, None]
        return np.maximum.accumulate(np.where(self.present, rows, -1), axis=0)

    @cached_property
    def _after(self) -> Ints:
        """[T, S]: the first row at or after each row that holds a sample, T where none does."""
        assert self.present is not None
        size = len(self.values)
        rows = np.arange(size)[:, None]
        return np.minimum.accumulate(np.where(self.present, rows, size)[::-1], axis=0)[::-1]

    @cached_property
    def count(self) -> Ints:
        """[N, S]: how many samples are in each window."""
        if self.present is None:
            return np.broadcast_to((self.high - self.low)[:, None], (len(self.low), self.values.shape[1]))
        return self.between(self.present)

    def between(self, marks: Bools) -> Ints:
        """[N, S]: how many of `marks` [T, S] lie in each window."""
        if len(self.low) == 1:
            counted: Ints = marks[self.low[0] : self.high[0]].sum(axis=0, dtype=np.int64)[None, :]
            return counted
        sums = np.zeros((len(marks) + 1, marks.shape[1]), dtype=np.int64)
        np.cumsum(marks, axis=0, out=sums[1:])
        difference: Ints = sums[self.high] - sums[self.low]
        return difference

    @cached_property
    def first(self) -> Ints:
        """[N, S] or [N, 1]: the row of each window's first sample; meaningless where `count` is 0."""
        rows = np.minimum(self.low, len(self.values) - 1)
        return rows[:, None] if self.present is None else np.minimum(self._after[rows], len(self.values) - 1)

    @cached_property
    def last(self) -> Ints:
        """[N, S] or [N, 1]: the row of each window's last sample; meaningless where `count` is 0."""
        rows = np.maximum(self.high - 1, 0)
        return rows[:, None] if self.present is None else np.maximum(self._before[rows], 0)

    @cached_property
    def last_but_one(self) -> Ints:
        """[N, S] or [N, 1]: meaningless where `count` is below 2."""
        rows = np.maximum(self.last - 1, 0)
        if self.present is None:
            return rows
        return np.maximum(self._before[rows, self.columns], 0)

    def value(self, rows: Ints) -> Floats:
        """[N, S]: the values at `rows`."""
        if rows.shape[1] == 1:
            picked: Floats = self.values[rows[:, 0]]
            return picked
        found: Floats = self.values[rows, self.columns]
        return found

    def time(self, rows: Ints) -> Ints:
        """[N, S] or [N, 1]: the times at `rows`, milliseconds."""
        if self.times.shape[1] == 1:
            picked: Ints = self.times[:, 0][rows]
            return picked
        if rows.shape[1] == 1:
            whole: Ints = self.times[rows[:, 0]]
            return whole
        found: Ints = self.times[rows, self.columns]
        return found

    @cached_property
    def previous(self) -> Floats:
        """[T, S]: the sample before each cell; NaN where there is none, so that no comparison holds."""
        result = np.full_like(self.values, np.nan)
        if self.present is None:
            result[1:] = self.values[:-1]
            return result
        before = self._before[:-1]
        shifted = self.values[np.maximum(before, 0), self.columns]
        result[1:] = np.where(before >= 0, shifted, np.nan)
        return result

    @cached_property
    def drops(self) -> Bools:
        """[T, S]: where a sample is below the one before it, which for a counter is a reset."""
        below: Bools = self.values < self.previous
        return below if self.present is None else below & self.present

    def inside(self, marks: Bools) -> Floats:
        """[N, S]: how many of `marks` lie in each window after its first sample."""
        if not marks.any():
            return np.zeros((len(self.low), self.values.shape[1]))
        sums = np.cumsum(marks, axis=0, dtype=np.float64)
        within: Floats = sums[self.last, self.columns] - sums[self.first, self.columns]
        return within

    def blocks(self) -> Iterator[tuple[int, Floats, Bools | None]]:
        """For every window that is not empty: its step, its values [R, S] and which of them are samples."""
        for step, (low, high) in enumerate(zip(self.low.tolist(), self.high.tolist(), strict=True)):
            if low < high:
                self.budget.take(0)  # the cells were paid for when selected; only the time counts here
                yield step, self.values[low:high], None if self.present is None else self.present[low:high]

    def over_blocks(self, function: Callable[[Floats, Bools | None], Floats]) -> Result:
        """`function` of every window; it gets the values and the mask and returns one value a series."""
        out = np.full((len(self.low), self.values.shape[1]), np.nan)
        for step, block, mask in self.blocks():
            out[step] = function(block, mask)
        return out, self.count > 0


def _extrapolated(w: SampleWindows, *, counter: bool, per_second: bool) -> Result:
    """extrapolatedRate of Prometheus: the change between first and last sample, stretched to the window."""
    first, last, count = w.first, w.last, w.count
    start_value = w.value(first)
    change = w.value(last) - start_value
    if counter and w.drops.any():
        change = change + _lost_in_resets(w)
    start, end = w.time(first), w.time(last)
    sampled = (end - start) / 1000.0
    spacing = sampled / (count - 1)
    to_start = (start - (w.ends - w.length)[:, None]) / 1000.0
    to_end = (w.ends[:, None] - end) / 1000.0
    if counter:
        # A counter starts at zero at the earliest, so it is not extrapolated beyond where it was zero.
        to_zero = sampled * (start_value / change)
        to_start = np.where((change > 0) & (start_value >= 0) & (to_zero < to_start), to_zero, to_start)
    threshold = spacing * 1.1
    stretched = (
        sampled
        + np.where(to_start < threshold, to_start, spacing / 2)
        + np.where(to_end < threshold, to_end, spacing / 2)
    )
    factor = stretched / sampled
    return change * (factor / w.seconds if per_second else factor), count >= 2


def _lost_in_resets(w: SampleWindows) -> Floats:
    """[N, S]: the sum of the values that the counters had right before they fell."""
    lost = np.where(w.drops, w.previous, 0.0)
    if len(w.low) == 1 and w.present is None:
        # The first row may fall against a row before the window.
        total: Floats = column_sums(lost[w.low[0] + 1 : w.high[0]])[None, :]
        return total
    sums = np.cumsum(lost, axis=0)
    if np.isfinite(sums[-1]).all():
        difference: Floats = sums[w.last, w.columns] - sums[w.first, w.columns]
        return difference
    out = np.zeros((len(w.low), lost.shape[1]))
    for step, (low, high) in enumerate(zip(w.low.tolist(), w.high.tolist(), strict=True)):
        rows = np.arange(low, high)[:, None]
        out[step] = column_sums(np.where(rows > w.first[step], lost[low:high], 0.0))
    return out


def rate(w: SampleWindows) -> Result:
    return _extrapolated(w, counter=True, per_second=True)


def increase(w: SampleWindows) -> Result:
    return _extrapolated(w, counter=True, per_second=False)


def delta(w: SampleWindows) -> Result:
    return _extrapolated(w, counter=False, per_second=False)


def _last_two(w: SampleWindows, *, counter: bool) -> Result:
    last, before = w.value(w.last), w.value(w.last_but_one)
    apart = w.time(w.last) - w.time(w.last_but_one)
    change = last - before
    if counter:
        change = np.where(last < before, last, change) / (apart / 1000.0)
    return change, (w.count >= 2) & (apart != 0)


def irate(w: SampleWindows) -> Result:
    return _last_two(w, counter=True)


def idelta(w: SampleWindows) -> Result:
    return _last_two(w, counter=False)


def resets(w: SampleWindows) -> Result:
    return w.inside(w.drops), w.count > 0


def changes(w: SampleWindows) -> Result:
    differs = (w.values != w.previous) & ~(np.isnan(w.values) & np.isnan(w.previous))
    return w.inside(differs if w.present is None else differs & w.present), w.count > 0


def last_over_time(w: SampleWindows) -> Result:
    return w.value(w.last), w.count > 0


def count_over_time(w: SampleWindows) -> Result:
    return w.count.astype(np.float64), w.count > 0


def present_over_time(w: SampleWindows) -> Result:
    return np.ones(w.count.shape), w.count > 0


def sum_over_time(w: SampleWindows) -> Result:
    return w.over_blocks(lambda block, mask: column_sums(fill_masked(block, mask, 0.0)))


def min_over_time(w: SampleWindows) -> Result:
    return w.over_blocks(lambda block, mask: np.fmin.reduce(fill_masked(block, mask, np.nan), axis=0))


def max_over_time(w: SampleWindows) -> Result:
    return w.over_blocks(lambda block, mask: np.fmax.reduce(fill_masked(block, mask, np.nan), axis=0))


def avg_over_time(w: SampleWindows) -> Result:
    return w.over_blocks(mean)


def stddev_over_time(w: SampleWindows) -> Result:
    return w.over_blocks(stddev)


def quantile_over_time(w: SampleWindows, q: Floats) -> Result:
    out = np.full((len(w.low), w.values.shape[1]), np.nan)
    for step, block, mask in w.blocks():
        out[step] = quantile(float(q[step]), block, mask)
    return out, w.count > 0


def deriv(w: SampleWindows) -> Result:
    slope, _ = _regression(w, w.ends)
    return slope, w.count >= 2


def predict_linear(w: SampleWindows, evaluated_at: Ints, seconds: Floats) -> Result:
    """`evaluated_at` is in milliseconds: the line's value there, and `seconds` on."""
    slope, intercept = _regression(w, evaluated_at)
    return slope * seconds[:, None] + intercept, w.count >= 2


def _regression(w: SampleWindows, origin: Ints) -> Result:
    """Slope per second and value at `origin` [N] of the least-squares line through each window."""
    slopes = np.full((len(w.low), w.values.shape[1]), np.nan)
    values = np.full_like(slopes, np.nan)
    steps = np.flatnonzero(w.low < w.high)
    cells = int((w.high - w.low).max(initial=1)) * w.values.shape[1]
    portion = max(MAX_CELLS // max(cells, 1), 1)
    for first in range(0, len(steps), portion):
        w.budget.take(0)
        some = steps[first : first + portion]
        slope, value = _line(*_side_by_side(w, some, origin[some]))
        slopes[some], values[some] = slope.reshape(len(some), -1), value.reshape(len(some), -1)
    return slopes, values


def _side_by_side(w: SampleWindows, steps: Ints, origin: Ints) -> tuple[Floats, Floats, Bools | None]:
    """The windows of some steps as columns of one block, for all of which one calculation is one call: when their
    samples are, in seconds from each step's `origin`, the samples, and which of the cells hold one."""
    rows = w.low[steps] + np.arange((w.high - w.low)[steps].max())[:, None]
    mask = (rows < w.high[steps])[:, :, None]
    rows = np.minimum(rows, len(w.values) - 1)
    if w.present is not None:
        mask = mask & w.present[rows]
    values = w.values[rows]
    seconds = np.broadcast_to((w.times[rows] - origin[:, None]) / 1000.0, values.shape)
    flat = len(rows), len(steps) * values.shape[2]
    whole = bool(mask.all())
    return (
        seconds.reshape(flat),
        values.reshape(flat),
        None if whole else np.broadcast_to(mask, values.shape).reshape(flat),
    )


def _line(x: Floats, y: Floats, mask: Bools | None) -> tuple[Floats, Floats]:
    mean_x, mean_y = mean(x, mask), mean(y, mask)
    dx, dy = fill_masked(x - mean_x, mask, 0.0), fill_masked(y - mean_y, mask, 0.0)
    slope = column_sums(dx * dy) / column_sums(dx * dx)
    first = first_value(y, mask)
    constant = (fill_masked(y - first, mask, 0.0) == 0.0).all(axis=0)
    intercept = mean_y - slope * mean_x
    return np.where(constant, 0.0, slope), np.where(constant, first, intercept)


def fill_masked(block: Floats, mask: Bools | None, value: float) -> Floats:
    """`block` with `value` where the mask is False."""
    return block if mask is None else np.where(mask, block, value)


def column_sums(block: Floats) -> Floats:
    """[S]: the sum of each column of [R, S], added up row by row. numpy sums one column alone in another order, and a
    series would have another last digit alone than beside others."""
    sums: Floats = block.cumsum(axis=0)[-1] if block.shape[1] == 1 and len(block) else block.sum(axis=0)
    return sums


def counts(block: Floats, mask: Bools | None) -> Ints:
    """[S]: samples in each column, at least 1 so that it can be divided by."""
    if mask is None:
        return np.full(block.shape[1], max(len(block), 1), dtype=np.int64)
    counted: Ints = np.maximum(mask.sum(axis=0), 1)
    return counted


def first_value(block: Floats, mask: Bools | None) -> Floats:
    """[S]: the first sample of each column."""
    if mask is None:
        first: Floats = block[0]
        return first
    picked: Floats = block[mask.argmax(axis=0), np.arange(block.shape[1])]
    return picked


def mean(block: Floats, mask: Bools | None) -> Floats:
    """[S]: the mean of each column of [R, S]."""
    n = counts(block, mask)
    base = first_value(block, mask)
    # Around the first sample: exact for a constant series, and large counters lose no digits.
    result: Floats = base + column_sums(fill_masked(block - base, mask, 0.0)) / n
    odd = ~np.isfinite(result)
    if odd.any():
        # Inf - Inf above; dividing first, as Prometheus does, also keeps huge values from overflowing.
        result[odd] = column_sums(fill_masked(block, mask, 0.0) / n)[odd]
    return result


def stddev(block: Floats, mask: Bools | None) -> Floats:
    """[S]: the population standard deviation of each column of [R, S]."""
    deviation = fill_masked(block - mean(block, mask), mask, 0.0)
    result = np.sqrt(column_sums(deviation * deviation) / counts(block, mask))
    # A sum of squares that overflows is NaN in Prometheus, whose compensation is then Inf - Inf.
    return np.where(np.isinf(result), np.nan, result)


def quantile(q: float, block: Floats, mask: Bools | None) -> Floats:
    """[S]: the q-quantile of each column of [R, S]; NaN sorts lowest."""
    columns = np.arange(block.shape[1])
    if np.isnan(q) or q < 0 or q > 1:
        return np.full(len(columns), np.nan if np.isnan(q) else -np.inf if q < 0 else np.inf)
    n = counts(block, mask)
    ordered = np.sort(fill_masked(block, mask, np.nan), axis=0)  # numpy sorts NaN, and so the absent, highest
    nans = n - np.count_nonzero(~np.isnan(ordered), axis=0)
    rank = q * (n - 1)
    low = np.maximum(0, np.floor(rank)).astype(np.int64)
    high = np.minimum(n - 1, low + 1)
    weight = rank - np.floor(rank)

    def at(index: Ints) -> Floats:
        return np.where(index < nans, np.nan, ordered[np.maximum(index - nans, 0), columns])

    result: Floats = at(low) * (1 - weight) + at(high) * weight
    return result


RANGE_FUNCTIONS: dict[str, Callable[[SampleWindows], Result]] = {
    f.__name__: f
    for f in (
        rate, increase, delta, irate, idelta, resets, changes, deriv, last_over_time, count_over_time,
        present_over_time, sum_over_time, min_over_time, max_over_time, avg_over_time, stddev_over_time,
    )
}  # fmt: skip
"""Those that take a range vector and nothing else."""
