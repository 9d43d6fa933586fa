"""The tap's connections of clients, and how they end when the tap stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from kvitals.agent.connection_table import ConnectionTable, Member, Waiting
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.tap.books import Books

_ROW = LISTENERS["tap"]

STALLED_SECONDS = 0.1
"""An upload without progress for so long gives way to a new client."""
IDLE_SECONDS = 1.0
"""So does a connection whose last answer is as old."""
DRAIN_STALL_SECONDS = 2.0
"""When the tap stops, connections without progress for so long are ended before the drain is over."""
_DRAIN_CHECK_SECONDS = 0.5
_AT_ONCE = 256
"""Connections that are closed in one iteration of the loop."""


@dataclass(frozen=True)
class Bounds:
    """Times in seconds, from the table of listeners."""

    first_byte: float = _ROW.first_byte
    head: float = _ROW.head
    body: float = _ROW.body
    idle: float = _ROW.idle
    unread: float = 120.0
    """While a client takes nothing of what waits for it."""
    share: float = _ROW.per_peer / _ROW.connections
    """Of all connections, how much one address may have."""

    @property
    def check_seconds(self) -> float:
        """Between two checks of a connection: how late an end can be noticed."""
        return min(self.first_byte, self.head, self.body, self.idle, self.unread, 20.0) / 4


class TapConnection(Member, Protocol):
    """What the tap's table needs of a connection."""

    def drain(self) -> None:
        """Take no more requests."""

    def end_stalled(self, limit: float) -> None:
        """End where the client has made no progress for `limit` seconds."""

    def abort(self) -> None:
        """End at once."""


class Connections(ConnectionTable[TapConnection]):
    """All connections of clients."""

    def __init__(self, books: Books, most: int, bounds: Bounds) -> None:
        patience = {Waiting.UPLOAD: STALLED_SECONDS, Waiting.IDLE: IDLE_SECONDS}
        super().__init__(most, max(1, int(most * bounds.share)), patience)
        self.bounds = bounds
        self._books = books
        self._empty = asyncio.Event()
        self._empty.set()

    def join(self, member: TapConnection) -> str:
        refused = super().join(member)
        self._books.connections = len(self)
        self._empty.clear()
        return refused

    def leave(self, member: TapConnection) -> None:
        super().leave(member)
        self._books.connections = len(self)
        if not len(self):
            self._empty.set()

    def refusal(self, why: str) -> str:
        """What a client is told that cannot be served. why: as `join` returns it."""
        if why == "all":
            return f"all {self.most} connections of the tap serve requests; try again, or raise --max-connections"
        return f"this address uses all of its {self.per_peer} connections to the tap; use fewer"

    async def end(self, patience: float) -> None:
        """End all: the idle now, the others when their request ends or stalls, all after `patience` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        async for connection in _in_steps(self._open):
            connection.drain()
        while self._open and (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(left, _DRAIN_CHECK_SECONDS)):
                    await self._empty.wait()
            except TimeoutError:
                async for connection in _in_steps(self._open):
                    connection.end_stalled(DRAIN_STALL_SECONDS)
        async for connection in _in_steps(self._open):
            connection.abort()
        await self._empty.wait()


async def _in_steps(connections: Iterable[TapConnection]) -> AsyncIterator[TapConnection]:
    """One after the other, with a turn for others now and then."""
    for number, connection in enumerate(list(connections), 1):
        yield connection
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
