"""Which row was committed last, in a file beside the history (`history.newest`).

SQLite takes a damaged, cut or missing write-ahead log for one that ends there, without an error. Whoever opens a
history compares its newest row with this file, and so knows that rows are lost.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from kvitals.series.files import make_file, read_regular, replace_file
from kvitals.series.history import blocks, wal
from kvitals.series.history.damage import EVER, Loss, time_text
from kvitals.series.history.schema import SEGMENT_BITS, transaction
from kvitals.series.history.sums import set_aside

_BYTES = 47
_NO_ROW = (1 << SEGMENT_BITS) - 1
"""The first row of the first generation comes after it."""
_ATTEMPTS, _RETRY_SECONDS = 3, 0.01
_WHY = "the file ends before the last row that was committed: its log (history.db-wal) is damaged, cut or missing"


@dataclass(frozen=True)
class NewestRow:
    """seq: as in `ticks`; 0: nothing is known. t: milliseconds since the epoch."""

    seq: int
    t: int


def file_of(history: Path) -> Path:
    """Where it stands which row of a history was committed last."""
    return history.with_suffix(".newest")


def read(history: Path) -> NewestRow | str | None:
    """The last row that was committed to a history, or why that is unknown although it should be known; None of a
    history that was closed without such a file, or that there is none of."""
    for attempt in range(_ATTEMPTS):
        try:
            text = read_regular(file_of(history), _BYTES).decode("ascii")
            seq, t, _ = text.split()
            row = NewestRow(int(seq), int(t))
            if text == text_of(row):
                return row
        except FileNotFoundError:
            log = history.with_name(history.name + "-wal")
            return _unknown(history, "is missing") if log.exists() and log.stat().st_size else None
        except (OSError, ValueError):
            pass
        time.sleep(_RETRY_SECONDS * attempt)  # it may be written just now
    return _unknown(history, "cannot be read")


def _unknown(history: Path, what: str) -> str:
    return f"{file_of(history).name} {what}, so it is unknown whether newer rows were committed and lost"


def forget(history: Path) -> None:
    """Nothing is known, also after a loss of power: before a history is begun, or rows are taken out of it. Raises
    OSError."""
    _replace(history, NewestRow(0, 0))


def _replace(history: Path, row: NewestRow) -> None:
    replace_file(file_of(history), text_of(row).encode())


class NewestRowFile:
    """The file, for the one who writes the history. What goes wrong is not an error: the rows are safe without it."""

    def __init__(self, history: Path, connection: sqlite3.Connection) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            _replace(history, NewestRow(_newest_seq(connection), round(1000 * time.time())))
            self._descriptor = make_file(file_of(history))

    def write(self, row: NewestRow) -> None:
        """After the row was committed. Not synced: after a loss of power the file states this row or an earlier one,
        for a disk writes a sector whole or not at all."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, text_of(row).encode(), 0)

    def close(self) -> None:
        """Write no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def deleted_text(history: Path) -> str:
    """That a history which is not there was deleted, and up to when it had rows; empty where nothing tells so."""
    if history.exists() or not isinstance(row := read(history), NewestRow) or row.seq <= _NO_ROW:
        return ""
    return f"{history.name} was deleted, with all rows up to {time_text(row.t / 1000)}"


def lost_rows(connection: sqlite3.Connection, committed: NewestRow | str | None) -> list[Loss]:
    """The rows at the end that a history no longer has; at most one loss. committed: as `read` before the connection
    read anything. All that the connection reads must be of one moment."""
    there = _newest_seq(connection)
    if committed is None or (isinstance(committed, NewestRow) and committed.seq <= there):
        return []
    spans = [span[1] for span in (blocks.span(connection), wal.span(connection)) if span is not None]
    if isinstance(committed, str):
        return [Loss("wal", str(there + 1), max(spans, default=-EVER) + 1, EVER, 0, committed)]
    start = min(max(spans) + 1, committed.t) if spans else -EVER
    rows = 0  # unknown: how many rows an earlier generation had stands nowhere else
    if committed.seq >> SEGMENT_BITS == there >> SEGMENT_BITS:
        rows = wal.position(committed.seq) - wal.position(there)
    return [Loss("wal", str(committed.seq), start, committed.t, rows, _WHY)]


def note_lost_rows(connection: sqlite3.Connection, committed: NewestRow | str | None) -> list[Loss]:
    """As `lost_rows`, and keep it in the history; what is new of it. Raises sqlite3.Error."""
    losses = lost_rows(connection, committed)
    with transaction(connection):
        return [loss for loss in losses if set_aside(connection, loss, [])]


def _newest_seq(connection: sqlite3.Connection) -> int:
    (seq,) = connection.execute("SELECT max(seq) FROM ticks").fetchone()
    (sealed,) = connection.execute("SELECT max(last_generation) FROM segments").fetchone()
    return max(seq or 0, ((sealed or 0) + 1 << SEGMENT_BITS) - 1)


def text_of(row: NewestRow) -> str:
    """What the file has."""
    numbers = f"{row.seq:018d} {row.t:018d}"
    return f"{numbers} {zlib.crc32(numbers.encode()):08x}\n"
