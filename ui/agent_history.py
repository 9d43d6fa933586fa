"""What an agent keeps of the past beside its series, asked by its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from diagnoser.sources.prometheus import Access, Prometheus, ServerError
from rules.finding import Triage
from series.history.notes import Episode, Event

DAY_SECONDS, MILLISECOND = 86400.0, 0.001
T = TypeVar("T")


class Kept(msgspec.Struct, frozen=True):
    """The times of the first and of the last row, seconds since the epoch."""

    first: float
    last: float


class _Finding(msgspec.Struct, frozen=True):
    key: str
    code: str
    entity: dict[str, str]
    start: float
    end: float
    open: bool
    finding: msgspec.Raw


_KEPT = msgspec.json.Decoder(Kept | None)
_FINDINGS = msgspec.json.Decoder(list[_Finding])
_TRIAGE = msgspec.json.Decoder(Triage)
_EVENTS = msgspec.json.Decoder(list[Event])


def kept(access: Access) -> Kept | None:
    """What an agent keeps; None where it keeps nothing yet or nothing at all, or is no agent. Raises ServerError."""
    with Prometheus(access) as server:
        return server.told("history", {}, _KEPT.decode)


def episodes(access: Access, start: float, end: float) -> list[Episode]:
    """Findings of which some part lies in that time, in order of their start; their documents are without evidence.

    Raises ServerError.
    """
    found: dict[str, Episode] = {}  # one that goes on over midnight is told of both days
    for several in _days(access, "history/findings", start, end, {}, _FINDINGS.decode):
        for one in several:
            found[one.key] = Episode(one.key, one.code, one.entity, one.start, one.end, one.open, bytes(one.finding))
    return sorted(found.values(), key=lambda one: (one.start, one.key))


def events(access: Access, start: float, end: float, kind: str = "") -> list[Event]:
    """What happened in that time, of one kind or of all, in order of time. Raises ServerError."""
    form = {"kind": kind} if kind else {}
    return [one for several in _days(access, "history/events", start, end, form, _EVENTS.decode) for one in several]


def since_change(access: Access) -> Triage | None:
    """The verdict on an agent's now, with what came of the latest change; None where it keeps no history, or is no
    agent. Raises ServerError."""
    with Prometheus(access) as server:
        return server.told("since-change", {}, _TRIAGE.decode)


def _days(
    access: Access, path: str, start: float, end: float, form: Mapping[str, str], decode: Callable[[msgspec.Raw], T]
) -> Iterator[T]:
    """The answers, of a day each, so that none is too large."""
    with Prometheus(access) as server:
        while start <= end:
            until = min(start + DAY_SECONDS, end)
            answer = server.told(path, {"start": f"{start:.3f}", "end": f"{until:.3f}", **form}, decode)
            if answer is None:
                raise ServerError(f"{access.url} keeps no history any more: was the agent started anew without?")
            yield answer
            start = until + MILLISECOND
