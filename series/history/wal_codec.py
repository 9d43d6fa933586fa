"""Ticks: the rows that came since the last commit, as what changed in them; and what a log of them holds.

    data = zstd( u32 groups, groups * (u32 id, u32 rows, u32 changes), times i64*, changes of each row u32*,
                 series u32*, values f64* )

Times, counts, series (each less the one before) and values stand in byte planes. A generation of ticks begins with
every value that there is, and so does each block in it: what is damaged is lost until the next block begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvitals.series.history.codec import DamagedError, Ints, compress, decompress, from_planes, planes
from kvitals.series.types import STALE, Floats

Ids = npt.NDArray[np.uint32]

MAX_TICK_BYTES = 64 << 20
BLOCK_ROWS = 64
_LEVEL = 3
_COUNT = struct.Struct("<I")
_GROUP = struct.Struct("<III")


@dataclass(frozen=True)
class RowChanges:
    """Rows of one group: in row `rows[i]`, of those at `times` (milliseconds), `series[i]` has `values[i]` from then
    on; `STALE` where it has none any more."""

    group: int
    times: Ints
    rows: Ints
    series: Ids
    values: Floats


def pack(parts: Sequence[RowChanges]) -> bytes:
    """A tick as bytes."""
    heads = [_GROUP.pack(p.group, len(p.times), len(p.series)) for p in parts]
    counts = [np.bincount(p.rows, minlength=len(p.times)).astype(np.uint32) for p in parts]
    body = (
        _COUNT.pack(len(parts)),
        *heads,
        planes(np.concatenate([p.times for p in parts])),
        planes(np.concatenate(counts)),
        planes(np.diff(np.concatenate([p.series for p in parts]), prepend=np.uint32(0))),
        planes(np.concatenate([p.values for p in parts])),
    )
    return compress(b"".join(body), _LEVEL)


@dataclass(frozen=True)
class LogTick:
    """A tick as it stands there: of each row its group, time and number of changes; of each change series and value.
    after_loss: ticks before it are lost. It has every value, and no value from before goes on."""

    groups: Ints
    times: Ints
    counts: Ids
    series: Ids
    values: Floats
    after_loss: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """The times of its first and last row, in milliseconds."""
        return int(self.times.min()), int(self.times.max())


def gather_rows(ticks: Iterable[LogTick], group: int | None = None) -> dict[int, RowChanges]:
    """The rows of a whole generation by group: of one group or all."""
    groups, times, rows = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
    series: list[Ids] = []
    values: list[Floats] = []
    height, due = 0, dict[int, Ids]()
    for tick in ticks:
        if tick.after_loss and series:
            of_changes = np.concatenate(groups)[np.concatenate(rows)]
            so_far = np.concatenate(series)
            due = {number: np.unique(so_far[of_changes == number]) for number in np.unique(of_changes).tolist()}
        if due:
            tick = _ends(tick, due)
        row = np.repeat(np.arange(len(tick.times)), tick.counts)
        kept = None if group is None else tick.groups[row] == group
        groups.append(tick.groups)
        times.append(tick.times)
        rows.append((row if kept is None else row[kept]) + height)
        series.append(tick.series if kept is None else tick.series[kept])
        values.append(tick.values if kept is None else tick.values[kept])
        height += len(tick.times)
    if not series:
        return {}
    whole = LogTick(
        np.concatenate(groups), np.concatenate(times), _NO_COUNTS, np.concatenate(series), np.concatenate(values)
    )
    return dict(_by_group(whole, np.concatenate(rows), group))


def _ends(tick: LogTick, due: dict[int, Ids]) -> LogTick:
    """The tick with the ends of the series that are due, by group, in the first row of the group. They are due no more.
    The row's own values come behind them, and count."""
    counts, series, values = tick.counts.copy(), tick.series, tick.values
    starts = np.concatenate([[0], np.cumsum(tick.counts, dtype=np.int64)])
    groups, rows = np.unique(tick.groups, return_index=True)
    for row, group in sorted(zip(rows.tolist(), groups.tolist(), strict=True), reverse=True):
        ended = due.pop(group, _NO_COUNTS)
        series = np.insert(series, starts[row], ended)
        values = np.insert(values, starts[row], np.full(len(ended), STALE))
        counts[row] += len(ended)
    return replace(tick, counts=counts, series=series, values=values)


def _by_group(tick: LogTick, rows: Ints, group: int | None) -> Iterator[tuple[int, RowChanges]]:
    of_changes = tick.groups[rows]
    for number in np.unique(tick.groups).tolist() if group is None else [group]:
        mine = np.flatnonzero(tick.groups == number)
        changes = np.flatnonzero(of_changes == number)
        if len(mine):
            places = mine.searchsorted(rows[changes])
            yield number, RowChanges(number, tick.times[mine], places, tick.series[changes], tick.values[changes])


def unpack(data: bytes) -> LogTick:
    """A tick of its bytes. Raises DamagedError."""
    raw = decompress(data, MAX_TICK_BYTES)
    heads = _heads(raw)
    at = _COUNT.size + _GROUP.size * len(heads)
    rows, changes = int(heads[:, 1].sum()), int(heads[:, 2].sum())
    columns: list[npt.NDArray[Any]] = []
    for kind, count in ((np.int64, rows), (np.uint32, rows), (np.uint32, changes), (np.float64, changes)):
        size = np.dtype(kind).itemsize * count
        columns.append(from_planes(raw[at : at + size], kind, count))
        at += size
    times, counts, series, values = columns
    if at != len(raw) or not rows or int(counts.sum()) != changes:
        raise DamagedError("a tick whose parts differ from its stated sizes")
    return LogTick(np.repeat(heads[:, 0], heads[:, 1]), times, counts, np.cumsum(series, dtype=np.uint32), values)


