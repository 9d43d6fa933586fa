"""The log of ticks: what came in, as what changed, one commit a tick."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kvitals.series.history import event_log, sums, wal_codec
from kvitals.series.history.codec import DamagedError, Ints
from kvitals.series.history.damage import Loss, Losses
from kvitals.series.history.new_rows import GroupRows, Tick
from kvitals.series.history.schema import BLOCK_BITS, SEGMENT_BITS, transaction
from kvitals.series.history.wal_codec import Ids, LogTick, RowChanges
from kvitals.series.types import METRIC_NAME, STALE, Floats, Labels

GENERATION_TICKS = 720
BLOCK_TICKS = 12
"""Of one block; part of the format. Damage loses no more than the rest of its block."""
GENERATION_SECONDS = 3600.0
GENERATION_BYTES = 32 << 20
HOLE_SECONDS = 600.0
"""Rows that are further apart do not go into one segment."""
MAX_SERIES = 500_000
"""That are known at one time. Series that are new beyond it are left out, and counted."""

_NOBODY = 0  # the id of a series that is left out


@dataclass
class _Group:
    """How far a group has been written."""

    id: int
    labels: Sequence[Labels] = ()
    series: Ids = field(default_factory=lambda: np.empty(0, dtype=np.uint32))
    now: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))  # bits
    until: int = -(1 << 62)  # milliseconds
    due: bool = False  # its next row has every value


class Log:
    """Writes ticks. After a failure it is of no more use: another one begins with all values anew."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._series: dict[Labels, int] = {}
        self._names: dict[str, int] = {}
        self._groups: dict[str, _Group] = {}
        (self._count,) = connection.execute("SELECT count(*) FROM series").fetchone()
        self._seq = newest_generation(connection) << SEGMENT_BITS  # of the last tick
        self._is_over = True
        self._ticks = 0  # in this generation
        self._since = 0.0
        self._now = 0  # milliseconds
        self._bytes = 0
        self.left_out = 0
        """Series that there was no room for, once for each time that they came."""

    @property
    def generation(self) -> int:
        """The one that is being written."""
        return self._seq >> SEGMENT_BITS

    @property
    def seq(self) -> int:
        """Of the last tick, as in the table; of no tick before the first."""
        return self._seq

    @property
    def known(self) -> int:
        """Series in the file."""
        return int(self._count)

    def write(self, tick: Tick) -> None:
        """Commit a tick. Raises sqlite3.Error, and then nothing of it was written."""
        parts = [part for part in tick.parts if len(part.times)]
        self._now = round(tick.t * 1000)
        with transaction(self._connection):
            if parts:
                if self._is_over or self._ends_before(parts, tick.t):
                    self._begin(tick.t)
                self._advance()
                data = wal_codec.pack([changes for part in parts if (changes := self._changes(part)) is not None])
                self._bytes += len(data)
                self._connection.execute(
                    "INSERT INTO ticks (seq, t_ms, data) VALUES (?, ?, ?)", (self._seq, self._now, data)
                )
            for note in tick.notes:
                event_log.write(self._connection, note)
        too_long = self._ticks >= GENERATION_TICKS or tick.t - self._since >= GENERATION_SECONDS
        self._is_over = self._is_over or too_long or self._bytes >= GENERATION_BYTES

    @property
    def in_use(self) -> set[int]:
        """The ids that are given out without looking."""
        return set(self._series.values())

    def recount(self) -> None:
        """Look again how many series there are: some were taken out."""
        (self._count,) = self._connection.execute("SELECT count(*) FROM series").fetchone()

    def _ends_before(self, parts: Sequence[GroupRows], t: float) -> bool:
        """Whether these rows do not go on where those before ended: the clock was set, or nothing came for long."""
        known = ((self._groups[part.group].until, part.times) for part in parts if part.group in self._groups)
        back = any(_ms(times[:1])[0] <= until for until, times in known)
        newest = max((group.until for group in self._groups.values()), default=0) / 1000
        return back or t - newest > HOLE_SECONDS or any(not _is_increasing(part.times) for part in parts)

    def _begin(self, t: float) -> None:
        """A new generation: it begins with every value. What nobody has now is not looked up any more."""
        self._seq = (self.generation + 1) << SEGMENT_BITS
        self._ticks, self._since, self._bytes, self._is_over = 0, t, 0, False
        used = {labels for group in self._groups.values() for labels in group.labels}
        self._series = {labels: number for labels, number in self._series.items() if labels in used}
        for group in self._groups.values():
            group.now = np.full(len(group.now), _STALE_BITS)
            group.until = -(1 << 62)

    def _advance(self) -> None:
        """To the next tick, in a new block where the last one is full."""
        block, n = divmod(self._ticks, BLOCK_TICKS)
        self._seq = self.generation << SEGMENT_BITS | (block + 1) << BLOCK_BITS | n
        self._ticks += 1
        if n == 0:
            for group in self._groups.values():
                group.due = True

    def _changes(self, part: GroupRows) -> RowChanges | None:
        group = self._group(part.group)
        gone = self._align(group, part.labels)
        times = _ms(part.times)
        kept = np.flatnonzero(np.diff(times, prepend=group.until) > 0)  # two rows in one millisecond are one
        if not len(kept):
            return None
        times, values = times[kept], np.ascontiguousarray(part.values[kept])
        bits = values.view(np.uint64)
        before = np.vstack([group.now[None, :], bits[:-1]])
        changed = bits != before
        if group.due:
            changed[0] |= bits[0] != _STALE_BITS
        rows, columns = np.nonzero(changed & (group.series != _NOBODY))
        group.now, group.until, group.due = bits[-1].copy(), int(times[-1]), False
        series = np.concatenate([gone, group.series[columns]])
        ended: Floats = np.full(len(gone), STALE)
        return RowChanges(
            group.id,
            times,
            np.concatenate([np.zeros(len(gone), dtype=np.int64), rows]),
            series,
            np.concatenate([ended, values[rows, columns]]),
        )

    def _align(self, group: _Group, labels: Sequence[Labels]) -> Ids:
        """Make a group's columns those of `labels`. Returns the series that have a value and are not among them."""
        if labels is group.labels:
            return np.empty(0, dtype=np.uint32)
        series = np.fromiter(self._ids(labels), np.uint32, len(labels))
        had = dict(zip(group.series.tolist(), group.now.tolist(), strict=True))
        now = np.fromiter((had.pop(number, _STALE_BITS) for number in series.tolist()), np.uint64, len(series))
        group.labels, group.series, group.now = labels, series, now
        gone = sorted(number for number, bits in had.items() if bits != _STALE_BITS and number != _NOBODY)
        return np.array(gone, dtype=np.uint32)

    def _group(self, name: str) -> _Group:
        if name not in self._groups:
            self._groups[name] = _Group(self._interned("groups", name))
        return self._groups[name]

    def _ids(self, labels: Sequence[Labels]) -> Iterator[int]:
        for one in labels:
            number = self._series.get(one)
            if number is None:
                number = self._id(one)
            yield number

    def _id(self, labels: Labels) -> int:
        """The id of a series, made if it is new. Not remembered where there is no room, which there may be later."""
        if labels.name not in self._names:
            self._names[labels.name] = self._interned("names", labels.name)
        key = self._names[labels.name], label_text(labels)
        found = self._connection.execute("SELECT id FROM series WHERE name = ? AND labels = ?", key).fetchone()
        if found is None:
            if self._count >= MAX_SERIES:
                self.left_out += 1
                return _NOBODY
            self._count += 1
            cursor = self._connection.execute(
                "INSERT INTO series (name, labels, last_ms) VALUES (?, ?, ?)", (*key, self._now)
            )
            found = (cursor.lastrowid,)
        self._series[labels] = int(found[0])
        return self._series[labels]

    def _interned(self, table: str, name: str) -> int:
        self._connection.execute(f"INSERT OR IGNORE INTO {table} (name) VALUES (?)", (name,))  # noqa: S608
        found = self._connection.execute(f"SELECT id FROM {table} WHERE name = ?", (name,)).fetchone()  # noqa: S608
        return int(found[0])


