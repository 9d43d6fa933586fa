"""What was taken in and what is still to be handed on, in one SQLite file: a commit is synced to the disk before
anybody is told that it is done, so that nothing acknowledged is lost when the process is killed or the power fails.

One process at a time uses a directory: two would send every notice twice. Blocking, and one thread's.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from kvitals.app.notify.notice import Link, Notice, NoticeAlert
from kvitals.app.notify.order import EntityKey, entity_key
from kvitals.rules.model import Severity
from kvitals.series.files import (
    FileInUseError,
    append_line,
    lock_file,
    make_directory,
    refuse_irregular,
    sync_directory,
)
from kvitals.series.history.schema import is_corrupt
from kvitals.series.undecodable import UNDECODABLE

FILE = "notify.db"
DEAD = "dead-letters.jsonl"
LOCK = "notify.lock"
MAX_MESSAGES = 1000
NOT_PAGES = 0.75
"""Of what may wait, how much messages and notices that are no pages may take: what is left is for pages."""
MAX_BYTES = 64 << 20
MAX_DELIVERIES = 10_000
MAX_OPEN, MAX_OF_ENTITY = 10_000, 500
"""Incidents at most, in all and of one entity; the oldest of too many are dropped."""
MAX_DEAD_BYTES = 32 << 20
MAX_WAL_BYTES = 16 << 20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY AUTOINCREMENT, received REAL NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS incident (
  id TEXT PRIMARY KEY, seen REAL NOT NULL, body BLOB NOT NULL, entity TEXT NOT NULL DEFAULT '',
  code TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS delivery (
  id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL, incident TEXT NOT NULL, notice BLOB NOT NULL,
  created REAL NOT NULL, due REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '',
  page INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS of_target ON delivery (target, incident, id);
"""
_LATER = """
CREATE INDEX IF NOT EXISTS of_entity ON incident (entity);
CREATE INDEX IF NOT EXISTS of_code ON incident (code);
"""
"""Indexes of columns that the file of an earlier version has only once they are added."""
_DROP_OLDEST = "DELETE FROM incident WHERE id IN (SELECT id FROM incident"
_OF_TOO_MANY = "ORDER BY seen DESC, rowid DESC LIMIT -1 OFFSET ?)"

_log = structlog.get_logger(__name__)


class SpoolError(Exception):
    """Nothing can be kept now, and why."""


class OpenIncident(msgspec.Struct, frozen=True, kw_only=True):
    """A trouble that was told of, until all of its alerts are resolved."""

    id: str
    entity: dict[str, str]
    code: str  # of the cause that was found last; empty where none was
    title: str
    severity: Severity
    began: float
    told: float
    explains: list[str]  # codes that the cause explains
    open: dict[str, NoticeAlert]  # alerts by their key
    links: list[Link] = []
    pool: str = ""  # of the engine, as the diagnosis resolved it
    of_engines: bool = True  # whether an alert of it is about engines by its rule or its expression
    waning: float = 0.0  # when one of its alerts was resolved while others went on; 0: never
    engine: str = ""  # that the diagnosis found, by its name
    judged: bool = True  # whether its entity was judged; if not, nobody knows yet whether its alerts have one cause

    @property
    def may_be_over(self) -> bool:
        """Whether what is left of it may have been resolved without a message: an Alertmanager sends none of an alert
        that another one inhibits. Whether that is so, a diagnosis shows, where all alerts left are of our rules."""
        return bool(self.waning) and all(one.code for one in self.open.values())

    @property
    def began_at_least(self) -> bool:
        """Whether it may have begun earlier: its first alert has no start."""
        first = min(self.open.values(), key=lambda one: one.since, default=None)
        return first is not None and first.since_at_least and first.since <= self.began

    @property
    def codes(self) -> frozenset[str]:
        """The rules that are spoken of already."""
        return frozenset({self.code, *self.explains, *(one.code for one in self.open.values())} - {""})

    @property
    def alert_codes(self) -> frozenset[str]:
        """The rules of its alerts; the empty text stands for those that are not of a kvitals rule."""
        return frozenset(one.code for one in self.open.values())

    def explained(self, code: str) -> bool:
        """Whether the diagnosed cause explains alerts of this rule, so that they need no message of their own. Without
        a cause, and for alerts that are not of a kvitals rule, always false."""
        return bool(self.code and code) and code in (self.code, *self.explains)


@dataclass(frozen=True)
class WaitingMessage:
    """A message that is to be diagnosed."""

    id: int
    received: float
    body: bytes


@dataclass(frozen=True)
class NoticeDelivery:
    """A notice on its way to one target."""

    id: int
    target: str
    notice: Notice
    created: float
    attempts: int
    error: str


