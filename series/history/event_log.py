"""What happened, beside the series: events, episodes and batches of records. Their content is their writers' own."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvitals.series.history import sums
from kvitals.series.history.codec import DamagedError, compress, decompress
from kvitals.series.history.schema import labels_of

REWRITTEN_SECONDS = 60.0
"""So often an episode that lasts is written again."""
MAX_TEXT = 4000
MAX_DOCUMENT_BYTES = 1 << 20
MAX_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class HistoryEvent:
    """Something that happened at `t` (seconds since the epoch) to an entity: restart, configuration, cascade ..."""

    t: float
    kind: str
    text: str
    source: str
    entity: Mapping[str, str] = field(default_factory=dict)
    key: str = ""  # the same for what tells of the same thing


@dataclass(frozen=True)
class Episode:
    """Something that was so from `start` to `end`, and still is where it is `open`. Written again it is replaced."""

    key: str
    code: str
    entity: Mapping[str, str]
    start: float
    end: float
    open: bool
    document: bytes  # all that is to be said of it

    def __post_init__(self) -> None:
        if len(self.document) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"the document of {self.code} has {len(self.document)} bytes")


@dataclass(frozen=True)
class EventBatch:
    """`count` records of one kind that ended between `start` and `end`, out of `seen`."""

    kind: str
    start: float
    end: float
    count: int
    seen: int
    data: bytes

    def __post_init__(self) -> None:
        if len(self.data) > MAX_BATCH_BYTES:
            raise ValueError(f"a batch of {self.kind} has {len(self.data)} bytes")


Note = HistoryEvent | Episode | EventBatch


def write(connection: sqlite3.Connection, note: Note) -> None:
    """Within a transaction."""
    if isinstance(note, HistoryEvent):
        connection.execute(
            "INSERT INTO events (t_ms, kind, entity, text, source, key) VALUES (?, ?, ?, ?, ?, ?)",
            (_ms(note.t), note.kind, _json(note.entity), note.text[:MAX_TEXT], note.source, note.key),
        )
    elif isinstance(note, Episode):
        connection.execute(
            "INSERT OR REPLACE INTO episodes (key, code, entity, start_ms, end_ms, open, document)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                note.key, note.code, _json(note.entity), _ms(note.start), _ms(note.end), int(note.open),
                compress(note.document),
            ),
        )  # fmt: skip
    else:
        connection.execute(
            "INSERT INTO batches (kind, start_ms, end_ms, count, seen, data) VALUES (?, ?, ?, ?, ?, ?)",
            (note.kind, _ms(note.start), _ms(note.end), note.count, note.seen, compress(note.data)),
        )


def close_episodes(connection: sqlite3.Connection) -> None:
    """Nobody saw how those that are open went on after the newest row: up to then they were so, as one that ends is
    written at once."""
    (newest,) = connection.execute("SELECT max(t_ms) FROM ticks").fetchone()
    lasting = "end_ms < :newest AND end_ms >= :newest - :most"
    connection.execute(
        f"UPDATE episodes SET open = 0, end_ms = CASE WHEN {lasting} THEN :newest ELSE end_ms END WHERE open = 1",  # noqa: S608
        {"newest": newest or 0, "most": _ms(2 * REWRITTEN_SECONDS)},
    )


def events(connection: sqlite3.Connection, start: float, end: float, kind: str = "") -> Iterator[HistoryEvent]:
    """Those in start <= t <= end, of one kind or of all, in order of time; none that is damaged."""
    rows = connection.execute(
        "SELECT t_ms, kind, text, source, entity, key FROM events WHERE t_ms BETWEEN ? AND ? AND ? IN ('', kind)"  # noqa: S608
        f" AND {sums.sound(connection, 'events')} ORDER BY t_ms, id",
        (_ms(start), _ms(end), kind),
    )
    for t, of_kind, text, source, entity, key in rows:
        with contextlib.suppress(DamagedError):
            yield HistoryEvent(t / 1000, of_kind, text, source, labels_of(entity), key)


def episodes(connection: sqlite3.Connection, start: float, end: float) -> Iterator[Episode]:
    """Those of which some part lies in start <= t <= end, in order of their start; none that is damaged. One that is
    open lasts beyond the moment at which it was last written."""
    rows = connection.execute(
        "SELECT key, code, entity, start_ms, end_ms, open, document FROM episodes"  # noqa: S608
        " WHERE end_ms >= ? AND (open = 1 OR end_ms >= ?) AND start_ms <= ?"
        f" AND {sums.sound(connection, 'episodes')} ORDER BY start_ms, key",
        (_ms(start - 2 * REWRITTEN_SECONDS), _ms(start), _ms(end)),
    )
    for key, code, entity, first, last, is_open, document in rows:
        with contextlib.suppress(DamagedError):
            whole = decompress(document, MAX_DOCUMENT_BYTES)
            yield Episode(key, code, labels_of(entity), first / 1000, last / 1000, bool(is_open), whole)


def open_at(connection: sqlite3.Connection, at: float) -> list[Episode]:
    """Those that had begun by then and had not ended. Of the newest, the last end may lie before `at`."""
    near = episodes(connection, at - REWRITTEN_SECONDS, at)
    return [one for one in near if one.start < at and (one.open or one.end >= at)]


def batches(connection: sqlite3.Connection, kind: str, start: float, end: float) -> Iterator[EventBatch]:
    """Those of a kind of which some part lies in start <= t <= end, in order of time; none that is damaged."""
    rows = connection.execute(
        "SELECT start_ms, end_ms, count, seen, data FROM batches"  # noqa: S608
        f" WHERE kind = ? AND end_ms >= ? AND start_ms <= ? AND {sums.sound(connection, 'batches')}"
        " ORDER BY end_ms, id",
        (kind, _ms(start), _ms(end)),
    )
    for first, last, count, seen, data in rows:
        with contextlib.suppress(DamagedError):
            yield EventBatch(kind, first / 1000, last / 1000, count, seen, decompress(data, MAX_BATCH_BYTES))


def _ms(seconds: float) -> int:
    if not math.isfinite(seconds):
        return (1 << 62) if seconds > 0 else -(1 << 62)
    return round(seconds * 1000)


def _json(entity: Mapping[str, str]) -> str:
    return json.dumps(dict(entity), sort_keys=True, ensure_ascii=False)
