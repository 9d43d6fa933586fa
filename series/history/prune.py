"""What a person takes out of a history: all data before a time, or the oldest of it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvitals.series.files import FileInUseError, lock_file
from kvitals.series.history import compact, newest_row, retention, schema, wal
from kvitals.series.history.schema import LOCK
from kvitals.series.history.set_aside_files import SetAsideFile, set_aside_files


@dataclass(frozen=True)
class PrunedHistory:
    """What stays although it was to be deleted. rows: ticks before the time, which the agent has not sealed yet. bytes:
    more than the size that was asked for. files: set aside after the time, and may have older data."""

    rows: int
    bytes: int
    files: list[SetAsideFile]


def prune_history(path: Path, before: int | None, most: int | None) -> PrunedHistory:
    """Delete what ended before a time in milliseconds, and the oldest until at most `most` bytes are in use.

    While an agent writes the history, the hour that it writes stays. Raises HistoryError, OSError.
    """
    files = [] if before is None else set_aside_files(path)
    for file in files:
        if file.at * 1000 < (before or 0):
            file.delete()
    try:
        with _alone(path.with_name(LOCK)) as alone:
            committed = newest_row.read(path)
            connection = schema.open_for_writing(path)
            try:
                if alone:
                    newest_row.note_lost_rows(connection, committed)
                    newest_row.forget(path)  # rows up to the newest one may be deleted, and are not lost
                    _seal(connection)
                rows, more = _prune(connection, before, most)
            finally:
                connection.close()
    except sqlite3.Error as error:
        raise schema.failure(error, path) from error
    return PrunedHistory(rows, more, [file for file in files if file.path.exists()])


def _seal(connection: sqlite3.Connection) -> None:
    """The hour that was written last is otherwise never sealed, and so never deleted."""
    sealer = compact.Sealer(connection)
    while sealer.step(wal.newest_generation(connection) + 1):
        pass


def _prune(connection: sqlite3.Connection, before: int | None, most: int | None) -> tuple[int, int]:
    """Returns the ticks before the time, and the bytes above the size, that stay."""
    while before is not None and retention.prune(connection, before):
        pass
    while most is not None and retention.shrink(connection, most):
        pass
    connection.execute("PRAGMA incremental_vacuum").fetchall()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    (rows,) = connection.execute("SELECT count(*) FROM ticks WHERE t_ms < ?", (before or 0,)).fetchone()
    return rows, 0 if most is None else max(retention.used_bytes(connection) - most, 0)


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    try:
        descriptor = lock_file(lock)
    except FileInUseError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)