def _heads(raw: bytes) -> Ints:
    """Of each group its id, rows and changes."""
    if len(raw) < _COUNT.size:
        raise DamagedError("a tick that is too short for its count of groups")
    (groups,) = _COUNT.unpack_from(raw)
    if _COUNT.size + _GROUP.size * groups > len(raw):
        raise DamagedError("a tick that is too short for the heads of its groups")
    found = np.frombuffer(raw, np.uint32, 3 * groups, _COUNT.size)
    return found.reshape(groups, 3).astype(np.int64)


_NO_ROWS: Ints = np.empty(0, dtype=np.int64)
_NO_COUNTS: Ids = np.empty(0, dtype=np.uint32)


def _among(series: Ids, wanted: Ids) -> npt.NDArray[np.bool_]:
    if not len(wanted):
        return np.zeros(len(series), dtype=bool)
    places = np.minimum(wanted.searchsorted(series), len(wanted) - 1)
    among: npt.NDArray[np.bool_] = wanted[places] == series
    return among


class DenseRows:
    """Rows of one group, as they come: the times of all of them, and the values of those in a time range."""

    def __init__(self) -> None:
        self.times: list[int] = []  # milliseconds
        self.blocks: list[tuple[int, Ids, Floats]] = []
        """The first row, the series (in order), and their values in the rows from there on."""
        self.series: Ids = np.empty(0, dtype=np.uint32)
        """All that had a value so far, in order."""
        self._now: Floats = np.empty(0)
        self._rows: list[Floats] = []  # the latest rows, until they are a block
        self._first = 0  # the number of the first of them

    def add(self, time: int, series: Ids, values: Floats, kept: bool) -> int:
        """Take a row: what changed in it. kept: its values are wanted. Returns how many cells it has."""
        if len(series):
            self._know(series)
            self._now[self.series.searchsorted(series)] = values
        self.times.append(time)
        if not kept or not len(self.series):
            self.close()
            return 0
        if not self._rows:
            self._first = len(self.times) - 1
        self._rows.append(self._now.copy())
        if len(self._rows) == BLOCK_ROWS:
            self.close()
        return len(self._now)

    def close(self) -> None:
        """Put the latest rows into a block."""
        if self._rows:
            self.blocks.append((self._first, self.series, np.array(self._rows)))
            self._rows = []

    def forget(self) -> None:
        """No value goes on: ticks are lost."""
        self._now[:] = STALE

    def _know(self, series: Ids) -> None:
        if _among(series, self.series).all():
            return
        self.close()
        before, now, self.series = self.series, self._now, np.union1d(self.series, series)
        self._now = np.full(len(self.series), STALE)
        self._now[self.series.searchsorted(before)] = now


class DenseLog:
    """The rows of a generation by group, tick by tick. `cells`: values that are held."""

    def __init__(self, ids: Ids, wanted: Callable[[int], bool], first: int, last: int) -> None:
        """ids: series, in order; wanted: whether a group is. Values from `first` to `last` (milliseconds) are kept."""
        self.groups: dict[int, DenseRows] = {}
        self.cells = 0
        self._ids, self._wanted, self._first, self._last = ids, wanted, first, last

    def add(self, tick: LogTick) -> None:
        """Take the next tick."""
        if tick.after_loss:
            for one in self.groups.values():
                one.forget()
        among = _among(tick.series, self._ids)
        rows = np.repeat(np.arange(len(tick.times)), tick.counts)[among]
        series, values = tick.series[among], tick.values[among]
        ends = rows.searchsorted(np.arange(len(tick.times)), "right").tolist()
        start = 0
        for group, time, end in zip(tick.groups.tolist(), tick.times.tolist(), ends, strict=True):
            if self._wanted(group):
                of_group = self.groups.setdefault(group, DenseRows())
                kept = self._first <= time <= self._last
                self.cells += of_group.add(time, series[start:end], values[start:end], kept)
            start = end


@dataclass
class SeenSeries:
    """The series of a group that had changes, in order, and the times of its first and last row in milliseconds."""

    first: int
    last: int
    series: Ids


def series_in(ticks: Iterable[LogTick]) -> dict[int, SeenSeries]:
    """What the ticks of a generation have series of, by group."""
    found: dict[int, SeenSeries] = {}
    for tick in ticks:
        of_changes = np.repeat(tick.groups, tick.counts)
        for group in np.unique(tick.groups).tolist():
            times, series = tick.times[tick.groups == group], tick.series[of_changes == group]
            known = found.setdefault(group, SeenSeries(int(times[0]), int(times[-1]), np.empty(0, dtype=np.uint32)))
            known.last = int(times[-1])
            if not _among(series, known.series).all():
                known.series = np.union1d(known.series, series)
    return found


class ChangeColumns:
    """Changes as columns of values."""

    def __init__(self, changes: RowChanges) -> None:
        order = np.argsort(changes.series, kind="stable")  # the changes of one series stay in order of their rows
        self._height = len(changes.times)
        self._rows, self._values = changes.rows[order], changes.values[order]
        self.series, self._starts = np.unique(changes.series[order], return_index=True)
        """The series that have changes, in order."""
        self._ends = np.append(self._starts[1:], len(order))

    def of(self, series: Ids) -> Floats:
        """float64[rows, series] of some of the series: each value goes on until the next change of it."""
        values = np.full((self._height, len(series)), STALE)
        for column, place in enumerate(self.series.searchsorted(series).tolist()):
            some = slice(self._starts[place], self._ends[place])
            rows = self._rows[some]
            values[rows[0] :, column] = np.repeat(self._values[some], np.diff(rows, append=self._height))
        return values
