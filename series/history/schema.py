"""The file: its tables, its version, and how it is opened.

Rows that share their times are a *group*, as in a window. What comes in is first a *tick*: all new rows of all groups
since the tick before, one commit each. Ticks of about an hour are a *generation*; it begins with every value and goes
on with what changed. It has *blocks* of a minute: the first rows in a block have every value again, so what is damaged
is lost until the next block. A generation that is over is *sealed*, group by group: its rows become a *segment* (one
time axis) with a *chunk* for each metric name, so that a query of one family reads that family alone. Later segments
are thinned to a row a minute (`downsample`). Generations count up for ever, so of two rows that claim the same time, as
after the clock was set back, the one of the later generation counts.

    names     id, name
    groups    id, name
    series    id, name, labels as JSON without the name, last_ms: about when it last had a sample
    ticks     seq = generation << 20 | block << 10 | n, t_ms, data (`wal_codec`)
    segments  id, grp, first and last generation, step_ms (0: every row), start_ms, end_ms, rows, times
    chunks    id = segment << 20 | n, name, series: their ids as u32, data (`codec`)
    events, episodes, batches: what happened, beside the series (`event_log`)
    sums      part, id, crc: a checksum of each row above (`sums`)
    damaged   part, key, start_ms, end_ms, rows, why, found_ms, content: what could not be read and was set aside

A version is one number, `user_version`. A file of an older one is read as it is, and brought up to date when it is
opened for writing; one of a newer is left alone. Version 1 has no checksums of rows, and generations of one block.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kvitals.series.files import FileRefusedError, refuse_irregular
from kvitals.series.history import sums
from kvitals.series.history.codec import DamagedError
from kvitals.series.undecodable import UNDECODABLE

VERSION = 2
OLDEST = 1
"""The oldest version that is read as it is."""
FILE = "history.db"
LOCK = "history.lock"
APPLICATION = 0x6B766974  # "kvit", what `file` shows
SEGMENT_BITS = 20
BLOCK_BITS = 10
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: sums.add}
"""How a file of version N becomes one of N + 1."""

_BUSY_SECONDS = 10.0
_PAGE_BYTES = 8192
_WAL_BYTES = 16 << 20
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLES = """
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE groups (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE series (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER NOT NULL, labels TEXT NOT NULL, last_ms INTEGER NOT NULL,
    UNIQUE (name, labels)
);
CREATE TABLE ticks (seq INTEGER PRIMARY KEY, t_ms INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT, grp INTEGER NOT NULL, first_generation INTEGER NOT NULL,
    last_generation INTEGER NOT NULL, step_ms INTEGER NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    rows INTEGER NOT NULL, times BLOB NOT NULL
);
CREATE INDEX segments_group ON segments (grp, last_generation);
CREATE INDEX segments_end ON segments (end_ms);
CREATE TABLE chunks (id INTEGER PRIMARY KEY, name INTEGER NOT NULL, series BLOB NOT NULL, data BLOB NOT NULL);
CREATE INDEX chunks_name ON chunks (name);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, t_ms INTEGER NOT NULL, kind TEXT NOT NULL, entity TEXT NOT NULL, text TEXT NOT NULL,
    source TEXT NOT NULL, key TEXT NOT NULL
);
CREATE INDEX events_time ON events (t_ms);
CREATE TABLE episodes (
    key TEXT PRIMARY KEY, code TEXT NOT NULL, entity TEXT NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    open INTEGER NOT NULL, document BLOB NOT NULL
);
CREATE INDEX episodes_end ON episodes (end_ms);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    count INTEGER NOT NULL, seen INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX batches_end ON batches (kind, end_ms);
"""


class HistoryError(Exception):
    """History can not be read or written. `reason`: one word of a few, for a label; the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The file, made where there is none, brought up to date where it is older.

    Each commit is on the disk when it returns: it outlives a crash of the process and a loss of power. Raises
    HistoryError for a file of a newer version, OSError where it is no regular file, else what SQLite raises.
    """
    refuse_irregular(path)
    connection = _connected(f"{path.resolve().as_uri()}?mode=rwc")
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        connection.execute("PRAGMA cache_size = -4096")
        _bring_up_to_date(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def empty_log(connection: sqlite3.Connection) -> None:
    """Move what SQLite's log has into the file, so that damage of the log loses no more than came since. What somebody
    reads just now stays for the next time. Raises sqlite3.Error."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(_BUSY_SECONDS * 1000)}")


