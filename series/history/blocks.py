"""Segments: rows of one group with one time axis, and a chunk for each metric name. How they are written and read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvitals.series.history import codec, sums
from kvitals.series.history.codec import DamagedError, Ints
from kvitals.series.history.damage import Loss
from kvitals.series.history.schema import SEGMENT_BITS, transaction
from kvitals.series.history.wal_codec import Ids
from kvitals.series.types import Floats

MAX_COLUMNS = 512
"""Of one chunk; a name with more series has several."""
_SEEN_MS = 6 * 3600 * 1000
"""How exactly it is known when a series last had a sample."""


@dataclass(frozen=True)
class Segment:
    """What is known of a segment without reading its chunks. Times in milliseconds."""

    id: int
    group: int
    first_generation: int
    last_generation: int
    step: int
    start: int
    end: int
    rows: int


@dataclass(frozen=True)
class SeriesChunk:
    """Some series of one name in a segment: values float64[rows, series]."""

    name: int
    series: Ids
    values: Floats


_COLUMNS = "id, grp, first_generation, last_generation, step_ms, start_ms, end_ms, rows"


def write(
    connection: sqlite3.Connection,
    group: int,
    generations: tuple[int, int],
    step: int,
    times: Ints,
    chunks: Iterable[SeriesChunk],
) -> None:
    """Add a segment, within a transaction."""
    cursor = connection.execute(
        "INSERT INTO segments (grp, first_generation, last_generation, step_ms, start_ms, end_ms, rows, times)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (group, *generations, step, int(times[0]), int(times[-1]), len(times), codec.encode_times(times)),
    )
    first = int(cursor.lastrowid or 0) << SEGMENT_BITS
    seen: list[int] = []
    for number, chunk in enumerate(chunks, first):
        connection.execute(
            "INSERT INTO chunks (id, name, series, data) VALUES (?, ?, ?, ?)",
            (number, chunk.name, chunk.series.tobytes(), codec.encode(chunk.values)),
        )
        seen += chunk.series.tolist()
    end = int(times[-1])
    connection.executemany(
        "UPDATE series SET last_ms = ? WHERE id = ? AND last_ms < ?", ((end, one, end - _SEEN_MS) for one in seen)
    )


def segments_between(connection: sqlite3.Connection, start: int, end: int) -> list[Segment]:
    """The segments of which some part lies in start <= t <= end."""
    return where(connection, "end_ms >= ? AND start_ms <= ?", (start, end))


def where(connection: sqlite3.Connection, condition: str, parameters: Sequence[int]) -> list[Segment]:
    """The segments that satisfy a condition in SQL; none whose row is damaged."""
    is_sound = sums.sound(connection, "segments")
    rows = connection.execute(f"SELECT {_COLUMNS} FROM segments WHERE {is_sound} AND {condition}", parameters)  # noqa: S608
    return [Segment(*row) for row in rows]


def span(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """The times of the first and of the last row, in milliseconds; None where there is none."""
    found = where(connection, "1", ())
    return (min(one.start for one in found), max(one.end for one in found)) if found else None


def times_of(connection: sqlite3.Connection, segment: Segment) -> Ints:
    """Raises DamagedError."""
    row = connection.execute("SELECT times FROM segments WHERE id = ?", (segment.id,)).fetchone()
    if row is None:
        raise DamagedError(f"segment {segment.id} is gone")
    times = codec.decode_times(row[0], segment.rows)
    if times[0] != segment.start or times[-1] != segment.end or (np.diff(times) <= 0).any():
        raise DamagedError(f"the times in segment {segment.id} differ from its stated start and end, or do not rise")
    return times


def chunks_of(connection: sqlite3.Connection, segment: Segment, name: int) -> Iterator[tuple[Ids, bytes]]:
    """The chunks of one name in a segment: series, and values as they are packed. Raises DamagedError."""
    rows = connection.execute(
        f"SELECT series, data, {sums.sound(connection, 'chunks')} FROM chunks"  # noqa: S608
        " WHERE name = ? AND id >= ? AND id < ?",
        (name, *chunk_range(segment)),
    )
    for series, data, is_sound in rows:
        yield series_of(series, is_sound), data


def chunk_range(segment: Segment) -> tuple[int, int]:
    """The ids of a segment's chunks: from the first to before the second."""
    return segment.id << SEGMENT_BITS, (segment.id + 1) << SEGMENT_BITS


def series_of(data: bytes, is_sound: bool) -> Ids:
    """The ids of a chunk's series. is_sound: the row is as it was written. Raises DamagedError."""
    if not is_sound:
        raise DamagedError(sums.CHANGED)
    if not isinstance(data, bytes) or not data or len(data) % 4:
        raise DamagedError("a chunk without series")
    return np.frombuffer(data, np.uint32)


def values_of(data: bytes, rows: int, columns: int) -> Floats:
    """The values of a chunk. Raises DamagedError."""
    values = codec.decode(data)
    if values.shape != (rows, columns):
        raise DamagedError(f"a chunk of {values.shape[0]} rows and {values.shape[1]} series in a segment of {rows}")
    return values


def set_aside(connection: sqlite3.Connection, segments: Iterable[Segment]) -> list[Loss]:
    """Take out what cannot be read of some segments and keep it as it is, in one transaction; what that was."""
    found = []
    with transaction(connection):
        for segment in segments:
            for one in losses_of(connection, segment):
                table, key = (one.table, int(one.key))
                rows = connection.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchall()  # noqa: S608
                if table == "segments":
                    rows += connection.execute(
                        "SELECT * FROM chunks WHERE id >= ? AND id < ?", chunk_range(segment)
                    ).fetchall()
                    delete(connection, [segment])
                else:
                    connection.execute("DELETE FROM chunks WHERE id = ?", (key,))
                if sums.set_aside(connection, one, rows):
                    found.append(one)
    return found


def losses_of(connection: sqlite3.Connection, segment: Segment) -> list[Loss]:
    """What of a segment cannot be read: all of it, or some of its chunks."""
    try:
        times_of(connection, segment)
    except DamagedError as error:
        return [loss(segment, str(error))]
    found = []
    rows = connection.execute(
        f"SELECT id, series, data, {sums.sound(connection, 'chunks')} FROM chunks"  # noqa: S608
        " WHERE id >= ? AND id < ?",
        chunk_range(segment),
    )
    for number, series, data, is_sound in rows:
        try:
            values_of(data, segment.rows, len(series_of(series, is_sound)))
        except DamagedError as error:
            found.append(loss(segment, str(error), number))
    return found


def loss(segment: Segment, why: str, chunk: int | None = None) -> Loss:
    """That a segment, or one of its chunks, cannot be read."""
    table, key = ("segments", segment.id) if chunk is None else ("chunks", chunk)
    return Loss(table, str(key), segment.start, segment.end, segment.rows, why)


def delete(connection: sqlite3.Connection, segments: Iterable[Segment]) -> None:
    """Take segments out with their chunks, within a transaction."""
    for one in segments:
        connection.execute("DELETE FROM chunks WHERE id >= ? AND id < ?", chunk_range(one))
        connection.execute("DELETE FROM segments WHERE id = ?", (one.id,))
