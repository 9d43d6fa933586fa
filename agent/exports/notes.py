"""What is kept of the past beside the series, over HTTP.

GET /api/v1/history: the times of the first and of the last row
GET /api/v1/history/findings?start=TIME&end=TIME: findings of which some part lies in that time, without their evidence
GET /api/v1/history/events?start=TIME&end=TIME&kind=KIND: what happened, of one kind or of all
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Protocol

import msgspec
from aiohttp import web

from kvitals.agent.exports import wire
from kvitals.agent.exports.answers import encode_answer, packed_answer, refusal
from kvitals.series.history import event_log
from kvitals.series.history.schema import HistoryError
from kvitals.series.undecodable import UNDECODABLE

MOST = 5000
"""Findings or events of one answer."""
_EVIDENCE, _NONE = "evidence", msgspec.Raw(b"[]")
_DOCUMENT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Notes(Protocol):
    """Where they are kept."""

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for a moment. Raises HistoryError."""
        ...

    def span(self) -> tuple[float, float] | None:
        """The times of the first and of the last row. Raises HistoryError."""
        ...


InThread = Callable[[str, Callable[[], Any]], Awaitable[Any]]
"""Does something for a client, by its address."""


def add_notes_routes(router: web.UrlDispatcher, past: Notes, in_thread: InThread) -> None:
    """Serve what the history knows; `in_thread`: reads it off the loop, a few at a time."""

    def route(path: str, allowed: frozenset[str], read: Callable[[web.Request], object]) -> None:
        async def handle(request: web.Request) -> web.Response:
            if unknown := request.query.keys() - allowed:
                there = ", ".join(sorted(allowed)) or "none"
                return refusal(400, f"unknown parameter {sorted(unknown)[0]!r}: choose one of {there}")
            try:
                return packed_answer(await in_thread(request.remote or "", lambda: encode_answer(read(request))))
            except ValueError as error:
                return refusal(400, str(error))
            except HistoryError as error:
                return refusal(503, str(error), "unavailable")

        router.add_get(f"/api/v1/history{path}", handle)

    def span(_: web.Request) -> object:
        found = past.span()
        return None if found is None else {"first": found[0], "last": found[1]}

    def findings(request: web.Request) -> object:
        with past.reading() as connection:
            return _first(_finding(one) for one in event_log.episodes(connection, *_times(request)))

    def events(request: web.Request) -> object:
        with past.reading() as connection:
            return _first(event_log.events(connection, *_times(request), request.query.get("kind", "")))

    route("", frozenset(), span)
    route("/findings", frozenset({"start", "end"}), findings)
    route("/events", frozenset({"start", "end", "kind"}), events)


def _times(request: web.Request) -> tuple[float, float]:
    """Raises ValueError."""
    start, end = (
        wire.read_time(request.query[name]) if name in request.query else default
        for name, default in (("start", -math.inf), ("end", math.inf))
    )
    return start, end


def _first(found: Iterator[object]) -> list[object]:
    """All of them. Raises ValueError where they are too many."""
    some = list(islice(found, MOST + 1))
    if len(some) > MOST:
        raise ValueError(f"more than {MOST} in that time range: request a shorter range, then the range after it")
    return some


def _finding(one: event_log.Episode) -> dict[str, object]:
    """An episode; what is told of it is another version's own, so it is passed on as it is."""
    try:
        document = _DOCUMENT.decode(one.document)
    except UNDECODABLE:
        document = {}
    if _EVIDENCE in document:  # most of its bytes; whoever draws has the series
        document[_EVIDENCE] = _NONE
    return {
        "key": one.key,
        "code": one.code,
        "entity": dict(one.entity),
        "start": one.start,
        "end": one.end,
        "open": one.open,
        "finding": document,
    }