def open_for_reading(path: Path) -> sqlite3.Connection:
    """The file, which another process may be writing. Raises HistoryError."""
    if not path.exists():
        raise HistoryError("missing", f"there is no history at {path}: the agent (`kvitals run`) keeps one")
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        refuse_irregular(path)
        if not path.stat().st_size:  # SQLite would delete the log beside it
            raise HistoryError("corrupt", f"{path} is empty, so it is not a kvitals history")
        try:
            connection = _checked(_connected(uri), path)
        except sqlite3.OperationalError:
            if path.with_name(path.name + "-wal").exists():
                raise
            # In a directory that we may not write to, and nobody writes: then it does not change under us.
            connection = _checked(_connected(f"{uri}&immutable=1"), path)
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        raise failure(error, path) from error
    return connection


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is read within is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is written within is there as a whole or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def is_corrupt(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether the file itself is broken: its structure, or the text of its schema."""
    return _code(error) in _CORRUPT or isinstance(error, UnicodeDecodeError) or str(error).startswith("no such ")


def failure(error: sqlite3.Error | UnicodeDecodeError | OSError, path: Path) -> HistoryError:
    """What a failure means and what to do about it."""
    code = _code(error)
    if isinstance(error, FileRefusedError | IsADirectoryError):
        return HistoryError("io_error", f"{path} is not a regular file: move it away, or choose another directory")
    if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in (28, 122)):
        return HistoryError(
            "disk_full", f"the disk of {path.parent} is full: free space there, and history then continues by itself"
        )
    if not isinstance(error, OSError) and is_corrupt(error):
        return HistoryError("corrupt", f"{path} is damaged ({error}): the agent renames it and starts a new file")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return HistoryError("busy", f"another process is writing {path}: try again")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH) or (
        isinstance(error, PermissionError)
    ):
        return HistoryError(
            "permission", f"{path} cannot be opened ({error}): give this user access to the directory {path.parent}"
        )
    return HistoryError("io_error", f"{path}: {error}: check the disk and its mount")


def size_of(path: Path) -> int:
    """Bytes of the file and of what SQLite keeps beside it."""
    total = 0
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with contextlib.suppress(OSError):
            total += path.with_name(name).stat().st_size
    return total


def _connected(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False,
        factory=sums.SummedConnection,
    )  # fmt: skip
    connection.text_factory = _text
    sums.register(connection)
    return connection


def _text(raw: bytes) -> str:
    """A damaged text is read, so that the other rows are: `labels_of` refuses it."""
    return raw.decode("utf-8", "surrogateescape")


def labels_of(text: str) -> dict[str, str]:
    """The labels of a series without its name. Raises DamagedError."""
    try:
        text.encode()
        return msgspec.json.decode(text, type=dict[str, str])
    except (UnicodeEncodeError, *UNDECODABLE) as error:
        raise DamagedError("the labels of a series cannot be read") from error


def _checked(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Raises HistoryError where it is none of ours, or of another version."""
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION:
            raise HistoryError("not_ours", f"{path} is not a kvitals history")
        if version > VERSION:
            raise _newer(path, version)
        if version < OLDEST:
            raise HistoryError(
                "older_version", f"{path} has version {version}: start the agent once to upgrade it to {VERSION}"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _newer(path: Path, version: int) -> HistoryError:
    return HistoryError(
        "newer_version",
        f"{path} was written by a newer kvitals (version {version}, this one knows {VERSION}): use the newer "
        f"kvitals, or move the file away",
    )


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    is_new = version == 0 and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and not is_new:
        raise HistoryError("not_ours", f"{path} is not a kvitals history: move it away, or choose another directory")
    if version > VERSION:
        raise _newer(path, version)
    if version == VERSION:
        return
    with transaction(connection):
        if is_new:
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
        for step in range(max(version, 1), VERSION):
            MIGRATIONS[step](connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _code(error: BaseException) -> int:
    extended = getattr(error, "sqlite_errorcode", None)
    return -1 if extended is None else int(extended) & 0xFF
