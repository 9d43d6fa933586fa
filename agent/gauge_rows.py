"""Series that are said anew as a whole now and then: what is no longer said ends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from series.types import Labels
from series.window import Group, Window


class GaugeRows:
    """A group of series in a window. It is made with the first series."""

    def __init__(self, window: Window, name: str) -> None:
        self._window = window
        self._name = name
        self._group: Group | None = None
        self._columns: dict[Labels, int] = {}

    def write(self, t: float, series: Mapping[Labels, float]) -> None:
        """These are the series at `t`, seconds since the epoch. What the window has no room for is left out."""
        if self._group is None:
            if not series:
                return
            self._group = self._window.group(self._name)
        gone = [labels for labels in self._columns if labels not in series]
        self._group.end([self._columns.pop(labels) for labels in gone])
        row: dict[int, float] = {}
        for labels, value in series.items():
            column = self._columns[labels] if labels in self._columns else self._group.column(labels)
            if column is not None:
                self._columns[labels] = column
                row[column] = value
        self._group.append(t, np.fromiter(row, np.intp, len(row)), np.fromiter(row.values(), np.float64, len(row)))