def newest_generation(connection: sqlite3.Connection) -> int:
    """The last one that was begun; 0 before the first."""
    (seq,) = connection.execute("SELECT max(seq) FROM ticks").fetchone()
    (sealed,) = connection.execute("SELECT max(last_generation) FROM segments").fetchone()
    return max((seq or 0) >> SEGMENT_BITS, sealed or 0)


def last_sealed(connection: sqlite3.Connection) -> dict[int, int]:
    """By group the last generation of which there is a segment."""
    is_sound = sums.sound(connection, "segments")
    query = f"SELECT grp, max(last_generation) FROM segments WHERE {is_sound} GROUP BY grp"  # noqa: S608
    return dict(connection.execute(query).fetchall())


def oldest_generation(connection: sqlite3.Connection) -> int | None:
    """The first one of which there are ticks."""
    (seq,) = connection.execute("SELECT min(seq) FROM ticks").fetchone()
    return None if seq is None else int(seq) >> SEGMENT_BITS


def generations(connection: sqlite3.Connection) -> list[int]:
    """Those of which there are ticks, in order."""
    found: list[int] = []
    seq = 0
    while (row := connection.execute("SELECT min(seq) FROM ticks WHERE seq >= ?", (seq,)).fetchone())[0] is not None:
        found.append(row[0] >> SEGMENT_BITS)
        seq = (found[-1] + 1) << SEGMENT_BITS
    return found


