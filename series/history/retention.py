"""What history keeps: every row for a day, one a minute for weeks, and never more than its share of the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kvitals.series.history import blocks, sums, wal
from kvitals.series.history.damage import EVER
from kvitals.series.history.schema import transaction

SOME = 64
"""Segments that are taken out in one commit."""
_TABLES = (("events", "t_ms"), ("episodes", "end_ms"), ("batches", "end_ms"))


@dataclass(frozen=True)
class RetentionLimits:
    """How long and how much. full: seconds with every row; thinned: seconds in all. most: bytes on disk."""

    full: float = 24 * 3600.0
    thinned: float = 30 * 24 * 3600.0
    most: int = 4 << 30


def prune(connection: sqlite3.Connection, before: int) -> int:
    """Take out some of what ended before a time in milliseconds; how many segments and notes that were."""
    found = blocks.where(connection, "end_ms < ? ORDER BY end_ms LIMIT ?", (before, SOME))
    count = len(found)
    with transaction(connection):
        blocks.delete(connection, found)
        for table, column in _TABLES:
            old = f"{column} < ? AND {sums.sound(connection, table)}"
            count += connection.execute(f"DELETE FROM {table} WHERE {old}", (before,)).rowcount  # noqa: S608
        oldest = oldest_ms(connection)  # damage between rows that stay is still missing there
        gone = before if oldest is None else min(before, oldest)
        ended = "CASE WHEN end_ms >= ? THEN found_ms ELSE end_ms END"
        count += connection.execute(f"DELETE FROM damaged WHERE {ended} < ?", (EVER, gone)).rowcount  # noqa: S608
    _give_back(connection)
    return count


def shrink(connection: sqlite3.Connection, most: int) -> int:
    """Take out some of the oldest where there is more than `most` bytes; how many segments and notes that were."""
    if used_bytes(connection) <= most:
        return 0
    (there,) = connection.execute("SELECT count(*) FROM segments").fetchone()
    if there:
        some = min(SOME, 1 + there // 8)
        last = blocks.where(connection, "1 ORDER BY end_ms LIMIT 1 OFFSET ?", (some - 1,))[0]
        return prune(connection, last.end + 1)
    with transaction(connection):  # only the log is left, what happened, and what was set aside
        connection.execute("DELETE FROM damaged")
        count = connection.execute("DELETE FROM batches WHERE id IN (SELECT id FROM batches ORDER BY id LIMIT 1000)")
        known = wal.generations(connection)
        for generation in known[:-1]:
            wal.forget(connection, generation)
    _give_back(connection)
    return max(count.rowcount, 0) + max(len(known) - 1, 0)


def forget_series(connection: sqlite3.Connection, before: int, in_use: Collection[int]) -> int:
    """Take out series that had no sample since `before` (milliseconds) and are not in use, by anybody or by a chunk."""
    rows = connection.execute("SELECT id, name FROM series WHERE last_ms < ?", (before,)).fetchall()
    old = {number: name for number, name in rows if number not in in_use}
    for name in set(old.values()):
        for (series,) in connection.execute("SELECT series FROM chunks WHERE name = ?", (name,)):
            for number in np.frombuffer(series[: len(series) // 4 * 4], np.uint32).tolist():
                old.pop(number, None)
    with transaction(connection):
        connection.executemany("DELETE FROM series WHERE id = ?", ((one,) for one in old))
    return len(old)


def oldest_ms(connection: sqlite3.Connection) -> int | None:
    """The time of the first row."""
    there = [span[0] for span in (blocks.span(connection), wal.span(connection)) if span is not None]
    return min(there, default=None)


def used_bytes(connection: sqlite3.Connection) -> int:
    """What the file takes less what is free in it."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _give_back(connection: sqlite3.Connection) -> None:
    """Free pages to the file system, some at a time."""
    connection.execute("PRAGMA incremental_vacuum(256)").fetchall()
