"""Several selections of a window, read together.

Whoever asks a window the same hundred questions every few seconds reads all of their columns at once, in one
numpy call per group and not per group and question. Which columns these are is looked up anew only after
series came, went or changed their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvitals.series.row_blocks import Columns
from kvitals.series.types import Floats, Labels, LabelSets, Matcher
from kvitals.series.window import SeriesGroup, Window


@dataclass(frozen=True, slots=True)
class PanelRows:
    """Rows of the panel's columns that are in one group. times: float64[T], seconds; values: float64[T, S].

    place: where these columns stand among the panel's.
    """

    times: Floats
    values: Floats
    place: slice


class SelectionPanel:
    """The selections `wanted` of a window. The parts' columns, one part after the other, are its columns."""

    def __init__(self, window: Window, wanted: Sequence[tuple[Matcher, ...]]) -> None:
        self._window = window
        self._wanted = wanted
        self._version = -1
        self._groups: list[tuple[SeriesGroup, Columns, slice]] = []  # with its columns and their place
        self.width = 0
        self.labels: list[LabelSets] = []
        """Of each selection, in the order of its columns. Series without a sample are among them."""
        self.columns: list[Columns] = []
        """Of each selection, the places of its series among the panel's columns."""
        self.doubled: frozenset[int] = frozenset()
        """Selections that have a series in more than one group."""

    def renew(self) -> bool:
        """Look up which columns it has, if that may have changed; whether it did. To be called before it is read."""
        if self._version == self._window.version:
            return False
        self._version = self._window.version
        self._groups, self.width = [], 0
        labels: list[list[Labels]] = [[] for _ in self._wanted]
        columns: list[list[int]] = [[] for _ in self._wanted]
        for group in self._window.groups.values():
            mine: dict[int, int] = {}  # column of the group -> place
            for i, matchers in enumerate(self._wanted):
                numbers, found = group.selected(matchers)
                labels[i] += found
                columns[i] += [mine.setdefault(number, self.width + len(mine)) for number in numbers]
            if mine:
                place = slice(self.width, self.width + len(mine))
                self._groups.append((group, np.array(list(mine), dtype=np.intp), place))
                self.width = place.stop
        self.labels = [LabelSets(one) for one in labels]
        self.columns = [np.array(one, dtype=np.intp) for one in columns]
        self.doubled = frozenset(i for i, one in enumerate(labels) if len(set(one)) < len(one))
        return True

    def read(self, start: float, end: float) -> list[PanelRows]:
        """The rows in start <= t <= end of each group that has some."""
        parts = []
        for group, columns, place in self._groups:
            times, values = group.rows_between(start, end)
            if len(times):
                parts.append(PanelRows(times, values.take(columns), place))
        return parts

    def newest(self, start: float, end: float) -> list[PanelRows]:
        """The newest row in start <= t <= end of each group that has one."""
        parts = []
        for group, columns, place in self._groups:
            times, values = group.rows_between(start, end)
            if len(times):
                parts.append(PanelRows(times[-1:], values.last(columns)[None, :], place))
        return parts