def forget(connection: sqlite3.Connection, generation: int) -> None:
    """Take the ticks of a generation out, within a transaction."""
    first, beyond = generation << SEGMENT_BITS, (generation + 1) << SEGMENT_BITS
    connection.execute("DELETE FROM ticks WHERE seq >= ? AND seq < ?", (first, beyond))


def set_aside(connection: sqlite3.Connection, generation: int, losses: Losses) -> list[Loss]:
    """Keep the ticks of a generation that are lost, before it is forgotten, within a transaction; what is new of it."""
    found = []
    for loss in losses:
        rows = connection.execute(
            "SELECT seq, t_ms, data FROM ticks WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?",
            (int(loss.key), (generation + 1) << SEGMENT_BITS, loss.rows),
        )
        if sums.set_aside(connection, loss, rows.fetchall()):
            found.append(loss)
    return found


def losses_of(connection: sqlite3.Connection, generation: int) -> Losses:
    """What of a generation is damaged."""
    losses = Losses()
    for _ in read(connection, generation, losses):
        pass
    return losses


def read(
    connection: sqlite3.Connection, generation: int, losses: Losses, until: int = 1 << 62, block: int = 0
) -> Iterator[LogTick]:
    """The ticks of a generation in order, as far as they have rows until a time in milliseconds, and one more; from a
    block on. What is damaged is left out until the next block begins, and added to `losses`."""
    first, beyond = generation << SEGMENT_BITS, (generation + 1) << SEGMENT_BITS
    rows = connection.execute(
        f"SELECT seq, t_ms, data, {sums.sound(connection, 'ticks')} FROM ticks"  # noqa: S608
        " WHERE seq >= ? AND seq < ? ORDER BY seq",
        (first | block << BLOCK_BITS, beyond),
    )
    chain = _Chain(losses, position(first | max(block, 1) << BLOCK_BITS))
    for seq, t, data, is_sound in rows:
        tick = chain.next(seq, t, data if is_sound else None)
        if tick is None:
            continue
        yield tick
        if tick.span[0] > until:
            return
    chain.end()


