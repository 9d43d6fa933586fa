"""The recent past in memory: many series, sampled together, for as long as `retention`.

Series that are sampled at the same instants form a *group* with one time axis: the series of one scrape
target, say. A group is `times[T]` and `values[T, S]`, the values in blocks of rows, and a row that says "only these K
of the S values changed" costs one copy of the previous row and one indexed write.

Memory is bounded: at most `max_series` columns over all groups, a share of them in one group, and
`retention * MAX_ROWS_PER_SECOND` rows in a group, 8 bytes a cell, with two blocks of rows beyond those
(`kvitals.series.row_blocks`). `Window.nbytes` measures it. Groups that name an owner, such as a scrape target, share
`Window.max_bytes` beside that: up to half of it for label sets, the rest for samples. An owner's new series are
refused where its label sets have no room, and `Window.balance` drops the oldest rows of the owners with the most.

Not safe for concurrent use from several threads; arrays that `select` returned stay valid for ever, because
rows are only ever added behind them and never moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from kvitals.series.fair_shares import FairShares, fair_level
from kvitals.series.row_blocks import Columns, RowBlocks, RowSpan
from kvitals.series.series_view import Candidates, Selection, SeriesView, matching, name_of
from kvitals.series.types import (
    STALE,
    Floats,
    Frame,
    InstantRow,
    Labels,
    Matcher,
)

MAX_ROWS_PER_SECOND = 4.0
"""More rows than this within the retention push out the oldest ones."""

NOWHERE = 0
"""A column of each group that is no series. What is written there is gone, which is cheaper than not writing it."""

RESTART_SECONDS = 60.0
"""A clock that is further back than this was set back: waiting for it to catch up would be blindness."""

LABELS_BYTES = 900
"""What a series takes beside its samples and the text of its labels: measured on label sets of six labels."""

_FIRST_ROWS = 32
_FIRST_COLUMNS = 64
_SELECTIONS = 512
_SELECTED = 50  # columns in all remembered selections, as a multiple of the series
_SELECTED_BYTES = 16  # of each of them: its number and a reference to its labels


class Window:
    """Groups of series over the last `retention` seconds, at most `max_series` of them in all.

    `group_series`: the most in one group, so that one that is out of hand leaves room for the others.
    It is a `SeriesSource`. `refused_series` counts the requests for a column that a cap refused.
    """

    def __init__(self, retention: float, max_series: int, group_series: int | None = None) -> None:
        if retention <= 0 or max_series <= 0:
            raise ValueError("retention and max_series must be positive")
        self.retention = retention
        self.max_series = max_series
        self.group_series = max_series if group_series is None else group_series
        self.refused_series = 0
        self.max_bytes: int | None = None
        """Of the groups that have an owner. See `share`."""
        self.label_shares = FairShares()
        """Bytes of the label sets of each owner."""
        self.dropped_rows = 0
        """Rows within the retention that `balance` dropped."""
        self.takes_new_series = True
        """False: new series are refused, as beyond `max_series`; those that there are go on."""
        self.version = 0
        """Counted up whenever series or groups come, go or change their labels."""
        self._groups: dict[str, SeriesGroup] = {}
        self._series = 0
        self._begun = float("inf")  # the earliest row there ever was
        self._dropped = float("-inf")  # the newest row of a group that was dropped

    @property
    def groups(self) -> Mapping[str, SeriesGroup]:
        """The groups by name."""
        return MappingProxyType(self._groups)

    @property
    def whole_since(self) -> float:
        """From this time on every row that was ever added is still here; infinity while there was none."""
        lost = max((group.lost_before for group in self._groups.values()), default=self._dropped)
        return max(self._begun, self._dropped, lost)

    @property
    def oldest(self) -> float:
        """Time of the oldest row that is here; infinity where there is none."""
        return min((group.first_time for group in self._groups.values() if group.rows), default=float("inf"))

    def group(self, name: str, owner: str = "", spare: int = 0) -> SeriesGroup:
        """The group of that name, made if there is none. owner: who shares `max_bytes` with other owners for it. spare:
        bytes that its label sets leave to the other groups of the owner."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = SeriesGroup(self, owner, spare)
            self.version += 1
        return found

    def share(self, max_bytes: int) -> None:
        """Let the owners share so many bytes from now on."""
        self.max_bytes = max_bytes
        self.label_shares.divide(max_bytes // 2, len({g.owner for g in self._groups.values() if g.owner}))

    def balance(self) -> None:
        """Drop the oldest rows of owners that hold more than their share, until all fit. The owners that hold less
        lose nothing."""
        if self.max_bytes is None:
            return
        owned: dict[str, list[SeriesGroup]] = {}
        for group in self._groups.values():
            if group.owner:
                owned.setdefault(group.owner, []).append(group)
        sizes = {owner: sum(group.held_bytes for group in groups) for owner, groups in owned.items()}
        room = max(self.max_bytes // 2, self.max_bytes - sum(self.label_shares.held.values()))
        level = fair_level([*sizes.values()], room)
        crowded = set(self.label_shares.overdrawn)  # of series that ended, too: these go with their rows
        for owner, groups in owned.items():
            part = min(level / max(sizes[owner], 1), 0.5 if owner in crowded else 1.0)
            for group in groups if part < 1.0 else ():
                self.dropped_rows += group.keep_rows(int(group.rows * part))

    def drop_group(self, name: str) -> None:
        """Forget a group and its series; nothing happens when there is none."""
        group = self._groups.pop(name, None)
        if group is not None:
            self._series -= group.series
            group.disown()
            self.version += 1
            self._dropped = max(self._dropped, float(np.nextafter(group.last_time or self._dropped, np.inf)))

    @property
    def series(self) -> int:
        """Columns in use, ended ones included until they are reclaimed."""
        return self._series

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that hold samples now."""
        return sum(group.nbytes for group in self._groups.values())

    @property
    def refused_rows(self) -> int:
        """Rows that were refused because their time did not increase."""
        return sum(group.refused_rows for group in self._groups.values())

    @property
    def restarts(self) -> int:
        """How often a group began anew because the clock had been set back."""
        return sum(group.restarts for group in self._groups.values())

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        """One frame per group that has a matching series with a sample in start <= t <= end."""
        key, name = tuple(matchers), name_of(matchers)
        groups = self._groups.values() if name is None else [g for g in self._groups.values() if g.has(name)]
        frames = (group.select(key, start, end) for group in groups)
        return [frame for frame in frames if frame is not None]

    def label_sets(self, matchers: Sequence[Matcher], start: float, end: float) -> set[Labels]:
        """The series that `select` would give, without a copy of their samples."""
        return {labels for view in self.views(matchers, start, end) for labels in view.label_sets()}

    def views(self, matchers: Sequence[Matcher], start: float, end: float) -> list[SeriesView]:
        """What `select` needs, of each group: taken in little time here, worked on in any thread."""
        key, name = tuple(matchers), name_of(matchers)
        groups = self._groups.values() if name is None else [g for g in self._groups.values() if g.has(name)]
        return [group.view(key, start, end) for group in groups]

    def has(self, name: str) -> bool:
        """Whether there is a series of that name, if only an ended one."""
        return any(group.has(name) for group in self._groups.values())

    def finds(self, matchers: tuple[Matcher, ...]) -> bool:
        """Whether there is a series that satisfies all matchers, if only an ended one."""
        name = name_of(matchers)
        if name is not None and len(matchers) == 1:
            return self.has(name)
        groups = self._groups.values() if name is None else [g for g in self._groups.values() if g.has(name)]
        return any(group.selected(matchers)[1] for group in groups)

    def newest(self, matchers: Sequence[Matcher], start: float, end: float) -> list[InstantRow]:
        """The newest row of each group in start <= t <= end, of its matching series."""
        key, name = tuple(matchers), name_of(matchers)
        groups = self._groups.values() if name is None else [g for g in self._groups.values() if g.has(name)]
        rows = (group.newest(key, start, end) for group in groups)
        return [row for row in rows if row is not None]

    def _take(self, group: SeriesGroup, labels: Labels) -> bool:
        """Account for one more column of a group; false when a cap is reached."""
        if group.series >= self.group_series:
            group.reclaim()
        elif self._series >= self.max_series:
            for other in self._groups.values():
                other.reclaim()
        if not self.takes_new_series or group.series >= self.group_series or self._series >= self.max_series:
            self.refused_series += 1
            return False
        if group.owner and not self.label_shares.take(group.owner, _bytes_of(labels), group.spare):
            self.refused_series += 1
            return False
        self._series += 1
        return True

    def _began(self, t: float) -> None:
        self._begun = min(self._begun, t)

    def _give(self, columns: int) -> None:
        self._series -= columns


class SeriesGroup:
    """Series with one time axis. Get one from `Window.group`.

    A column keeps its number for as long as its series lives; the number of a series that ended longer ago
    than the retention is given to another one.
    """

    def __init__(self, window: Window, owner: str = "", spare: int = 0) -> None:
        self._window = window
        self.owner = owner
        self.spare = spare
        self._times: Floats = np.empty(_FIRST_ROWS)
        self._values = RowBlocks()  # of the live rows
        self._first, self._last = 0, 0  # live times are [first, last)
        self._now: Floats = np.full(_FIRST_COLUMNS, STALE)  # newest value of each column
        self._labels: list[Labels | None] = [None]  # by column; None is a free one, and `NOWHERE`
        self._columns: dict[Labels, int] = {}
        self._names: dict[str, list[int]] = {}
        self.name_series: int | None = None
        """Series of one name at most, ended ones within the retention included; None: no more than of the group."""
        self._ended: dict[int, float] = {}  # column -> time of its end
        self._free: list[int] = []
        self._reclaimed_at: float | None = float("nan")  # the newest row then
        self._selections: dict[tuple[Matcher, ...], Selection] = {}
        self._selected_columns = 0  # in all of them
        self._version = 0  # counted up whenever a column gets or loses its labels
        self.lost_before = float("-inf")  # rows before this time were here and are not any more
        self.refused_rows = 0
        self.restarts = 0

    @property
    def series(self) -> int:
        """Columns in use."""
        return len(self._columns)

    @property
    def rows(self) -> int:
        """Rows within the retention."""
        return self._last - self._first

    @property
    def last_time(self) -> float | None:
        """Time of the newest row."""
        return float(self._times[self._last - 1]) if self._last > self._first else None

    @property
    def first_time(self) -> float:
        """Time of the oldest row, where there is one."""
        return float(self._times[self._first])

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that hold samples now."""
        return self._times.nbytes + self._values.nbytes + self._now.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes of its samples, and of the selections that it remembers."""
        return self.nbytes + _SELECTED_BYTES * self._selected_columns

    def column(self, labels: Labels) -> int | None:
        """The column of a series, added if it is new; None where the window's cap refuses it.

        A series that had ended begins again with its next value.
        """
        known = self._columns.get(labels)
        if known is not None:
            self._ended.pop(known, None)
            return known
        if not self._has_room(labels.name) or not self._window._take(self, labels):
            return None
        if self._free:
            number = self._free.pop()
            self._labels[number] = labels
        else:
            number = len(self._labels)
            self._labels.append(labels)
            if number >= self._now.size:
                self._widen(number + number // 4 + _FIRST_COLUMNS)
        self._index(number, labels)
        return number

    def _has_room(self, name: str) -> bool:
        """Whether one more series may have that name."""
        if self.name_series is None or len(self._names.get(name, ())) < self.name_series:
            return True
        self.reclaim()
        if len(self._names.get(name, ())) < self.name_series:
            return True
        self._window.refused_series += 1
        return False

    def relabel(self, column: int, labels: Labels) -> None:
        """Give a series other labels, its past included. Raises ValueError where they are taken."""
        if self._columns.get(labels, column) != column:
            raise ValueError(f"{labels} is another series")
        self._unindex(column)
        if self.owner:  # a rename takes no room worth a refusal
            self._give_back(self.labels(column))
            self._window.label_shares.take(self.owner, _bytes_of(labels))
        self._labels[column] = labels
        self._index(column, labels)

    def labels(self, column: int) -> Labels:
        """The labels of a column in use."""
        found = self._labels[column]
        if found is None:
            raise KeyError(column)
        return found

    def end(self, columns: Sequence[int]) -> None:
        """Series that are gone: `STALE` from the next row on, reclaimed after the retention."""
        at = self.last_time or float("-inf")
        for number in columns:
            self._now[number] = STALE
            self._ended[number] = at

    def __contains__(self, labels: Labels) -> bool:
        """Whether it has a column for a series, if only of an ended one."""
        return labels in self._columns

    def has(self, name: str) -> bool:
        """Whether it has a series of that name, if only an ended one."""
        return name in self._names

    def append(
        self,
        t: float,
        columns: Columns | Sequence[int] = (),
        values: Floats | Sequence[float] = (),
        gaps: Columns | Sequence[int] = (),
    ) -> bool:
        """Add a row: the previous one with `values` at `columns`, and no sample at `gaps` in this row only.

        False where the row was refused because its time did not increase. The values count from the next row
        on all the same, since whoever reports changes will not report them again. A time more than
        `RESTART_SECONDS` before the last one means that the clock was set back: the rows so far lie in the
        future, where a window can neither order nor expire them, so the group begins anew with this row.
        """
        if len(columns):
            self._now[columns] = values
        if not self._begin_row(t):
            return False
        self._values.append(self._now)
        if len(gaps):
            self._values.last[gaps] = STALE
        return True

    def write(self, t: float, columns: Columns, values: Floats) -> None:
        """Add a row as `append` does, or correct the last row where it has this very time: what is settled at the end
        of a recording belongs to the moment of its last record, which may have a row already."""
        if self.last_time != t:
            self.append(t, columns, values)
            return
        self._now[columns] = values
        self._values.replace_last(self._now)

    def append_gap(self, t: float) -> bool:
        """Add a row without any sample, as after a failed scrape. False as for `append`."""
        if not self._begin_row(t):
            return False
        self._values.append(np.full(self._now.size, STALE))
        return True

    def reclaim(self) -> None:
        """Drop rows beyond the retention, and free the columns of series that ended before them."""
        self._expire()
        if not self._ended or self.last_time == self._reclaimed_at:  # it is asked for each series that a cap refuses
            return
        self._reclaimed_at = self.last_time
        oldest = self._times[self._first] if self.rows else float("inf")
        gone = {number for number, at in self._ended.items() if at < oldest}
        for name in {self.labels(number).name for number in gone}:
            self._names[name] = [number for number in self._names[name] if number not in gone]
            if not self._names[name]:
                del self._names[name]
        for number in gone:
            labels = self.labels(number)
            del self._ended[number], self._columns[labels]
            self._labels[number] = None
            self._free.append(number)
            self._give_back(labels)
        if gone:
            self._changed()
            self._narrow()
        self._window._give(len(gone))

    def keep_rows(self, rows: int) -> int:
        """Drop all but the newest `rows`, one at least, and what ended before them. Returns how many went."""
        self._expire()
        gone = max(self.rows - max(rows, 1), 0)
        if gone:
            self._first += gone
            self._values.drop(gone)
            self.lost_before = float(self._times[self._first])
        self._selections.clear()
        self._selected_columns = 0
        self._reclaimed_at = float("nan")
        self.reclaim()
        return gone

    def disown(self) -> None:
        """The window forgets the group: what its label sets take is free for others."""
        for labels in self._columns if self.owner else ():
            self._give_back(labels)

    def _give_back(self, labels: Labels) -> None:
        if self.owner:
            self._window.label_shares.give(self.owner, _bytes_of(labels))

    def _narrow(self) -> None:
        """After a flood of series, rows get narrow again: the columns behind the last one in use go."""
        self._free.sort(reverse=True)  # the first ones are used again first
        used = len(self._labels)
        while used > 1 and self._labels[used - 1] is None:
            used -= 1
        if 2 * (used + _FIRST_COLUMNS) < self._now.size:
            self._free = [number for number in self._free if number < used]
            del self._labels[used:]
            self._now = self._now[: used + _FIRST_COLUMNS].copy()

    def select(self, matchers: tuple[Matcher, ...], start: float, end: float) -> Frame | None:
        """The matching series that have a sample in start <= t <= end, or None without any."""
        self._selected(matchers)  # kept for the next time
        return self.view(matchers, start, end).frame()

    def view(self, matchers: tuple[Matcher, ...], start: float, end: float) -> SeriesView:
        """The group as it is now, for a selection in start <= t <= end that any thread may make."""
        known = self._selections.get(matchers)
        numbers, labels = self._candidates(matchers) if known is None else ((), ())
        return SeriesView(self.keep, self._version, matchers, known, numbers, labels, *self.rows_between(start, end))

    def keep(self, view: SeriesView) -> None:
        """Remember what a view selected, where the group has the same series still."""
        if view.version == self._version and view.selected is not None and view.matchers not in self._selections:
            self._remember(view.matchers, view.selected)

    def after(self, t: float) -> Frame:
        """The rows later than `t` of every series, samples or not. While series neither come nor go nor change their
        labels, `labels` is the same list; it is not to be changed."""
        columns, labels = self._selected(())
        live = self._times[self._first : self._last]
        low = int(live.searchsorted(t, "right"))
        return Frame(live[low:], self._values.span(low, len(live), self._now.size).take(columns), labels)

    def newest(self, matchers: tuple[Matcher, ...], start: float, end: float) -> InstantRow | None:
        """The newest row in start <= t <= end, of the matching series."""
        columns, labels = self._selected(matchers)
        last = self._last - 1
        if last >= self._first and self._times[last] > end:
            last = self._first + int(self._times[self._first : self._last].searchsorted(end, "right")) - 1
        if not labels or last < self._first or self._times[last] < start:
            return None
        row = self._values.span(last - self._first, last - self._first + 1, self._now.size)
        return InstantRow(float(self._times[last]), row.last(columns), labels)

    def selected(self, matchers: tuple[Matcher, ...]) -> tuple[Sequence[int], Sequence[Labels]]:
        """The columns of the matching series, and their labels."""
        name = name_of(matchers)
        if name is not None and not self.has(name):
            return (), ()
        columns, labels = self._selected(matchers)
        return (range(columns.start, columns.stop) if isinstance(columns, slice) else columns.tolist()), labels

    def rows_between(self, start: float, end: float) -> tuple[Floats, RowSpan]:
        """The rows in start <= t <= end: times float64[T], and of as many rows all columns. Not to be written to."""
        live = self._times[self._first : self._last]
        low, high = int(live.searchsorted(start, "left")), int(live.searchsorted(end, "right"))
        return live[low:high], self._values.span(low, high, self._now.size)

    def _index(self, number: int, labels: Labels) -> None:
        self._columns[labels] = number
        self._names.setdefault(labels.name, []).append(number)
        self._changed()

    def _changed(self) -> None:
        """Which series there are is not what it was."""
        self._selections.clear()
        self._selected_columns = 0
        self._version += 1
        self._window.version += 1

    def _unindex(self, number: int) -> None:
        labels = self.labels(number)
        del self._columns[labels]
        named = self._names[labels.name]
        named.remove(number)
        if not named:
            del self._names[labels.name]
        self._changed()

    def _selected(self, matchers: tuple[Matcher, ...]) -> Selection:
        found = self._selections.get(matchers)
        if found is None:
            found = matching(*self._candidates(matchers), matchers)
            self._remember(matchers, found)
        return found

    def _remember(self, matchers: tuple[Matcher, ...], selection: Selection) -> None:
        """Bounded by the columns that are remembered as well: queries choose how many there are."""
        size = len(selection[1])
        if len(self._selections) >= _SELECTIONS or self._selected_columns + size > _SELECTED * (self.series + 1000):
            self._selections.clear()
            self._selected_columns = 0
        self._selections[matchers] = selection
        self._selected_columns += size

    def _candidates(self, matchers: tuple[Matcher, ...]) -> Candidates:
        """The columns that a matcher on the name leaves, with none every column, and their labels; None is a free
        column."""
        name = name_of(matchers)
        if name is None:
            return range(len(self._labels)), self._labels.copy()
        numbers = self._names.get(name, [])
        return numbers.copy(), [self._labels[number] for number in numbers]

    def _begin_row(self, t: float) -> bool:
        """Begin a row at `t`, whose values are to follow; False where the time is refused."""
        last = self.last_time
        if last is not None and t <= last:
            if t >= last - RESTART_SECONDS:
                self.refused_rows += 1
                return False
            self.restarts += 1
            self._restart(t)
        if self._last == self._times.size:
            self.reclaim()
            self._replace()
        self._window._began(t)
        self._times[self._last] = t
        self._last += 1
        return True

    def _restart(self, t: float) -> None:
        """Drop every row. New buffers, since the old rows may be in someone's hands."""
        self._first = self._last = 0
        self._times = np.empty_like(self._times)
        self._values.clear()
        self._ended = dict.fromkeys(self._ended, t)
        self.lost_before = t

    def _expire(self) -> None:
        last = self.last_time
        if last is None:
            return
        live, before = self._times[self._first : self._last], self._first
        self._first += int(np.searchsorted(live, last - self._window.retention, "left"))
        most = max(_FIRST_ROWS, int(self._window.retention * MAX_ROWS_PER_SECOND))
        self._first = max(self._first, self._last - most)
        if self._first > before:
            self._values.drop(self._first - before)
            self.lost_before = float(self._times[self._first])

    def _replace(self) -> None:
        """Move the times of live rows to the front of a buffer with a quarter as many again."""
        rows = max(_FIRST_ROWS, self.rows + self.rows // 4)
        times = np.empty(rows)
        times[: self.rows] = self._times[self._first : self._last]
        self._times = times
        self._first, self._last = 0, self.rows

    def _widen(self, columns: int) -> None:
        """Room for more columns from the next row on."""
        now = np.full(columns, STALE)
        now[: self._now.size] = self._now
        self._now = now


def _bytes_of(labels: Labels) -> int:
    """What a label set takes, roughly."""
    return LABELS_BYTES + sum(map(len, labels.values()))
