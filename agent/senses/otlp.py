"""The OTLP sense: takes spans over gRPC and HTTP and makes parts of requests of them.

    sense = OtlpSense(config.otlp, tenants, config.tenants.attributes)
    said = await sense.open()              # listens; what it can not listen on is its state, and tried again
    await sense.arrived()                  # until there are parts
    for record in sense.read(time.time()): # without I/O: hands out what came in
        ...
    await sense.close()

What comes in is bounded at every step: the size of a request packed and unpacked, the requests at one time, the bytes
that wait, the spans in a request, the parts that wait to be handed out. What is over a bound is refused in the way that
makes exporters wait (RESOURCE_EXHAUSTED, 429), or dropped and counted by reason. How it fares becomes families in
`agent.senses.parts_in`, from the records alone, so that a replay tells the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import structlog

from agent.config import Otlp
from agent.requests.part import PartsRecord, RequestPart
from agent.requests.spans import SpanReader, Whose
from agent.senses.otlp_wire import Group, MalformedError

log = structlog.get_logger(__name__)

SOURCE = "otlp"

MAX_WAITING = 40_000
"""Parts that wait to be handed out, about 1.2 KB each."""

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Of requests that are being read, or wait to be; where a single one may be larger, of two of them."""

MAX_SPANS = 20_000  # in one request
RECORD_PARTS = 2000  # in one record
CHUNK_SPANS = 128
"""Spans that are read at one go, about 2 ms: between them others have their turn."""

RETRY_OPEN_SECONDS = 30.0
MAX_TOKEN_BYTES = 4096

REASONS = {
    "not_ours": "a span that is of no request to a model, or of a program that kvitals does not know",
    "detail": "a span for a step within another that is kept, such as one for every token",
    "no_ids": "a span without a trace id or request id",
    "time": "a span of another time: it ended a day ago, or ends in the future",
    "malformed": "a span, or a request, that is none",
    "over_limit": f"a span beyond the {MAX_SPANS} of one request",
    "too_large": "a request larger than max_bytes",
    "busy": "a request that was refused until later; exporters try again",
    "timeout": "a request that did not end",
    "unauthorized": "a request without the token",
    "signal": "a request with metrics or logs, of which nothing is kept",
}
"""Why a span, or a request as a whole, gave no part."""

UNUSABLE = ("no_ids", "time", "malformed", "over_limit")
"""Reasons that are told to the exporter, as a partial success. The others are as they should be."""


class BusyError(Exception):
    """There is too much under way; the client may try again."""


class Door(Protocol):
    """A way in."""

    @property
    def port(self) -> int:
        """The port that was taken, where 0 was asked for."""

    async def open(self) -> None:
        """Listen. Raises OSError."""

    async def close(self) -> None: ...


class Intake:
    """Where the ways in meet: requests become parts that wait to be handed out. On one event loop."""

    def __init__(self, settings: Otlp, reader: SpanReader, clock: Callable[[], float] = time.time) -> None:
        self.max_bytes = settings.max_bytes
        self._token_file = settings.token_file
        self._reader = reader
        self._clock = clock
        self._turn = asyncio.Lock()
        self._max_held = max(MAX_HELD_BYTES, 2 * settings.max_bytes)
        self._held = 0
        self._parts: list[RequestPart] = []
        self._dropped: dict[str, int] = {}
        self.arrived = asyncio.Event()

    def read_with(self, reader: SpanReader) -> None:
        """Take another reader for what comes from now on."""
        self._reader = reader

    def hold(self, size: int) -> None:
        """Account for bytes that are about to be kept. Raises BusyError; `let_go` gives them back."""
        if self._held + size > self._max_held or len(self._parts) >= MAX_WAITING:
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
        """Whether a client may send, by its Authorization header. The file is read each time, so it may be replaced."""
        if self._token_file is None:
            return True
        try:
            with self._token_file.open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES).strip()
        except OSError as error:
            log.warning("token of OTLP clients can not be read, so none is let in", error=str(error))
            return False
        sent = authorization.removeprefix("Bearer ").strip().encode()
        return bool(token) and hmac.compare_digest(sent, token)

    async def take(self, payload: bytes, decode: Callable[[bytes], list[Group]]) -> tuple[int, str]:
        """Read a request. Returns how many spans of it can not be used and why. Raises MalformedError, BusyError.

        One at a time: so what unpacked requests take is that of one.
        """
        self.hold(len(payload))
        try:
            async with self._turn:
                return await self._read(payload, decode)
        finally:
            self.let_go(len(payload))

    async def _read(self, payload: bytes, decode: Callable[[bytes], list[Group]]) -> tuple[int, str]:
        seen, taken, dropped = self._clock(), 0, dict[str, int]()
        try:
            found = decode(payload)
        except MalformedError:
            self.drop("malformed")
            raise
        for group in found:
            room = min(group.size, MAX_SPANS - taken)
            if room < group.size:
                dropped["over_limit"] = dropped.get("over_limit", 0) + group.size - room
            taken += room
            spans = islice(group.spans, room)
            while chunk := list(islice(spans, CHUNK_SPANS)):
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


