"""What came in over OTLP, on its way to parts: how much may be under way, and what is left out and why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice

from kvitals.agent.collectors.otlp_wire import MAX_SPAN_BYTES, OtlpFormatError, SpanGroup
from kvitals.agent.connection_table import share_of
from kvitals.agent.exports.query_turns import QueryTurns
from kvitals.agent.inbound import has_token
from kvitals.agent.logger import Logger
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.agent.requests.spans import SpanFields, SpanReader
from kvitals.config import Otlp
from kvitals.series.slices import Steps, in_slices

log = Logger()

SOURCE = "otlp"

MAX_WAITING = 40_000
"""Parts that wait to be handed out, about 1.2 KB each."""

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Of requests that are being read, or wait to be; where a single one may be larger, of two of them."""

MAX_WAITING_REQUESTS = 1024
"""Requests that wait to be read, of one address or all: more than the listeners have connections and calls."""

RECORD_PARTS = 2000  # in one record
CHUNK_SPANS = 128
"""Spans that are read in one turn of the loop, about 2 ms."""
TURN_SECONDS = 0.005
"""A turn ends earlier where its spans take so long: one span of 64 KB can hold 30,000 empty attributes."""

REASONS = {
    "not_ours": "a span that belongs to no model request, or comes from a program that kvitals does not know",
    "detail": "a span for a step inside another span that is kept, such as one span per token",
    "no_ids": "a span without a trace id or request id",
    "time": "a span with a wrong time: it ended over a day ago, or ends in the future",
    "malformed": "an invalid span or request",
    "too_large": f"a span larger than {MAX_SPAN_BYTES // 1024} KB (in JSON twice that), or a request above max_bytes",
    "busy": "a request that was refused for now; exporters try again",
    "timeout": "a request that did not end",
    "unauthorized": "a request without the token",
    "signal": "a request with metrics or logs, which kvitals does not store",
}
"""Why a span, or a request as a whole, gave no part."""

UNUSABLE = ("no_ids", "time", "malformed", "too_large")
"""Reasons that are told to the exporter, as a partial success. The others are as they should be."""


class BusyError(Exception):
    """There is too much under way; the client may try again."""


class SpanIntake:
    """Where the ways in meet: requests become parts that wait to be handed out. On one event loop."""

    def __init__(self, settings: Otlp, reader: SpanReader, clock: Callable[[], float] = time.time) -> None:
        self.max_bytes = settings.max_bytes
        self._token_file = settings.token_file
        self._reader = reader
        self._clock = clock
        self._turns = QueryTurns(1, MAX_WAITING_REQUESTS, MAX_WAITING_REQUESTS)
        self._max_held = max(MAX_HELD_BYTES, 2 * settings.max_bytes)
        self._held = 0
        self._parts: list[RequestPart] = []
        self._dropped: dict[str, int] = {}
        self.arrived = asyncio.Event()
        self.is_full: Callable[[], bool] = lambda: False
        """Whether the process has no room for more."""

    def read_with(self, reader: SpanReader) -> None:
        """Take another reader for what comes from now on."""
        self._reader = reader

    def hold(self, size: int) -> None:
        """Account for bytes that are about to be kept. Raises BusyError; `let_go` gives them back."""
        if self._held + size > self._max_held or len(self._parts) >= MAX_WAITING or self.is_full():
            self.drop("busy")
            raise BusyError
        self._held += size

    def let_go(self, size: int) -> None:
        """The bytes are kept no more."""
        self._held -= size

    def drop(self, reason: str, count: int = 1) -> None:
        """Count what gives no part. It is told with the next records."""
        self._dropped[reason] = self._dropped.get(reason, 0) + count

    def admits(self, authorization: str) -> bool:
        """Whether a client may send, by its Authorization header."""
        return self._token_file is None or has_token(authorization, self._token_file)

    async def take(
        self, payload: bytes, decode: Callable[[bytes], Steps[list[SpanGroup]]], peer: str
    ) -> tuple[int, str]:
        """Read a request of an address. Returns how many of its spans are unusable and why. Raises OtlpFormatError,
        BusyError.

        One at a time: so what unpacked requests take is that of one. Addresses take turns.
        """
        self.hold(len(payload))
        try:
            async with self._turns.turn(share_of(peer)):
                await asyncio.sleep(0)  # requests that are refused at once have a turn of the loop each, too
                return await self._read(payload, decode)
        finally:
            self.let_go(len(payload))

    async def _read(self, payload: bytes, decode: Callable[[bytes], Steps[list[SpanGroup]]]) -> tuple[int, str]:
        seen, dropped = self._clock(), dict[str, int]()
        try:
            groups = await in_slices(decode(payload), asyncio.to_thread)
        except OtlpFormatError:
            self.drop("malformed")
            raise
        for group in groups:
            while chunk := list(_one_turn(group.spans)):
                self._reader.read(chunk, group.scope, group.engine, seen, self._parts, dropped)
                if self._parts:
                    self.arrived.set()
                await asyncio.sleep(0)
        for reason, count in dropped.items():
            self.drop(reason, count)
        unusable = {reason: dropped[reason] for reason in UNUSABLE if reason in dropped}
        return sum(unusable.values()), "; ".join(f"{n} times {REASONS[reason]}" for reason, n in unusable.items())

    def hand_out(self, t: float) -> list[PartsRecord]:
        """All that waits, as records; one without parts where nothing does."""
        parts, self._parts = self._parts, []
        dropped, self._dropped = self._dropped, {}
        self.arrived.clear()
        chunks = [tuple(parts[i : i + RECORD_PARTS]) for i in range(0, len(parts), RECORD_PARTS)] or [()]
        left = len(parts)
        records: list[PartsRecord] = []
        for chunk in chunks:
            left -= len(chunk)
            records.append(PartsRecord(t=t, source=SOURCE, parts=chunk, dropped=dropped, waiting=left))
            dropped = {}
        return records


def _one_turn(spans: Iterator[SpanFields | str]) -> Iterator[SpanFields | str]:
    """As many of the spans as one turn of the loop may read."""
    end = time.perf_counter() + TURN_SECONDS
    for span in islice(spans, CHUNK_SPANS):
        yield span
        if time.perf_counter() > end:
            return
