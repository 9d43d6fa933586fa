"""Series that matchers select, of a group of the window as it was at one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvitals.series.row_blocks import Columns, RowSpan
from kvitals.series.types import (
    METRIC_NAME,
    Floats,
    Frame,
    Labels,
    Matcher,
    MatchOp,
    TooManyCellsError,
    is_stale,
)

_STRETCH = 1000  # label sets that are matched without a look at the clock

Selection = tuple[Columns | slice, list[Labels]]
Candidates = tuple[Sequence[int], Sequence[Labels | None]]


def _nothing() -> None:
    """No reason to stop."""


@dataclass
class SeriesView:
    """A group as it was at one moment. Any thread may select from it, while the group goes on to change.

    selected: the matching series, where they are known. numbers, labels: else the columns to search; a label set of
    None is a column without a series.
    times, rows: float64[T] and as many rows, of the time range; never written to again.
    """

    remember: Callable[[SeriesView], None]
    version: int
    matchers: tuple[Matcher, ...]
    selected: Selection | None
    numbers: Sequence[int]
    labels: Sequence[Labels | None]
    times: Floats
    rows: RowSpan

    def frame(self, check: Callable[[], None] = _nothing, cells: int | None = None) -> Frame | None:
        """The matching series that have a sample, or None without any.

        check: called now and then; what it raises ends the work. Raises TooManyCellsError beyond `cells` samples.
        """
        columns, labels = self.selection(check)
        if not labels or not len(self.times):
            return None
        if cells is not None and len(labels) * len(self.times) > cells:
            raise TooManyCellsError(len(labels) * len(self.times))
        values = self.rows.take(columns)
        kept = _sampled(values)
        if not kept.all():
            if not kept.any():
                return None
            values = values[:, kept]
            labels = [label for label, keep in zip(labels, kept.tolist(), strict=True) if keep]
        times = self.times[:]
        times.flags.writeable = values.flags.writeable = False
        return Frame(times, values, list(labels))

    def label_sets(self, check: Callable[[], None] = _nothing) -> list[Labels]:
        """The matching series that have a sample. Most have one in the last row, so the other rows are read of those
        alone that have none there. `check` is as for `frame`."""
        columns, labels = self.selection(check)
        if not labels or not len(self.rows):
            return []
        stale = is_stale(self.rows.last(columns))
        if not stale.any():
            return labels
        numbers = np.arange(columns.start, columns.stop) if isinstance(columns, slice) else columns
        kept = ~stale
        kept[stale] = _sampled(self.rows.take(numbers[stale]))
        return [label for label, keep in zip(labels, kept.tolist(), strict=True) if keep]

    def keep(self) -> None:
        """Remember what was found. To be called where the window is written to."""
        self.remember(self)

    def selection(self, check: Callable[[], None] = _nothing) -> Selection:
        """The columns of the matching series, and their labels. `check` is as for `frame`."""
        if self.selected is None:
            self.selected = matching(self.numbers, self.labels, self.matchers, check)
        return self.selected


def matching(
    numbers: Sequence[int],
    labels: Sequence[Labels | None],
    matchers: tuple[Matcher, ...],
    check: Callable[[], None] = _nothing,
) -> Selection:
    """Of some columns those whose labels satisfy all matchers."""
    tests = [matcher.tester() for matcher in matchers]
    found, their_labels = [], []
    for at, (number, one) in enumerate(zip(numbers, labels, strict=True)):
        if at % _STRETCH == 0:
            check()
        if one is not None and all(test(one) for test in tests):
            found.append(number)
            their_labels.append(one)
    return _run(found), their_labels


def _run(numbers: list[int]) -> Columns | slice:
    """The columns to index with: a slice, which gives a view, where they are neighbours."""
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return np.array(numbers, dtype=np.intp)


def name_of(matchers: Sequence[Matcher]) -> str | None:
    """The name that a matcher asks for."""
    for matcher in matchers:
        if matcher.op is MatchOp.EQ and matcher.name == METRIC_NAME:
            return matcher.value
    return None


def _sampled(values: Floats) -> npt.NDArray[np.bool_]:
    """True for each column of values[T, S] that has a sample."""
    stale = is_stale(values[-1])  # most series go on to the end, which spares looking at the rest
    if stale.any():
        stale = np.logical_and.reduce(is_stale(values), axis=0)
    return np.logical_not(stale)