class OtlpSense:
    """Spans from whoever exports them."""

    def __init__(
        self,
        settings: Otlp,
        whose: Whose,
        tenant_attributes: Sequence[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tenant_attributes` of spans name a tenant; `clock` tells seconds since the epoch."""
        self._whose = whose
        self._intake = Intake(settings, SpanReader(whose, tenant_attributes), clock)
        self._doors = _doors(settings, self._intake)
        self._shut = dict.fromkeys(self._doors, "not opened yet")  # door -> why nothing comes in there
        self._keeper: asyncio.Task[None] | None = None

    def configure(self, tenant_attributes: Sequence[str]) -> None:
        """Take other attributes for tenants. What is listened on stays as it is."""
        self._intake.read_with(SpanReader(self._whose, tenant_attributes))

    async def open(self) -> list[str]:
        """Listen, and go on trying where that fails. Returns what to tell the user."""
        await self._try_doors()
        self._keeper = asyncio.create_task(self._keep_open())
        return [self._message(name) for name in self._shut]

    @property
    def ports(self) -> dict[str, int]:
        """The ports that are listened on, by `http` and `grpc`."""
        return {name.partition(":")[0]: door.port for name, door in self._doors.items() if name not in self._shut}

    async def arrived(self) -> None:
        """Wait until there is something to hand out."""
        await self._intake.arrived.wait()

    def read(self, t: float) -> list[PartsRecord]:
        """Hand out what came in since the last time, and how the sense fares. Without I/O."""
        records = self._intake.hand_out(t)
        if not self._shut:
            return records
        state = "failed" if len(self._shut) == len(self._doors) else "partial"
        message = " ".join(self._message(name) for name in self._shut)
        return [_but(record, state, "not_listening", message) for record in records]

    async def close(self) -> None:
        """Listen no more. What came in can still be read."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        for name, door in self._doors.items():
            if name not in self._shut:
                await door.close()

    async def _keep_open(self) -> None:
        while self._shut:
            await asyncio.sleep(RETRY_OPEN_SECONDS)
            await self._try_doors()

    async def _try_doors(self) -> None:
        for name in list(self._shut):
            try:
                await self._doors[name].open()
                del self._shut[name]
            except (OSError, ValueError) as error:
                self._shut[name] = str(getattr(error, "strerror", None) or error)

    def _message(self, name: str) -> str:
        return (
            f"OTLP: can not listen on {name} ({self._shut[name]}). Another collector may be there: set another address"
            f" under [otlp] in kvitals.toml, or an empty one."
        )


def _doors(settings: Otlp, intake: Intake) -> dict[str, Door]:
    """The ways in by name. gRPC is imported where it is used only: it costs time and memory."""
    doors: dict[str, Door] = {}
    if settings.http:
        from agent.senses.otlp_http import HttpDoor

        doors[f"http://{settings.http}"] = HttpDoor(settings, intake)
    if settings.grpc:
        from agent.senses.otlp_grpc import GrpcDoor

        doors[f"grpc://{settings.grpc}"] = GrpcDoor(settings, intake)
    return doors


def _but(record: PartsRecord, state: str, reason: str, message: str) -> PartsRecord:
    return PartsRecord(
        t=record.t,
        source=record.source,
        parts=record.parts,
        dropped=record.dropped,
        waiting=record.waiting,
        state=state,
        reason=reason,
        message=message,
    )
