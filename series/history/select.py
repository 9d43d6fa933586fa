"""What the file has of some series in some time, put together: segments, and the ticks that are not sealed yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from kvitals.series.history import blocks as segments
from kvitals.series.history import sums, wal, wal_codec
from kvitals.series.history.blocks import Segment
from kvitals.series.history.codec import DamagedError, Ints
from kvitals.series.history.damage import Losses
from kvitals.series.history.downsample import visible
from kvitals.series.history.schema import SEGMENT_BITS
from kvitals.series.history.wal_codec import Ids
from kvitals.series.promql import QueryLimitError
from kvitals.series.row_blocks import Columns
from kvitals.series.types import STALE, Floats, Frame, Labels, is_stale

TOO_MANY = "the query touches too many samples of history: select fewer series or a shorter range"


@dataclass(frozen=True)
class GroupPiece:
    """Rows of one group. The values of some series in them are read when the frame has its place for them, so that a
    selection is in memory once. Others have none."""

    generation: int
    times: Ints
    series: list[Ids]
    """Of each block."""
    blocks: Callable[[], Iterator[PieceBlock]]


PieceBlock = tuple[int, Ids, Floats]
"""The first row of the piece, the series, and their values in the rows from there on."""


@dataclass
class Looking:
    """One look into the file: names with the ids of the series that are wanted, the time in milliseconds, and how many
    cells the frames may have. `check` is called now and then, and what it raises ends the work. `losses`: parts that
    could not be read."""

    connection: sqlite3.Connection
    wanted: Mapping[int, Ids]
    first: int
    last: int
    samples: int
    check: Callable[[], None] = lambda: None
    losses: Losses = field(default_factory=Losses)
    held: int = 0
    """Cells of the log that are in memory until their frames are made."""

    def frames(self, labels: Mapping[int, Labels], group: int | None = None) -> list[Frame]:
        """One frame for each group, or of one group. Raises PromQLError where there is too much."""
        found = self._of_segments(group)
        for key, piece in self._of_log(group):
            found.setdefault(key, []).append(piece)
        made = [self._frame(found.pop(key), labels) for key in list(found)]
        return [frame for frame in made if frame is not None]

    def seen(self) -> set[int]:
        """The ids of series that chunks and ticks of this time have."""
        found: set[int] = set()
        there = self._there(None)
        for name in self.wanted:
            for _, _, series in self._chunks(name, there):
                found.update(series.tolist())
        for generation in wal.generations(self.connection):
            groups = wal_codec.series_in(wal.read(self.connection, generation, self.losses, self.last))
            for part in groups.values():
                if part.first <= self.last and part.last >= self.first:
                    found.update(part.series.tolist())
        return found

    def _there(self, group: int | None) -> dict[int, Segment]:
        found = segments.segments_between(self.connection, self.first, self.last)
        return {one.id: one for one in found if group in (None, one.group)}

    def _of_segments(self, group: int | None) -> dict[int, list[GroupPiece]]:
        there = self._there(group)
        chunks: dict[int, list[tuple[int, Columns, Ids]]] = {}  # segment -> chunk, its columns and their series
        for name, ids in self.wanted.items():
            for segment, number, series in self._chunks(name, there):
                mine = np.flatnonzero(np.isin(series, ids))
                if len(mine):
                    chunks.setdefault(segment.id, []).append((number, mine, series))
        found: dict[int, list[GroupPiece]] = {}
        for segment in self._with_ends(there, chunks):
            try:
                piece = self._piece(segment, chunks.get(segment.id, []))
            except DamagedError as error:
                self.losses.add(segments.loss(segment, str(error)))
                continue
            found.setdefault(segment.group, []).append(piece)
        return found

    def _piece(self, segment: Segment, chunks: Sequence[tuple[int, Columns, Ids]]) -> GroupPiece:
        """The rows of a segment, with some columns of these chunks. Raises DamagedError."""

        def blocks() -> Iterator[PieceBlock]:
            for number, columns, series in chunks:
                self.check()
                try:
                    values = segments.values_of(self._data(number), segment.rows, len(series))
                except DamagedError as error:
                    self.losses.add(segments.loss(segment, str(error), number))
                    continue
                yield 0, series[columns], values if len(columns) == len(series) else values[:, columns]

        times = segments.times_of(self.connection, segment)
        return GroupPiece(segment.last_generation, times, [series[columns] for _, columns, series in chunks], blocks)

    def _data(self, chunk: int) -> bytes:
        """The values of a chunk as they are packed. Raises DamagedError."""
        row = self.connection.execute("SELECT data FROM chunks WHERE id = ?", (chunk,)).fetchone()
        if row is None:
            raise DamagedError(f"chunk {chunk} is gone")
        data: bytes = row[0]
        return data

    def _with_ends(self, there: Mapping[int, Segment], pieces: Container[int]) -> Iterator[Segment]:
        """The segments of pieces, and of each group those that come next: there the series end that it has not."""
        of_group: dict[int, list[Segment]] = {}
        for segment in sorted(there.values(), key=lambda one: one.last_generation):
            of_group.setdefault(segment.group, []).append(segment)
        for mine in of_group.values():
            yield from (one for one in mine[:1] if one.id in pieces)
            yield from (one for before, one in pairwise(mine) if one.id in pieces or before.id in pieces)

    def _chunks(self, name: int, there: Mapping[int, Segment]) -> Iterator[tuple[Segment, int, Ids]]:
        """The chunks of a name in some segments, by id, and their series; without values."""
        if not there:
            return
        is_sound = sums.sound(self.connection, "chunks")
        rows = self.connection.execute(
            f"SELECT id, series, {is_sound} FROM chunks WHERE name = ? AND id >= ? AND id < ?",  # noqa: S608
            (name, min(there) << SEGMENT_BITS, (max(there) + 1) << SEGMENT_BITS),
        )
        for number, series, is_sound in rows:
            segment = there.get(number >> SEGMENT_BITS)
            if segment is None:
                continue
            try:
                yield segment, number, segments.series_of(series, is_sound)
            except DamagedError as error:
                self.losses.add(segments.loss(segment, str(error), number))

    def _of_log(self, group: int | None) -> Iterator[tuple[int, GroupPiece]]:
        """What is not sealed yet, by group."""
        sealed = wal.last_sealed(self.connection)
        ids = np.sort(np.concatenate(list(self.wanted.values())))
        for generation in wal.generations(self.connection):
            done = {key for key, last in sealed.items() if last >= generation}
            for key, part in self._gathered(generation, ids, partial(_is_wanted, done, group)):
                blocks = partial(iter, part.blocks)
                yield key, GroupPiece(generation, np.array(part.times), [part.series], blocks)

    def _gathered(
        self, generation: int, ids: Ids, wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, wal_codec.DenseRows]]:
        """The rows of a generation, of the groups that are wanted."""
        log = wal_codec.DenseLog(ids, wanted, self.first, self.last)
        for tick in wal.read(self.connection, generation, self.losses, self.last):
            self.check()
            log.add(tick)
            if self.held + log.cells > self.samples:
                raise QueryLimitError(TOO_MANY)
        self.held += log.cells
        for key, part in log.groups.items():
            part.close()
            yield key, part

    def _frame(self, pieces: list[GroupPiece], labels: Mapping[int, Labels]) -> Frame | None:
        """Pieces of one group as a frame, of the series that have a sample in it: cut to this time and to what no later
        generation hides. Raises PromQLError where it is too much."""
        if not any(len(series) for piece in pieces for series in piece.series):
            return None
        shown = self._shown(pieces)
        some = [series for piece, _ in shown for series in piece.series]
        if not some:
            return None
        series = np.unique(np.concatenate(some))
        times = np.concatenate([piece.times[rows] for piece, rows in shown])
        self.samples -= len(times) * len(series)
        if self.samples < 0:
            raise QueryLimitError(TOO_MANY)
        order = np.argsort(times, kind="stable")  # a piece may lie in a hole of another
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        values: Floats = np.full((len(times), len(series)), STALE)
        top = 0
        for piece, rows in shown:
            _fill(values, places[top : top + len(rows)], series, piece, rows)
            top += len(rows)
        seen = ~is_stale(values).all(axis=0)
        if not seen.any():
            return None
        kept = values if seen.all() else values[:, seen]
        return Frame(times[order] / 1000.0, kept, [labels[number] for number in series[seen].tolist()])

    def _shown(self, pieces: list[GroupPiece]) -> list[tuple[GroupPiece, Ints]]:
        """Pieces in order of time, with their rows of this time that no later generation hides."""
        pieces = sorted(pieces, key=lambda piece: piece.generation)
        found = []
        for piece, rows in zip(pieces, visible([piece.times for piece in pieces]), strict=True):
            times = piece.times[rows]
            kept = rows[(times >= self.first) & (times <= self.last)]
            if len(kept):
                found.append((piece, kept))
        return sorted(found, key=lambda one: int(one[0].times[one[1][0]]))


def _is_wanted(done: Container[int], group: int | None, key: int) -> bool:
    """Whether the rows of a group are read from the log: they are not sealed, and it is the group that is wanted."""
    return key not in done and group in (None, key)


def _fill(values: Floats, places: Ints, series: Ids, piece: GroupPiece, rows: Ints) -> None:
    """Put the values of some rows of a piece into a frame: row `rows[i]` at `places[i]`."""
    for first, ids, block in piece.blocks():
        low, high = rows.searchsorted((first, first + len(block)))
        if low == high:
            continue
        there, columns = places[low:high], series.searchsorted(ids)
        part = block if high - low == len(block) else block[rows[low:high] - first]
        if there[-1] - there[0] == len(there) - 1:  # they follow each other, nearly always
            values[there[0] : there[-1] + 1, columns] = part
        else:
            values[np.ix_(there, columns)] = part
