"""A window and its history, read as one source without a seam.

From some time on the window has every row there was; before it the history is asked. Where the two meet, each has what
the other has not, so that nothing is told twice and nothing is left out but what could not be written. The history is
asked for a little more, since a series that ended where they meet is in the history alone, and so is its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from kvitals.series.history.schema import HistoryError
from kvitals.series.promql.grid import QueryBudget
from kvitals.series.types import STALE, Floats, Frame, Labels, Matcher, SeriesSource

OVERLAP_SECONDS = 600.0


class Live(Protocol):
    """What is in memory."""

    def recent(self, matchers: Sequence[Matcher], start: float, end: float) -> tuple[list[Frame], float]:
        """What `select` finds, and the time from which on that is all there was."""
        ...


class StoredPast(SeriesSource, Protocol):
    """What is on disk."""

    def select(
        self,
        matchers: Sequence[Matcher],
        start: float,
        end: float,
        cells: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> list[Frame]:
        """As of any source, within `cells` cells (PromQLError beyond). check: called now and then; what it raises ends
        the selection."""
        ...

    def labels(self, matchers: Sequence[Matcher], start: float, end: float) -> set[Labels]:
        """The matching series of some time, about."""
        ...


class FederatedReader:
    """Reads `live` from where that is whole, and `past` before it. Where the past can not be read there is none:
    whoever writes it says why."""

    def __init__(self, live: Live, past: StoredPast, budget: QueryBudget | None = None) -> None:
        """budget: what may still be read. Selections spend it: they are in memory together until the query ends."""
        self._live = live
        self._past = past
        self._budget = budget

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        recent, since = self._live.recent(matchers, start, end)
        frames = recent if start >= since else self._with_past(recent, since, matchers, start, end)
        if self._budget is not None:
            self._budget.take(_cells(frames))
        return frames

    def _with_past(
        self, recent: list[Frame], since: float, matchers: Sequence[Matcher], start: float, end: float
    ) -> list[Frame]:
        """What the window has from `since` on, and before it what is on disk."""
        later = [found for frame in recent if (found := _since(frame, since)) is not None]
        until = min(end, since + OVERLAP_SECONDS)
        try:
            if self._budget is None:
                past = self._past.select(matchers, start, until)
            else:
                budget = self._budget
                past = self._past.select(matchers, start, until, budget.samples - _cells(later), lambda: budget.take(0))
        except HistoryError:
            return recent
        return join(past, later)


def _cells(frames: Sequence[Frame]) -> int:
    return sum(frame.values.size for frame in frames)


def join(earlier: Sequence[Frame], later: Sequence[Frame]) -> list[Frame]:
    """Frames of which those in `later` go on with some of `earlier`; which do and have series in common become one
    frame. What both say of the same time is taken from `later`."""
    home = {labels: i for i, frame in enumerate(later) for labels in frame.labels}
    before: dict[int, list[Frame]] = {}
    found: list[Frame] = []
    for frame in earlier:
        homes = {home[labels] for labels in frame.labels if labels in home}
        if len(homes) == 1:
            before.setdefault(homes.pop(), []).append(frame)
        else:
            found.append(frame)  # of none, or of several: whoever reads it puts the parts of a series together
    for i, frame in enumerate(later):
        found += _in_a_row([*before.get(i, ()), frame])
    return found


def _in_a_row(frames: list[Frame]) -> list[Frame]:
    """Frames of which the last one comes last, as one; where the others are not one after the other, as they are."""
    *earlier, last = frames
    first = round(float(last.times[0]) * 1000)
    cut = [_before(frame, first) for frame in sorted(earlier, key=lambda f: float(f.times[0]))]
    parts = [*(frame for frame in cut if len(frame.times)), last]
    if len(parts) == 1 or any(a.times[-1] >= b.times[0] for a, b in pairwise(parts)):
        return parts
    labels: dict[Labels, int] = {}
    for frame in parts:
        for one in frame.labels:
            labels.setdefault(one, len(labels))
    times = np.concatenate([frame.times for frame in parts])
    values: Floats = np.full((len(times), len(labels)), STALE)
    top = 0
    for frame in parts:
        bottom = top + len(frame.times)
        values[top:bottom, [labels[one] for one in frame.labels]] = frame.values
        top = bottom
    return [Frame(times, values, list(labels))]


def _before(frame: Frame, first: int) -> Frame:
    """The rows before a time in milliseconds."""
    rows = int(np.rint(frame.times * 1000.0).searchsorted(first, "left"))
    return Frame(frame.times[:rows], frame.values[:rows], frame.labels)


def _since(frame: Frame, since: float) -> Frame | None:
    low = int(frame.times.searchsorted(since, "left"))
    if low == 0:
        return frame
    return Frame(frame.times[low:], frame.values[low:], frame.labels) if low < len(frame.times) else None