class _Chain:
    """Ticks of which each goes on from the one before, or begins a block."""

    def __init__(self, losses: Losses, expected: int) -> None:
        self._losses = losses
        self._expected = expected  # the position of the next tick
        self._lost: list[tuple[int, int]] = []  # since the last tick that was read: seq and t_ms of those that were met
        self._missing = 0  # and how many there is nothing of
        self._until: int | None = None  # the last time that was read
        self._whys: set[str] = set()

    def next(self, seq: int, t: int, data: bytes | None) -> LogTick | None:
        """The tick; None where it is lost. data: None where the row is damaged."""
        absent = position(seq) - self._expected
        if data is None:  # whatever number it has: a tick stood here
            absent = 0
        if absent > 0:
            self._missing += absent
            self._whys.add("a row is gone")
        self._expected += 1 + max(absent, 0)
        is_lost = bool(self._lost or self._missing)
        try:
            if data is None:
                raise DamagedError(sums.CHANGED)
            if absent < 0:
                raise DamagedError("a row is out of order")
            tick = wal_codec.unpack(data)
        except DamagedError as error:
            self._whys.add(str(error))
            self._lost.append((seq, t))
            return None
        if is_lost and not _begins_block(seq):
            self._lost.append((seq, t))
            return None
        if is_lost:
            self._end_loss(seq, tick.span[0])
        self._until = tick.span[1]
        return replace(tick, after_loss=is_lost)

    def end(self) -> None:
        """No tick follows."""
        if self._lost or self._missing:
            self._end_loss(self._lost[-1][0], max(t for _, t in self._lost) + 1)

    def _end_loss(self, seq: int, before: int) -> None:
        """What is lost ended before a tick and a time."""
        first, t = self._lost[0] if self._lost else (seq, before - 1)
        start = self._until + 1 if self._until is not None else min(t, before - 1)
        self._losses.add(
            Loss(
                "ticks", str(first), start, max(before - 1, start), len(self._lost) + self._missing,
                "; ".join(sorted(self._whys)),
            )
        )  # fmt: skip
        self._lost, self._missing, self._whys = [], 0, set()


def _begins_block(seq: int) -> bool:
    """Whether a tick has every value. Files of older versions have one block, which begins with 1."""
    return not seq & ((1 << BLOCK_BITS) - 1) or seq & ((1 << SEGMENT_BITS) - 1) == 1


def position(seq: int) -> int:
    """How many ticks of its generation come before it."""
    block, n = divmod(seq & ((1 << SEGMENT_BITS) - 1), 1 << BLOCK_BITS)
    return (block - 1) * BLOCK_TICKS + n if block else n - 1


def span(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """The times of the first and the last row in the log that can be read, in milliseconds.

    After the clock was set back, a later generation begins before an earlier one.
    """
    found = [one for generation in generations(connection) for one in _ends(connection, generation)]
    return (min(found), max(found)) if found else None


def _ends(connection: sqlite3.Connection, generation: int) -> Iterator[int]:
    """The times of a generation's first and last row; nothing where none can be read."""
    first = next(read(connection, generation, Losses()), None)
    if first is None:
        return
    yield first.span[0]
    beyond = (generation + 1) << SEGMENT_BITS
    (last,) = connection.execute("SELECT max(seq) FROM ticks WHERE seq < ?", (beyond,)).fetchone()
    for block in range((last & ((1 << SEGMENT_BITS) - 1)) >> BLOCK_BITS, -1, -1):
        last_times = [tick.span[1] for tick in read(connection, generation, Losses(), block=block)]
        if last_times:
            yield last_times[-1]
            return


def label_text(labels: Labels) -> str:
    """The labels without the name, as they stand in the file."""
    return json.dumps(dict(labels.drop(METRIC_NAME)), ensure_ascii=False, separators=(",", ":"))


_STALE_BITS = np.array([STALE]).view(np.uint64)[0]


def _ms(seconds: Floats) -> Ints:
    rounded: Ints = np.rint(seconds * 1000.0).astype(np.int64)
    return rounded


def _is_increasing(times: Floats) -> bool:
    return bool((np.diff(times) > 0).all())
