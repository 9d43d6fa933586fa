"""What comes in: the rows that windows got since they were looked at last. It is all that happens on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvitals.series.history.event_log import Note
from kvitals.series.types import STALE, Floats, Labels
from kvitals.series.window import SeriesGroup, Window

STEP_SECONDS = 5.0
"""Rows of a group that are closer together are thinned to this."""

_CLOSE = 0.9  # of the step: a row that comes a little early counts


@dataclass(frozen=True)
class GroupRows:
    """New rows of one group: float64[T] seconds, float64[T, S], and the list of its series, the same one for as long
    as they are the same."""

    group: str
    times: Floats
    values: Floats
    labels: Sequence[Labels]


@dataclass(frozen=True)
class Tick:
    """What is written in one commit: everything until `t`, seconds since the epoch."""

    t: float
    parts: Sequence[GroupRows]
    notes: Sequence[Note] = ()


@dataclass
class _Seen:
    """How much of a group was taken."""

    group: SeriesGroup
    until: float = float("-inf")
    restarts: int = 0
    labels: Sequence[Labels] = ()


@dataclass
class RowIntake:
    """Takes the new rows of several windows. `windows`: what a window's groups are called begins with -> the window,
    which may be another one each time."""

    windows: dict[str, Callable[[], Window]]
    step: float = STEP_SECONDS
    written: dict[str, float] = field(default_factory=dict)
    """The time of the last row of groups that were filled with what was written before, by name."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _taken: float = float("-inf")

    def take(self, t: float, notes: Sequence[Note] = ()) -> Tick | None:
        """All that is new at `t`; None where it is too early for another tick and there are no notes."""
        if not notes and 0 <= t - self._taken < self.step * _CLOSE:
            return None
        self._taken = t
        return Tick(t, list(self._parts(t)), notes)

    def _parts(self, t: float) -> Iterator[GroupRows]:
        there: set[str] = set()
        for prefix, window in self.windows.items():
            for name, group in window().groups.items():
                key = prefix + name
                there.add(key)
                part = self._part(key, group)
                if part is not None:
                    yield part
        for key in [key for key in self._seen if key not in there]:
            gone = self._seen.pop(key)
            if gone.labels and t > gone.until:
                nothing = np.full((1, len(gone.labels)), STALE)
                yield GroupRows(key, np.array([t]), nothing, gone.labels)

    def _part(self, key: str, group: SeriesGroup) -> GroupRows | None:
        seen = self._seen.get(key)
        if seen is None or seen.group is not group or seen.restarts != group.restarts:
            until = self.written.pop(key, float("-inf"))
            seen = self._seen[key] = _Seen(group, until, restarts=group.restarts)
        frame = group.after(seen.until)
        if not len(frame.times):
            return None
        seen.until, seen.labels = float(frame.times[-1]), frame.labels
        kept = _apart(frame.times, self.step * _CLOSE)
        if len(kept) == len(frame.times):
            return GroupRows(key, frame.times, frame.values, frame.labels)
        return GroupRows(key, frame.times[kept], frame.values[kept], frame.labels)


def _apart(times: Floats, least: float) -> list[int]:
    """The last row, and before it those that are so many seconds before the next one that is kept."""
    kept = [len(times) - 1]
    for row in range(len(times) - 2, -1, -1):
        if times[kept[-1]] - times[row] >= least:
            kept.append(row)
    return kept[::-1]
