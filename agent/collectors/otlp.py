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
`kvitals.agent.collectors.parts_in`, from the records alone, so that a replay tells the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from kvitals.agent.collectors.otlp_intake import SpanIntake
from kvitals.agent.logger import Logger
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.spans import SpanPseudonyms, SpanReader
from kvitals.config import Otlp

log = Logger()

RETRY_OPEN_SECONDS = 30.0
AGAIN_SECONDS = 1.0
"""Until a server that ended by itself is started again."""


class Door(Protocol):
    """A way in."""

    @property
    def port(self) -> int:
        """The port that was taken, where 0 was asked for."""

    async def open(self) -> None:
        """Listen. Raises OSError."""

    async def ended(self) -> str:
        """Wait until it listens no more although nobody closed it. Returns why."""

    async def close(self) -> None: ...


class OtlpSense:
    """Spans from whoever exports them."""

    def __init__(
        self,
        settings: Otlp,
        whose: SpanPseudonyms,
        tenant_attributes: Sequence[str],
        clock: Callable[[], float] = time.time,
        is_full: Callable[[], bool] = lambda: False,
        hosts: Collection[str] = (),
    ) -> None:
        """`tenant_attributes` of spans name a tenant; `clock` tells seconds since the epoch; `is_full`: whether the
        process has no room for more, so that exporters are asked to wait; `hosts`: names by which the HTTP server may
        be called, beside localhost and addresses."""
        self._whose = whose
        self._intake = SpanIntake(settings, SpanReader(whose, tenant_attributes), clock)
        self._doors = _doors(settings, self._intake, hosts)
        self._intake.is_full = is_full
        self._shut = dict.fromkeys(self._doors, "not opened yet")  # door -> why nothing comes in there
        self._ended: dict[str, str] = {}  # door -> why it ended by itself since the last record
        self._keepers: list[asyncio.Task[None]] = []

    def configure(self, tenant_attributes: Sequence[str]) -> None:
        """Take other attributes for tenants. What is listened on stays as it is."""
        self._intake.read_with(SpanReader(self._whose, tenant_attributes))

    async def open(self) -> list[str]:
        """Listen, and go on trying where that fails. Returns what to tell the user."""
        for name in self._doors:
            await self._try_door(name)
        self._keepers = [asyncio.create_task(self._keep_open(name), name=f"OTLP {name}") for name in self._doors]
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
        ended, self._ended = self._ended, {}
        closed = self._shut.keys() | ended.keys()
        if not closed:
            return records
        state = "failed" if len(closed) == len(self._doors) else "partial"
        messages = [self._message(name) for name in self._shut]
        messages += [f"OTLP: {name} ended ({why}) and listens again." for name, why in ended.items()]
        return [_but(record, state, "not_listening", " ".join(messages)) for record in records]

    async def close(self) -> None:
        """Listen no more. What came in can still be read."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(self._close(name) for name in self._doors if name not in self._shut))

    async def _keep_open(self, name: str) -> None:
        """Open a way in again where it could not be opened, or ended by itself. Without an end."""
        while True:
            if name in self._shut:
                await asyncio.sleep(RETRY_OPEN_SECONDS)
            else:
                why = await self._doors[name].ended()
                log.error("OTLP: the server ended; it is started again", address=name, reason=why)
                self._shut[name] = self._ended[name] = why
                await self._close(name)
                await asyncio.sleep(AGAIN_SECONDS)
            await self._try_door(name)

    async def _try_door(self, name: str) -> None:
        try:
            await self._doors[name].open()
        except Exception as error:  # of whatever kind: it is a state, and tried again
            self._shut[name] = str(getattr(error, "strerror", None) or error)
        else:
            self._shut.pop(name, None)

    async def _close(self, name: str) -> None:
        """Close a server, or let go of what one leaves that ended."""
        try:
            await self._doors[name].close()
        except Exception:
            log.exception("OTLP: the listener did not close", address=name)

    def _message(self, name: str) -> str:
        return (
            f"OTLP: cannot listen on {name} ({self._shut[name]}). Another collector may use this address: set "
            f"another address under [otlp] in kvitals.toml, or an empty one."
        )


def _doors(settings: Otlp, intake: SpanIntake, hosts: Collection[str]) -> dict[str, Door]:
    """The ways in by name. gRPC is imported where it is used only: it costs time and memory."""
    doors: dict[str, Door] = {}
    if settings.http:
        from kvitals.agent.collectors.otlp_http import HttpDoor

        doors[f"http://{settings.http}"] = HttpDoor(settings, intake, hosts)
    if settings.grpc:
        from kvitals.agent.collectors.otlp_grpc import GrpcDoor

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
