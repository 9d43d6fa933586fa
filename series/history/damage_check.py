"""Which parts of a history are damaged: looked for in every row, and restored where the file has a second copy."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from kvitals.series.history import blocks, event_log, sums, wal
from kvitals.series.history.codec import DamagedError, decompress
from kvitals.series.history.damage import EVER, Loss, Losses
from kvitals.series.history.schema import is_corrupt, transaction

DICTIONARIES = ("names", "groups", "series")
"""Tables whose index has each row once more."""
_PACKED = {"episodes": ("document", event_log.MAX_DOCUMENT_BYTES), "batches": ("data", event_log.MAX_BATCH_BYTES)}
_OTHERS = [table for table in sums.COLUMNS if table not in (*DICTIONARIES, "ticks")]
_SMALL = ("segments", "events", "episodes")
_ERRORS = 20


def inspect(connection: sqlite3.Connection, start: int = -EVER, end: int = EVER, *, thorough: bool = True) -> Losses:
    """What is damaged, or was set aside, and may lie in start <= t <= end (milliseconds). thorough: look at
    each row and at the structure too, which reads the whole file."""
    losses = Losses()
    try:
        losses.update(sums.set_aside_before(connection))
        for generation in wal.generations(connection):
            losses.update(wal.losses_of(connection, generation))
        for segment in blocks.segments_between(connection, start, end):
            losses.update(blocks.losses_of(connection, segment))
        for table in DICTIONARIES:
            losses.update(sound_copies(connection, table)[1])
        losses.update(sums.changed_rows(connection, _OTHERS if thorough else _SMALL))
        if thorough:
            losses.update(_packed(connection))
            losses.update(_structure(connection))
    except sqlite3.DatabaseError as error:
        if not is_corrupt(error):
            raise
        losses.add(Loss("file", "", -EVER, EVER, 0, str(error)))
    return losses.between(start, end)


def sound_copies(connection: sqlite3.Connection, table: str) -> tuple[dict[int, tuple[Any, ...]], list[Loss]]:
    """The rows of a dictionary of which one of two copies is damaged: by id what was written (as in its index), and the
    rows of which that is unknown."""
    columns = ", ".join(sums.COLUMNS[table])
    of_table = f"SELECT {columns} FROM {table} NOT INDEXED"  # noqa: S608
    of_index = f"SELECT {columns} FROM {table} INDEXED BY sqlite_autoindex_{table}_1"  # noqa: S608
    doubtful = {
        row[0]
        for query in (
            f"{of_table} EXCEPT {of_index}", f"{of_index} EXCEPT {of_table}",
            f"SELECT id FROM {table} NOT INDEXED WHERE NOT {sums.sound(connection, table)}",  # noqa: S608
        )
        for row in connection.execute(query).fetchall()
    }  # fmt: skip
    if not doubtful:
        return {}, []
    some = f"WHERE id IN ({', '.join(map(str, sorted(doubtful)))})"
    copies = [{row[0]: row[1:] for row in connection.execute(f"{query} {some}")} for query in (of_table, of_index)]
    found, losses = {}, []
    for number in sorted(doubtful):
        cells = [copy[number] for copy in copies if number in copy]
        sound = [one for one in cells if _is_as_written(connection, table, (number, *one))]
        if sound or (len(cells) == len(copies) and len(set(cells)) == 1):
            found[number] = (sound or cells)[0]
        else:
            losses.append(Loss(table, str(number), -EVER, EVER, 0, sums.CHANGED))
    return found, losses


def _is_as_written(connection: sqlite3.Connection, table: str, row: tuple[Any, ...]) -> bool:
    if not sums.are_there(connection):
        return False
    found = connection.execute("SELECT crc FROM sums WHERE part = ? AND id = ?", (table, row[0])).fetchone()
    return found is not None and found[0] == sums.row_sum(*(sums.as_blob(cell) for cell in row))


def _packed(connection: sqlite3.Connection) -> Iterator[Loss]:
    for table, (column, most) in _PACKED.items():
        key = sums.COLUMNS[table][0]
        rows = connection.execute(f"SELECT {key}, start_ms, end_ms, {column} FROM {table}")  # noqa: S608
        for one, start, end, data in rows:
            try:
                decompress(data, most)
            except DamagedError as error:
                yield Loss(table, str(one), start, end, 0, str(error))


def _structure(connection: sqlite3.Connection) -> Iterator[Loss]:
    rows = connection.execute(f"PRAGMA integrity_check({_ERRORS})").fetchall()
    said = [str(row[0]) for row in rows if row[0] != "ok"]
    if said:
        yield Loss("file", "", -EVER, EVER, 0, "; ".join(said))


def repair(connection: sqlite3.Connection, *, thorough: bool) -> list[Loss]:
    """Restore what has a second copy, and set aside the other rows that are damaged; what is new of them. thorough:
    look at each row, which reads the whole file. Raises sqlite3.Error."""
    found = []
    with transaction(connection):
        sums.rebuild(connection)
    for table in DICTIONARIES:
        rows, losses = sound_copies(connection, table)
        if rows or losses:
            with transaction(connection):
                _restore(connection, table, rows)
                found += _take_out(connection, losses)
    losses = list(sums.changed_rows(connection, _OTHERS if thorough else _SMALL))
    losses += _packed(connection) if thorough else ()
    if losses:
        with transaction(connection):
            found += _take_out(connection, losses)
    return found


def _restore(connection: sqlite3.Connection, table: str, rows: dict[int, tuple[Any, ...]]) -> None:
    columns = sums.COLUMNS[table]
    connection.execute(f"REINDEX {table}")
    last = ", last_ms" if table == "series" else ""
    for number, cells in rows.items():
        connection.execute(f"DELETE FROM {table} WHERE id = ?", (number,))  # noqa: S608
        connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}{last})"  # noqa: S608
            f" VALUES ({', '.join('?' * len(columns))}{', ?' if last else ''})",
            (number, *cells, *((round(time.time() * 1000),) if last else ())),
        )


def _take_out(connection: sqlite3.Connection, losses: list[Loss]) -> list[Loss]:
    """Set rows aside. An index may have what they were: SQLite takes out none that it does not find there."""
    for table in {loss.table for loss in losses}:
        connection.execute(f"REINDEX {table}")
    found = []
    for loss in losses:
        key = sums.COLUMNS[loss.table][0]
        rows = connection.execute(f"SELECT * FROM {loss.table} WHERE {key} = ?", (loss.key,)).fetchall()  # noqa: S608
        connection.execute(f"DELETE FROM {loss.table} WHERE {key} = ?", (loss.key,))  # noqa: S608
        connection.execute("DELETE FROM sums WHERE part = ? AND id = ?", (loss.table, _as_key(loss)))
        if sums.set_aside(connection, loss, rows):
            found.append(loss)
    return found


def _as_key(loss: Loss) -> str | int:
    return loss.key if loss.table == "episodes" else int(loss.key)