@dataclass(frozen=True)
class MessageOutcome:
    """What a message comes to: incidents as they are now, those that are over, and what is to be told to whom."""

    incidents: Sequence[OpenIncident] = ()
    over: Sequence[str] = ()
    notices: Sequence[tuple[str, Notice]] = ()  # target, what


@dataclass
class Spool:
    """The file, from `open` to `close`."""

    directory: Path
    _db: sqlite3.Connection | None = field(default=None, repr=False)
    _lock: int | None = field(default=None, repr=False)

    def open(self) -> None:
        """Take the directory over. A damaged file is set aside and a new one is begun. Raises SpoolError."""
        path = self.directory / FILE
        try:
            make_directory(self.directory, 0o700)
            self._lock = lock_file(self.directory / LOCK)
        except FileInUseError:
            raise SpoolError(f"another process uses the message queue in {self.directory}") from None
        except OSError as error:
            raise SpoolError(f"{self.directory} cannot be used: {error}") from error
        try:
            try:
                self._db = _opened(path)
            except sqlite3.DatabaseError as error:
                if not is_corrupt(error):
                    raise
                _set_aside(path, error)
                self._db = _opened(path)
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise SpoolError(f"{path} cannot be used: {error}") from error

    def close(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):  # all that was committed is on the disk
                self._db.close()
            self._db = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def put(self, body: bytes, received: float, *, page: bool = False) -> None:
        """Keep a message; on the disk when this returns. Raises SpoolError where there is no room.

        page: whether an alert in it is a page.
        """
        share = 1.0 if page else NOT_PAGES
        with self._writing() as db:
            count, size = db.execute("SELECT count(*), coalesce(sum(length(body)), 0) FROM message").fetchone()
            (deliveries,) = db.execute("SELECT count(*) FROM delivery").fetchone()
            if (
                count >= MAX_MESSAGES * share
                or size + len(body) > MAX_BYTES * share
                or deliveries >= MAX_DELIVERIES * share
            ):
                raise SpoolError(f"{count} messages wait for a diagnosis and {deliveries} wait to be sent")
            db.execute("INSERT INTO message (received, body) VALUES (?, ?)", (received, body))

    def next(self) -> WaitingMessage | None:
        """The oldest message that waits. Raises SpoolError."""
        with self._reading() as db:
            row = db.execute("SELECT id, received, body FROM message ORDER BY id LIMIT 1").fetchone()
        return WaitingMessage(*row) if row else None

    def message(self, number: int) -> WaitingMessage | None:
        """A message that waits, by its id. Raises SpoolError."""
        with self._reading() as db:
            row = db.execute("SELECT id, received, body FROM message WHERE id = ?", (number,)).fetchone()
        return WaitingMessage(*row) if row else None

    def since(self, number: int, most: int = MAX_MESSAGES) -> list[int]:
        """The ids of messages that wait and came after one, the oldest first. Raises SpoolError."""
        with self._reading() as db:
            rows = db.execute("SELECT id FROM message WHERE id > ? ORDER BY id LIMIT ?", (number, most)).fetchall()
        return [one for (one,) in rows]

    def incidents(self, entities: Iterable[EntityKey]) -> list[OpenIncident]:
        """Those of some entities that are open. Raises SpoolError."""
        with self._reading() as db:
            rows = [
                row
                for entity in entities
                for row in db.execute("SELECT body FROM incident WHERE entity = ? ORDER BY rowid", (_text(entity),))
            ]
        return _incidents(rows)

    def incident(self, name: str) -> OpenIncident | None:
        """One that is open, by its id. Raises SpoolError."""
        with self._reading() as db:
            found = _incidents(db.execute("SELECT body FROM incident WHERE id = ?", (name,)).fetchall())
        return found[0] if found else None

    def waning(self) -> dict[str, float]:
        """The open incidents that may be over, by id, and when their last alert was resolved. Raises SpoolError."""
        with self._reading() as db:
            rows = db.execute("SELECT body FROM incident").fetchall()
        return {one.id: one.waning for one in _incidents(rows) if one.may_be_over}

    def undiagnosed(self) -> list[str]:
        """The ids of open incidents without a cause, the oldest first. Raises SpoolError."""
        with self._reading() as db:
            return [one for (one,) in db.execute("SELECT id FROM incident WHERE code = '' ORDER BY rowid")]

    def done(self, message: int | None, outcome: MessageOutcome, now: float) -> None:
        """A message was dealt with, or an incident looked at again (None): all that it comes to is written at once, or
        nothing. Raises SpoolError."""
        with self._writing() as db:
            db.executemany("DELETE FROM incident WHERE id = ?", [(one,) for one in outcome.over])
            db.executemany(
                "INSERT INTO incident (id, seen, body, entity, code) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id)"
                " DO UPDATE SET seen = excluded.seen, body = excluded.body, code = excluded.code",
                [(one.id, now, msgspec.json.encode(one), *_columns(one)) for one in outcome.incidents],
            )
            db.executemany(
                "INSERT INTO delivery (target, incident, notice, created, due, page) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (target, n.incident, msgspec.json.encode(n), now, now, n.severity == "page")
                    for target, n in outcome.notices
                ],
            )
            for entity in {_columns(one)[0] for one in outcome.incidents}:
                db.execute(f"{_DROP_OLDEST} WHERE entity = ? {_OF_TOO_MANY}", (entity, MAX_OF_ENTITY))
            (count,) = db.execute("SELECT count(*) FROM incident").fetchone()
            if count > MAX_OPEN:
                db.execute(f"{_DROP_OLDEST} {_OF_TOO_MANY}", (MAX_OPEN,))
            db.execute("DELETE FROM message WHERE id = ?", (message,))

    def forget(self, before: float) -> None:
        """Drop incidents that nobody spoke of since. Raises SpoolError."""
        with self._writing() as db:
            db.execute("DELETE FROM incident WHERE seen < ?", (before,))

    def all_due(self, target: str, now: float, most: int) -> list[NoticeDelivery]:
        """What may be sent to a target now in one message: pages first, then in the order of the notices. Raises
        SpoolError."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT id, target, notice, created, attempts, error FROM delivery AS d WHERE target = ? AND due <= ?"
                " AND NOT EXISTS (SELECT 1 FROM delivery AS e WHERE e.target = d.target AND e.incident = d.incident"
                " AND e.id < d.id AND e.due > ?) ORDER BY page DESC, id LIMIT ?",
                (target, now, now, most),
            ).fetchall()
        return [one for row in rows if (one := self._delivery(row, now)) is not None]

    def due(self, target: str, now: float) -> NoticeDelivery | None:
        """What is to be sent to a target now: pages first, and of one incident in the order of its notices. Raises
        SpoolError."""
        with self._reading() as db:
            row = db.execute(
                "SELECT id, target, notice, created, attempts, error FROM delivery AS d WHERE target = ? AND due <= ?"
                " AND NOT EXISTS (SELECT 1 FROM delivery AS e WHERE e.target = d.target AND e.incident = d.incident"
                " AND e.id < d.id) ORDER BY page DESC, due, id LIMIT 1",
                (target, now),
            ).fetchone()
        return self._delivery(row, now) if row is not None else None

    def _delivery(self, row: tuple[int, str, bytes, float, int, str], now: float) -> NoticeDelivery | None:
        """A row as a delivery; one that can not be read, of another version, is laid down as it is."""
        number, target, notice, created, attempts, error = row
        try:
            return NoticeDelivery(number, target, msgspec.json.decode(notice, type=Notice), created, attempts, error)
        except UNDECODABLE as problem:
            self._lay_down(
                {"at": now, "target": target, "why": str(problem), "unread": notice.decode(errors="replace")}
            )
            with self._writing() as db:
                db.execute("DELETE FROM delivery WHERE id = ?", (number,))
            return None

    def soonest(self, target: str) -> float | None:
        """When the next attempt at a target is due; None where nothing waits. Raises SpoolError."""
        with self._reading() as db:
            found: float | None = db.execute("SELECT min(due) FROM delivery WHERE target = ?", (target,)).fetchone()[0]
        return found

    def later(self, delivery: NoticeDelivery, due: float, error: str) -> None:
        """It failed, and is to be tried again. Raises SpoolError."""
        with self._writing() as db:
            db.execute(
                "UPDATE delivery SET due = ?, attempts = attempts + 1, error = ? WHERE id = ?",
                (due, error[:500], delivery.id),
            )

    def sent(self, *several: NoticeDelivery) -> None:
        """They are off our hands. Raises SpoolError."""
        with self._writing() as db:
            db.executemany("DELETE FROM delivery WHERE id = ?", [(one.id,) for one in several])

    def bury(self, delivery: NoticeDelivery, why: str, now: float) -> None:
        """It is given up: written to the file of dead letters, then dropped. Raises SpoolError."""
        line = {"at": now, "target": delivery.target, "why": why[:500], "attempts": delivery.attempts}
        self._lay_down(line | {"notice": msgspec.to_builtins(delivery.notice)})
        self.sent(delivery)

    def bury_message(self, waiting: WaitingMessage, why: str, now: float) -> None:
        """Likewise a message that nothing can be made of; it is dropped when it is done. Raises SpoolError."""
        self._lay_down({"at": now, "why": why[:500], "message": waiting.body.decode("utf-8", "replace")})

    def _lay_down(self, line: dict[str, Any]) -> None:
        text = msgspec.json.encode(line) + b"\n"
        path = self.directory / DEAD
        try:
            if path.exists() and path.stat().st_size + len(text) > MAX_DEAD_BYTES:
                path.replace(path.with_suffix(".jsonl.1"))
            append_line(path, text)
        except OSError as error:
            raise SpoolError(f"{path} cannot be written: {error}") from error

    def strangers(self, targets: Iterable[str], now: float) -> list[NoticeDelivery]:
        """What waits for targets that are no longer configured. Raises SpoolError."""
        known = set(targets)
        with self._reading() as db:
            rows = db.execute("SELECT id, target, notice, created, attempts, error FROM delivery").fetchall()
        found = (self._delivery(row, now) for row in rows if row[1] not in known)
        return [one for one in found if one is not None]

    def counts(self) -> tuple[int, int, dict[str, tuple[int, str]]]:
        """Messages that wait, open incidents, and for each target how many wait and the oldest's last error. Raises
        SpoolError."""
        with self._reading() as db:
            (messages,) = db.execute("SELECT count(*) FROM message").fetchone()
            (incidents,) = db.execute("SELECT count(*) FROM incident").fetchone()
            rows = db.execute(
                "SELECT target, count(*), (SELECT error FROM delivery AS e WHERE e.target = d.target"
                " ORDER BY attempts DESC, id LIMIT 1) FROM delivery AS d GROUP BY target"
            ).fetchall()
        return messages, incidents, {target: (count, error) for target, count, error in rows}

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has ended it already, or no more can be written
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._db is None:
            raise SpoolError("it is closed")
        try:
            yield self._db
        except sqlite3.Error as error:
            raise SpoolError(f"{self.directory / FILE}: {error}") from error


def _opened(path: Path) -> sqlite3.Connection:
    """The file, with its tables. Each commit is synced before it returns. Raises OSError, sqlite3.Error."""
    refuse_irregular(path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
        connection.executescript(_SCHEMA)
        if "page" not in (row[1] for row in connection.execute("PRAGMA table_info(delivery)")):  # of an earlier version
            connection.execute("ALTER TABLE delivery ADD COLUMN page INTEGER NOT NULL DEFAULT 0")
        if "entity" not in (row[1] for row in connection.execute("PRAGMA table_info(incident)")):  # likewise
            _add_columns(connection)
        connection.executescript(_LATER)
        _rename_engines(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _add_columns(connection: sqlite3.Connection) -> None:
    """Entity and cause of incidents beside them, in one transaction. Raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for name in ("entity", "code"):
            connection.execute(f"ALTER TABLE incident ADD COLUMN {name} TEXT NOT NULL DEFAULT ''")
        known = _incidents(connection.execute("SELECT body FROM incident").fetchall())
        connection.executemany(
            "UPDATE incident SET entity = ?, code = ? WHERE id = ?", [(*_columns(one), one.id) for one in known]
        )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _rename_engines(connection: sqlite3.Connection) -> None:
    """Earlier versions kept an engine with and without its pool as two entities. Raises sqlite3.Error."""
    rows = connection.execute(
        """SELECT body FROM incident WHERE entity LIKE '%"engine"%' AND entity LIKE '%"pool"%'"""
    ).fetchall()
    connection.executemany(
        "UPDATE incident SET entity = ? WHERE id = ?", [(_columns(one)[0], one.id) for one in _incidents(rows)]
    )


def _columns(incident: OpenIncident) -> tuple[str, str]:
    return _text(entity_key(incident.entity)), incident.code


def _text(entity: EntityKey) -> str:
    return msgspec.json.encode(entity).decode()


def _incidents(rows: Iterable[tuple[bytes]]) -> list[OpenIncident]:
    found = []
    for (body,) in rows:
        with suppress(*UNDECODABLE):  # another version's is begun anew
            found.append(msgspec.json.decode(body, type=OpenIncident))
    return found


def _set_aside(path: Path, why: sqlite3.Error) -> None:
    """Give a damaged file another name. One is kept, the last. Raises OSError."""
    name = f"{path.name}.damaged"
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(path.with_name(name + suffix))
    sync_directory(path.parent)
    _log.error(
        "the queue of messages is damaged: kvitals set it aside and started a new one. The messages in the old "
        "queue are not sent",
        file=str(path), set_aside=name, why=str(why),
    )  # fmt: skip
