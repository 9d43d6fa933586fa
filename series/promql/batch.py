"""The selections of many expressions, read at once.

A hundred expressions that are evaluated every few seconds over a window read some two hundred selections of a few
series each. One by one, what each costs is the calls and not the numbers. So functions of range vectors are
computed for all selections of one length side by side, and instant selectors of one offset are looked up together; an
expression then finds its part in what is shared at that moment. The values are those that each would have by itself.

What can not be had that way is left out, and is evaluated by itself: selections from other sources than a window,
those that have one series in two groups or more series than a query may have, and what is inside of subqueries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kvitals.series.panel import PanelRows, SelectionPanel
from kvitals.series.promql import windows
from kvitals.series.promql.grid import Grid, Ints, QueryBudget, by_nameless, the_one, without_names
from kvitals.series.promql.nodes import Call, Expr, Range, Selector, Subquery
from kvitals.series.promql.promql_error import PromQLError
from kvitals.series.promql.selection import HALF_MILLISECOND, SelectedWindows, empty, milliseconds
from kvitals.series.promql.windows import RANGE_FUNCTIONS, SampleWindows
from kvitals.series.row_blocks import Columns
from kvitals.series.types import STALE, Bools, Floats, LabelSets, is_stale
from kvitals.series.window import Window

MAX_CELLS = 1_000_000
"""Where selections are this large together the numbers cost more than the calls, and take memory all at once."""

Shared = dict[Expr, Grid | SelectedWindows]
"""What was computed at the same steps over the same source, by expression."""


class ExpressionBatch:
    """What can be read at once of some expressions. `window`: the one that holds the series of a name, if one does."""

    def __init__(self, exprs: Iterable[Expr], window: Callable[[str], Window | None]) -> None:
        instants: dict[tuple[Window, float], list[Selector]] = {}
        ranges: dict[tuple[Window, float, float], list[Call | Range]] = {}
        for node in dict.fromkeys(node for expr in exprs for node in reads_at_once(expr)):
            selector = node if isinstance(node, Selector) else _range(node).selector
            home = window(selector.name) if selector.name else None
            if home is None:
                continue
            if isinstance(node, Selector):
                instants.setdefault((home, node.offset), []).append(node)
            else:
                ranges.setdefault((home, _range(node).range, selector.offset), []).append(node)
        self._instants = [_Instants(*key, found) for key, found in instants.items()]
        self._ranges = [_Ranges(*key, found) for key, found in ranges.items()]

    def fill(self, shared: Shared, at: int, lookback: int, budget: QueryBudget) -> None:
        """Put the values at `at` among those that are shared there. Milliseconds."""
        for instants in self._instants:
            instants.fill(shared, at, lookback, budget)
        for ranges in self._ranges:
            ranges.fill(shared, at, budget)


def _range(node: Call | Range) -> Range:
    read = node.args[0] if isinstance(node, Call) else node
    assert isinstance(read, Range)
    return read


def reads_at_once(expr: Expr) -> Iterator[Call | Range | Selector]:
    """What reads series at the moment itself: `m`, `m[1m]`, and functions of nothing but the latter. In a batch it
    stands for the whole expression."""
    if isinstance(expr, Range | Selector):
        yield expr
        return
    if isinstance(expr, Call) and expr.func in RANGE_FUNCTIONS and isinstance(expr.args[0], Range):
        yield expr
    elif not isinstance(expr, Subquery):
        for child in expr.children():
            yield from reads_at_once(child)


class _Instants:
    """Instant selectors of one offset, seconds."""

    def __init__(self, window: Window, offset: float, selectors: Sequence[Selector]) -> None:
        self._offset = round(offset * 1000)
        self._selectors = selectors
        self._panel = SelectionPanel(window, [selector.all_matchers() for selector in selectors])
        self._found: list[tuple[Selector, LabelSets, Columns]] = []
        self._nothing: Shared = {}

    def fill(self, shared: Shared, at: int, lookback: int, budget: QueryBudget) -> None:
        panel, end = self._panel, at - self._offset
        start = end - lookback
        if panel.renew():
            usable = [(self._selectors[i], labels, columns) for i, labels, columns in _usable(panel, budget)]
            self._found = [one for one in usable if one[1]]
            self._nothing = {selector: empty(1) for selector, labels, _ in usable if not labels}
        values, present = np.zeros((1, panel.width)), np.zeros((1, panel.width), dtype=bool)
        for part in panel.newest(*_seconds(start, end)):
            if not start <= milliseconds(part.times)[0] <= end:
                return
            values[:, part.place], present[:, part.place] = part.values, ~is_stale(part.values)
        shared |= self._nothing
        for selector, labels, columns in self._found:
            shared[selector] = Grid(labels, values.take(columns, axis=1), present.take(columns, axis=1)).pruned()


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one function, whose series stand side by side.

    columns: of the panel. calls: each with its labels, these without names where they differ then too, and its place.
    """

    columns: Columns
    calls: list[tuple[Call, LabelSets, LabelSets | None, slice]]

    @staticmethod
    def of(calls: Sequence[tuple[Call, LabelSets, Columns]]) -> _Calls:
        found, first = [], 0
        for call, labels, columns in calls:
            groups = by_nameless(labels)
            named = labels if call.func == "last_over_time" else groups.labels if groups.trivial else None
            found.append((call, labels, named, slice(first, first + len(columns))))
            first += len(columns)
        return _Calls(np.concatenate([columns for _, _, columns in calls]), found)

    def share(self, shared: Shared, values: Floats, present: Bools) -> None:
        """The function's values [1, S], to each call its own."""
        complete = bool(present.all())
        for call, labels, named, place in self.calls:
            if complete and named is not None:
                shared[call] = Grid(named, values[:, place], present[:, place])
                continue
            with suppress(PromQLError):  # by itself it says what is wrong
                kept = Grid(labels, values[:, place], present[:, place]).pruned()
                shared[call] = kept if call.func == "last_over_time" else without_names(kept, at_all_steps=True)


