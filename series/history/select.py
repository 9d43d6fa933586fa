"""What the file has of some series in some time, put together: segments, and the ticks that are not sealed yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from kvitals.series.history import blocks as segments
from kvitals.series.history import wal, wal_codec
from kvitals.series.history.blocks import Segment
from kvitals.series.history.codec import DamagedError, Ints
from kvitals.series.history.downsample import visible
from kvitals.series.history.schema import SEGMENT_BITS
from kvitals.series.history.wal_codec import Ids, RowChanges
from kvitals.series.promql import PromQLError
from kvitals.series.types import STALE, Floats, Frame, Labels, is_stale


@dataclass(frozen=True)
class GroupPiece:
    """Rows of one group and the values of some series in them; those of others have none."""

    generation: int
    times: Ints
    blocks: list[tuple[Ids, Floats]] = field(default_factory=list)


@dataclass
class Looking:
    """One look into the file: names with the ids of the series that are wanted, the time in milliseconds, and how
    many cells may still be read. `damaged`: parts that could not be."""

    connection: sqlite3.Connection
    wanted: Mapping[int, Ids]
    first: int
    last: int
    samples: int
    damaged: int = 0

    def frames(self, labels: Mapping[int, Labels], group: int | None = None) -> list[Frame]:
        """One frame for each group, or of one group. Raises PromQLError where there is too much."""
        found = self._of_segments(group)
        for key, piece in self._of_log(group):
            found.setdefault(key, []).append(piece)
        shown = (self._shown(pieces) for pieces in found.values() if any(piece.blocks for piece in pieces))
        frames = (_frame(pieces, labels) for pieces in shown if pieces)
        return [frame for frame in frames if frame is not None]

    def seen(self) -> set[int]:
        """The ids of series that chunks and ticks of this time have."""
        found: set[int] = set()
        there = self._there(None)
        for name in self.wanted:
            for _, series, _ in self._chunks(name, there, with_values=False):
                found.update(series.tolist())
        for generation in wal.generations(self.connection):
            for part in self._gathered(generation).values():
                if part.times[0] <= self.last and part.times[-1] >= self.first:
                    found.update(np.unique(part.series).tolist())
        return found

    def _there(self, group: int | None) -> dict[int, Segment]:
        found = segments.segments_between(self.connection, self.first, self.last)
        return {one.id: one for one in found if group in (None, one.group)}

    def _of_segments(self, group: int | None) -> dict[int, list[GroupPiece]]:
        there = self._there(group)
        pieces: dict[int, GroupPiece] = {}
        for name, ids in self.wanted.items():
            for segment, series, data in self._chunks(name, there):
                mine = np.flatnonzero(np.isin(series, ids))
                if not len(mine):
                    continue
                self._spend(segment.rows * len(mine))
                try:
                    if segment.id not in pieces:
                        pieces[segment.id] = self._empty(segment)
                    values = segments.values_of(data, segment.rows, len(series))
                except DamagedError:
                    self.damaged += 1
                    continue
                pieces[segment.id].blocks.append((series[mine], values[:, mine]))
        found: dict[int, list[GroupPiece]] = {}
        for segment in self._with_ends(there, pieces):
            try:
                found.setdefault(segment.group, []).append(pieces.get(segment.id) or self._empty(segment))
            except DamagedError:
                self.damaged += 1
        return found

    def _with_ends(self, there: Mapping[int, Segment], pieces: Mapping[int, GroupPiece]) -> Iterator[Segment]:
        """The segments of pieces, and of each group those that come next: there the series end that it has not."""
        of_group: dict[int, list[Segment]] = {}
        for segment in sorted(there.values(), key=lambda one: one.last_generation):
            of_group.setdefault(segment.group, []).append(segment)
        for mine in of_group.values():
            yield from (one for one in mine[:1] if one.id in pieces)
            yield from (one for before, one in pairwise(mine) if one.id in pieces or before.id in pieces)

    def _empty(self, segment: Segment) -> GroupPiece:
        return GroupPiece(segment.last_generation, segments.times_of(self.connection, segment))

    def _chunks(
        self, name: int, there: Mapping[int, Segment], *, with_values: bool = True
    ) -> Iterator[tuple[Segment, Ids, bytes]]:
        """The chunks of a name in some segments."""
        if not there:
            return
        rows = self.connection.execute(
            f"SELECT id, series, {'data' if with_values else 'NULL'} FROM chunks"  # noqa: S608
            " WHERE name = ? AND id >= ? AND id < ?",
            (name, min(there) << SEGMENT_BITS, (max(there) + 1) << SEGMENT_BITS),
        )
        for number, series, data in rows:
            segment = there.get(number >> SEGMENT_BITS)
            if segment is None:
                continue
            try:
                yield segment, segments.series_of(series), data
            except DamagedError:
                self.damaged += 1

    def _of_log(self, group: int | None) -> Iterator[tuple[int, GroupPiece]]:
        """What is not sealed yet, by group."""
        sealed = dict(self.connection.execute("SELECT grp, max(last_generation) FROM segments GROUP BY grp").fetchall())
        ids = np.sort(np.concatenate(list(self.wanted.values())))
        for generation in wal.generations(self.connection):
            for key, part in self._gathered(generation, ids, group).items():
                if sealed.get(key, 0) < generation:
                    columns = wal_codec.ChangeColumns(part)
                    self._spend(len(part.times) * len(columns.series))
                    blocks = [(columns.series, columns.of(columns.series))] if len(columns.series) else []
                    yield key, GroupPiece(generation, part.times, blocks)

    def _gathered(self, generation: int, wanted: Ids | None = None, group: int | None = None) -> dict[int, RowChanges]:
        try:
            return wal_codec.gather_rows(wal.read(self.connection, generation, self.last), group, wanted)
        except DamagedError:
            self.damaged += 1
            return {}

    def _shown(self, pieces: list[GroupPiece]) -> list[GroupPiece]:
        """Cut to this time and to what no later generation hides, in order of time."""
        pieces = sorted(pieces, key=lambda piece: piece.generation)
        found = []
        for piece, rows in zip(pieces, visible([piece.times for piece in pieces]), strict=True):
            times = piece.times[rows]
            kept = rows[(times >= self.first) & (times <= self.last)]
            if len(kept):
                blocks = [(ids, values[kept]) for ids, values in piece.blocks]
                found.append(GroupPiece(piece.generation, piece.times[kept], blocks))
        return sorted(found, key=lambda piece: int(piece.times[0]))

    def _spend(self, cells: int) -> None:
        self.samples -= cells
        if self.samples < 0:
            raise PromQLError("the query touches too many samples of history: select fewer series or a shorter range")


def _frame(pieces: list[GroupPiece], labels: Mapping[int, Labels]) -> Frame | None:
    """Pieces of one group as a frame, of the series that have a sample in it."""
    some = [ids for piece in pieces for ids, _ in piece.blocks]
    if not some:
        return None
    series = np.unique(np.concatenate(some))
    times = np.concatenate([piece.times for piece in pieces])
    values: Floats = np.full((len(times), len(series)), STALE)
    top = 0
    for piece in pieces:
        bottom = top + len(piece.times)
        for ids, block in piece.blocks:
            values[top:bottom, series.searchsorted(ids)] = block
        top = bottom
    if (np.diff(times) <= 0).any():  # a piece lies in a hole of another
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
    seen = ~is_stale(values).all(axis=0)
    if not seen.any():
        return None
    kept = values if seen.all() else values[:, seen]
    return Frame(times / 1000.0, kept, [labels[number] for number in series[seen].tolist()])
