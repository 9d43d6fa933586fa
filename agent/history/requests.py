"""Requests as history keeps them: who, where, how long each phase took, how it ended. No text, no session, no spans.

Not all of them: of what ended between two ticks all that failed, the slowest, and a share of the rest, as many as
`MOST` in all; how many there were is kept beside them, and each says why it was kept.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from typing import Literal

import msgspec

from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.store import Store
from kvitals.series.history.event_log import EventBatch

KIND = "requests"
MOST = 60
SLOWEST = 10
MAX_NEW = 20_000

Why = Literal["failed", "slow", "share"]


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request. Times are seconds since the epoch; None is unknown, never 0."""

    id: str
    trace: str
    start: float
    end: float
    why: Why
    outcome: str
    engines: dict[str, str]  # role -> engine
    tenant: str  # as in labels
    model: str
    lora: str
    phases: list[tuple[str, float | None, str]]  # name, seconds, source
    ttft: float | None
    e2e: float | None
    itl: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    finish: str
    complete: bool


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Summary]] = msgspec.msgpack.Decoder(list[Summary])


class NewRequests:
    """What came to a store of requests since it was looked at last."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 (a sample, no secret)
        self._last: RequestRecord | None = None

    def take(self, store: Store) -> EventBatch | None:
        """A batch of what is new; None where there is nothing."""
        new = list(self._new(store))
        if not new:
            return None
        self._last = new[0]
        kept = self._kept(new)
        start, end = min(record.end for record in new), max(record.end for record in new)
        return EventBatch(KIND, start, end, len(kept), len(new), _encoder.encode(kept))

    def _new(self, store: Store) -> Iterator[RequestRecord]:
        """The latest first."""
        for record in store.newest(MAX_NEW):
            if record is self._last:
                return
            yield record

    def _kept(self, new: list[RequestRecord]) -> list[Summary]:
        why: dict[int, Why] = {}
        for number, record in enumerate(new):
            if record.outcome != "success" and len(why) < MOST // 2:
                why[number] = "failed"
        timed = [number for number, record in enumerate(new) if record.e2e is not None]
        for number in heapq.nlargest(SLOWEST, timed, key=lambda n: new[n].e2e or 0.0):
            why.setdefault(number, "slow")
        rest = [number for number in range(len(new)) if number not in why]
        for number in self._random.sample(rest, min(len(rest), MOST - len(why))):
            why[number] = "share"
        return [summary(new[number], why[number]) for number in sorted(why, reverse=True)]


def summary(record: RequestRecord, why: Why) -> Summary:
    """What is kept of a request."""
    return Summary(
        id=record.id,
        trace=record.trace,
        start=record.start,
        end=record.end,
        why=why,
        outcome=record.outcome,
        engines=record.engines,
        tenant=record.tenant,
        model=record.model,
        lora=record.lora,
        phases=[(phase.name, phase.seconds, phase.source) for phase in record.phases],
        ttft=record.ttft,
        e2e=record.e2e,
        itl=record.itl,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        finish=record.finish,
        complete=record.complete,
    )


def summaries(batch: EventBatch) -> list[Summary]:
    """The requests of a batch. Raises msgspec.DecodeError for what this version can not read."""
    return _decoder.decode(batch.data)