class _Ranges:
    """Range selectors of one length and offset, seconds, as they are and as functions have them."""

    def __init__(self, window: Window, length: float, offset: float, nodes: Sequence[Call | Range]) -> None:
        self._length, self._offset = round(length * 1000), round(offset * 1000)
        self._nodes = nodes
        wanted = dict.fromkeys(_range(node) for node in nodes)
        self._number = {expr: i for i, expr in enumerate(wanted)}  # of its selection
        self._panel = SelectionPanel(window, [expr.selector.all_matchers() for expr in wanted])
        self._calls: dict[str, _Calls] = {}  # by function
        self._ranges: list[tuple[Range, LabelSets, Columns]] = []
        self._nothing: Shared = {}

    def fill(self, shared: Shared, at: int, budget: QueryBudget) -> None:
        panel, end = self._panel, at - self._offset
        if panel.renew():
            self._arrange(budget)
        shared |= self._nothing
        if not panel.width:
            return
        sheet = _Sheet.of(panel, end - self._length, end)
        if len(sheet.values) * panel.width > MAX_CELLS:
            return
        for func, calls in self._calls.items():
            parts = [
                RANGE_FUNCTIONS[func](sheet.windows(columns, end, self._length, budget))
                for columns in sheet.in_parts(calls.columns)
            ]
            calls.share(shared, np.hstack([one for one, _ in parts]), np.hstack([one for _, one in parts]))
        for node, labels, columns in self._ranges:
            shared[node] = SelectedWindows(labels, [sheet.windows(columns, end, self._length, budget)])

    def _arrange(self, budget: QueryBudget) -> None:
        """Find out of what there are series."""
        usable = {i: (labels, columns) for i, labels, columns in _usable(self._panel, budget)}
        here = [(node, *usable[i]) for node in self._nodes if (i := self._number[_range(node)]) in usable]
        nothing = [node for node, labels, _ in here if not labels]
        self._nothing = {n: empty(1) if isinstance(n, Call) else SelectedWindows(LabelSets(), []) for n in nothing}
        self._ranges = [(node, labels, at) for node, labels, at in here if isinstance(node, Range) and labels]
        by_function: dict[str, list[tuple[Call, LabelSets, Columns]]] = {}
        for node, labels, columns in here:
            if isinstance(node, Call) and labels:
                by_function.setdefault(node.func, []).append((node, labels, columns))
        self._calls = {func: _Calls.of(calls) for func, calls in by_function.items()}


@dataclass(frozen=True, slots=True)
class _Sheet:
    """All series of a panel, shorter ones filled up with `STALE` at the top.

    times: int64[T, S] or [T, 1], milliseconds.
    """

    times: Ints
    values: Floats

    @staticmethod
    def of(panel: SelectionPanel, start: int, end: int) -> _Sheet:
        """The samples in start <= t <= end, milliseconds."""
        parts = [(part.place, *_within(part, start, end)) for part in panel.read(*_seconds(start, end))]
        height = max([1, *(len(times) for _, times, _ in parts)])  # a row without samples stands for no rows
        if len(parts) == 1 and parts[0][2].shape == (height, panel.width):
            return _Sheet(parts[0][1][:, None], parts[0][2])
        all_times, all_values = np.full((height, panel.width), end), np.full((height, panel.width), STALE)
        for place, times, values in parts:
            if len(times):
                top = height - len(times)
                all_times[:top, place], all_times[top:, place] = times[0], times[:, None]
                all_values[top:, place] = values
        return _Sheet(all_times, all_values)

    def in_parts(self, columns: Columns) -> Iterator[Columns]:
        """Columns, some at a time: functions make several arrays as large as what they are given."""
        most = max(windows.PART_CELLS // len(self.values), 1)
        for first in range(0, len(columns), most):
            yield columns[first : first + most]

    def windows(self, columns: Columns, end: int, length: int, budget: QueryBudget) -> SampleWindows:
        """One window over all rows of some columns."""
        values = self.values.take(columns, axis=1)
        stale = is_stale(values)
        present = ~stale if stale.any() else None
        times = self.times if self.times.shape[1] == 1 else self.times.take(columns, axis=1)
        low, high = np.array([0]), np.array([len(values)])
        return SampleWindows(times, values, present, low, high, np.array([end]), length, budget)


def _usable(panel: SelectionPanel, budget: QueryBudget) -> Iterator[tuple[int, LabelSets, Columns]]:
    """The panel's selections that need not be looked at by themselves, with their labels and columns."""
    for i, (labels, columns) in enumerate(zip(panel.labels, panel.columns, strict=True)):
        if i not in panel.doubled and len(labels) <= budget.series:
            yield i, the_one(labels), columns


def _seconds(start: int, end: int) -> tuple[float, float]:
    """What to ask a source for, which rounds times in another way."""
    return start / 1000.0 - HALF_MILLISECOND, end / 1000.0 + HALF_MILLISECOND


def _within(part: PanelRows, start: int, end: int) -> tuple[Ints, Floats]:
    times = milliseconds(part.times)
    if len(times) and start <= times[0] and times[-1] <= end:
        return times, part.values
    low, high = times.searchsorted(start, "left"), times.searchsorted(end, "right")
    return times[low:high], part.values[low:high]
