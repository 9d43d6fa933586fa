"""Series that are said anew as a whole now and then: what is no longer said ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import numpy as np

from kvitals.series.types import Labels
from kvitals.series.window import SeriesGroup, Window

K = TypeVar("K", bound=Hashable)


class KeyedRows(Generic[K]):
    """A group of series in a window, told apart by keys. It is made with the first series."""

    def __init__(self, window: Window, name: str, named: Callable[[K], Labels]) -> None:
        """`named` gives the labels of a key; it is asked when a series begins."""
        self._window = window
        self._name = name
        self._named = named
        self._group: SeriesGroup | None = None
        self._columns: dict[K, int] = {}

    def write(self, t: float, series: Mapping[K, float]) -> None:
        """These are the series at `t`, seconds since the epoch. What the window has no room for is left out."""
        if self._group is None:
            if not series:
                return
            self._group = self._window.group(self._name)
        gone = [key for key in self._columns if key not in series]
        self._group.end([self._columns.pop(key) for key in gone])
        row: dict[int, float] = {}
        for key, value in series.items():
            column = self._columns[key] if key in self._columns else self._group.column(self._named(key))
            if column is not None:
                self._columns[key] = column
                row[column] = value
        self._group.append(t, np.fromiter(row, np.intp, len(row)), np.fromiter(row.values(), np.float64, len(row)))


class GaugeRows(KeyedRows[Labels]):
    """The same of series that are named by their labels."""

    def __init__(self, window: Window, name: str) -> None:
        super().__init__(window, name, lambda labels: labels)
