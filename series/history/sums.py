"""A checksum of each row: a row whose bytes changed on the disk is no longer read as something else, and none goes
without a word. SQLite has none of its own.

`sums` has the checksum of each row of the tables in `COLUMNS`. Triggers write it, so that no statement has to. What is
packed (`data`, `times`, `document`) has a checksum in itself and is not counted again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvitals.series.history.codec import MAX_CELLS, DamagedError, compress, decode_times, decompress
from kvitals.series.history.damage import EVER, Loss

SINCE_VERSION = 2
COLUMNS: Mapping[str, Sequence[str]] = {
    "names": ("id", "name"),
    "groups": ("id", "name"),
    "series": ("id", "name", "labels"),
    "ticks": ("seq", "t_ms"),
    "segments": (
        "id", "grp", "first_generation", "last_generation", "step_ms", "start_ms", "end_ms", "rows",
    ),
    "chunks": ("id", "name", "series"),
    "events": ("id", "t_ms", "kind", "entity", "text", "source", "key"),
    "episodes": ("key", "code", "entity", "start_ms", "end_ms", "open"),
    "batches": ("id", "kind", "start_ms", "end_ms", "count", "seen"),
}  # fmt: skip
"""Of each table the key, and what else is counted."""
_WRITE = "INSERT OR REPLACE INTO sums (part, id, crc)"
OLD = "version 1"
CHANGED = "its checksum differs"


def register(connection: sqlite3.Connection) -> None:
    """Make the checksum known to a connection."""
    connection.create_function("row_sum", -1, row_sum, deterministic=True)


def add(connection: sqlite3.Connection) -> None:
    """Give a file checksums, and the table of what was set aside. Within a transaction."""
    connection.execute(
        "CREATE TABLE sums (part TEXT NOT NULL, id NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (part, id))"
        " WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE damaged (id INTEGER PRIMARY KEY, part TEXT NOT NULL, key TEXT NOT NULL,"
        " start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL, rows INTEGER NOT NULL, why TEXT NOT NULL,"
        " found_ms INTEGER NOT NULL, content BLOB NOT NULL, UNIQUE (part, key))"
    )
    for table, columns in COLUMNS.items():
        key = columns[0]
        connection.execute(f"{_WRITE} SELECT '{table}', {key}, {_sum(columns)} FROM {table}")  # noqa: S608
        new = f"BEGIN {_WRITE} VALUES ('{table}', NEW.{key}, {_sum(columns, 'NEW.')}); END"
        connection.execute(f"CREATE TRIGGER {table}_insert AFTER INSERT ON {table} {new}")
        connection.execute(f"CREATE TRIGGER {table}_update AFTER UPDATE OF {', '.join(columns)} ON {table} {new}")
        connection.execute(
            f"CREATE TRIGGER {table}_delete AFTER DELETE ON {table}"  # noqa: S608
            f" BEGIN DELETE FROM sums WHERE part = '{table}' AND id = +OLD.{key}; END"
        )


class SummedConnection(sqlite3.Connection):
    """A connection to a history."""

    sums_state: str | None = None
    """Empty: there are checksums. Else why there are none, or why they are of no use. None: not looked yet."""


def state(connection: sqlite3.Connection) -> str:
    """Why a file has no checksums that are of use; empty where it has. A damaged table of checksums would make sound
    rows look damaged."""
    assert isinstance(connection, SummedConnection)
    if connection.sums_state is None:
        connection.sums_state = _looked_at(connection)
    return connection.sums_state


def _looked_at(connection: sqlite3.Connection) -> str:
    if int(connection.execute("PRAGMA user_version").fetchone()[0]) < SINCE_VERSION:
        return OLD
    try:
        said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(sums)").fetchall()]
    except sqlite3.DatabaseError as error:
        said = [str(error)]
    return "" if said == ["ok"] else "; ".join(said)


def are_there(connection: sqlite3.Connection) -> bool:
    """Whether a file has checksums that are of use."""
    return not state(connection)


def rebuild(connection: sqlite3.Connection) -> None:
    """Make the checksums anew where they are damaged. Raises sqlite3.Error."""
    if state(connection) in ("", OLD):
        return
    connection.execute("DELETE FROM sums")
    for table, columns in COLUMNS.items():
        connection.execute(f"{_WRITE} SELECT '{table}', {columns[0]}, {_sum(columns)} FROM {table}")  # noqa: S608
    assert isinstance(connection, SummedConnection)
    connection.sums_state = None


def sound(connection: sqlite3.Connection, table: str) -> str:
    """Whether a row of a table is as it was written, as SQL; 1 in a file without checksums."""
    if not are_there(connection):
        return "1"
    columns = COLUMNS[table]
    # `+`: without the column's affinity, so that the key of `sums` is searched whole
    stored = f"(SELECT crc FROM sums WHERE part = '{table}' AND id = +{table}.{columns[0]})"  # noqa: S608
    return f"({stored} IS {_sum(columns, f'{table}.')})"


def changed_rows(connection: sqlite3.Connection, tables: Collection[str] = tuple(COLUMNS)) -> Iterator[Loss]:
    """The rows that are not as they were written, or gone, of tables."""
    if (why := state(connection)) == OLD:
        return
    if why:
        yield Loss("sums", "", -EVER, EVER, 0, why)
        return
    for table in tables:
        key, is_sound = COLUMNS[table][0], sound(connection, table)
        axis = "times" if table == "segments" else "NULL"
        changed = f"SELECT {key}, {axis} FROM {table} WHERE NOT {is_sound}"  # noqa: S608
        for one, times in connection.execute(changed).fetchall():
            yield Loss(table, str(one), *_extent(times), CHANGED)
        gone = f"SELECT id FROM sums WHERE part = '{table}' AND id NOT IN (SELECT {key} FROM {table})"  # noqa: S608
        for (one,) in connection.execute(gone).fetchall():
            yield Loss(table, str(one), -EVER, EVER, 0, "the row is gone")


def _extent(times: bytes | None) -> tuple[int, int, int]:
    """The first and the last time of a segment whose row is damaged, and its rows, by its axis, which is packed."""
    with contextlib.suppress(DamagedError):
        if isinstance(times, bytes) and (rows := len(decompress(times, 8 * MAX_CELLS)) // 8):
            axis = decode_times(times, rows)
            return int(axis[0]), int(axis[-1]), rows
    return -EVER, EVER, 0


def set_aside(connection: sqlite3.Connection, loss: Loss, rows: Sequence[Sequence[Any]]) -> bool:
    """Keep what is left of a damaged part; within the transaction that takes it out. Whether it is new."""
    content = compress(msgspec.msgpack.encode([[_plain(cell) for cell in row] for row in rows]))
    cursor = connection.execute(
        "INSERT OR IGNORE INTO damaged (part, key, start_ms, end_ms, rows, why, found_ms, content)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (loss.table, loss.key, loss.start, loss.end, loss.rows, loss.why, round(time.time() * 1000), content),
    )
    return cursor.rowcount > 0


def set_aside_before(connection: sqlite3.Connection) -> list[Loss]:
    """What was set aside so far."""
    if state(connection) == OLD:
        return []
    rows = connection.execute("SELECT part, key, start_ms, end_ms, rows, why FROM damaged")
    return [Loss(*row) for row in rows]


def _sum(columns: Sequence[str], of: str = "") -> str:
    return f"row_sum({', '.join(f'CAST({of}{one} AS BLOB)' for one in columns)})"


def row_sum(*cells: bytes | None) -> int:
    """The checksum of a row, its cells as SQLite casts them to a BLOB."""
    found = 0
    for cell in cells:
        whole = cell or b""
        found = zlib.crc32(whole, zlib.crc32(len(whole).to_bytes(8, "little"), found))
    return found


def as_blob(cell: int | float | str | bytes | None) -> bytes | None:
    """A cell as SQLite casts it to a BLOB."""
    return cell if isinstance(cell, bytes | None) else str(cell).encode("utf-8", "surrogateescape")


def _plain(cell: Any) -> Any:
    return cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell
