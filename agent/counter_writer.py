"""Series of what is counted, said now and then: those that are not said stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kvitals.agent.series_keys import Key
from kvitals.series.types import Labels
from kvitals.series.window import SeriesGroup, Window

ROW_SECONDS = 1.0


class CounterRows:
    """The group of series. A counter begins at 0 and has its number in the next row: one that began with it would have
    no increase."""

    def __init__(self, window: Window, name: str) -> None:
        self._window = window
        self._name = name
        self._group: SeriesGroup | None = None  # once there is something to say
        self._columns: dict[Key, int] = {}
        self._due: dict[Key, float] = {}  # values of series that began with the row before
        self._last = float("-inf")

    def due(self, t: float) -> bool:
        """Whether it is time for a row."""
        return not 0 <= t - self._last < ROW_SECONDS

    def write(
        self, t: float, counts: Mapping[Key, float], gauges: Mapping[Key, float], named: Callable[[Key], Labels]
    ) -> None:
        """Add a row; series that are not said stay as they are."""
        self._last = t
        if self._group is None:
            self._group = self._window.group(self._name)
        row: dict[int, float] = {self._columns[key]: value for key, value in self._due.items() if key in self._columns}
        self._due = {}
        for key, value in (*counts.items(), *gauges.items()):
            column = self._columns.get(key)
            if column is None:
                column = self._group.column(named(key))
                if column is None:
                    continue
                self._columns[key] = column
                if key in counts:
                    self._due[key], value = value, 0.0
            row[column] = value
        values = np.fromiter(row.values(), np.float64, len(row))
        self._group.write(t, np.fromiter(row, np.intp, len(row)), values)

    def end(self, label: tuple[str, str]) -> None:
        """End all series with a label."""
        gone = [key for key in self._columns if label in key[1]]
        if self._group is not None:
            self._group.end([self._columns[key] for key in gone])
        for key in gone:
            del self._columns[key]
            self._due.pop(key, None)
