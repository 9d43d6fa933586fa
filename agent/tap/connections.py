"""The tap's table of client connections: how many there are, whose they are, and which give way when it is full.

A connection that only waits for its client's bytes costs that client nothing, so anyone can hold thousands. When the
table is full, those give way to a new client: first those that never sent a whole request, then uploads that stall,
then idle ones, then clients that do not read; of each the one that has waited longest first. A connection whose request
is with the upstream stays.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

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
_SEARCH = 64
"""Connections that are looked at, at most, to find one that gives way."""
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


class TapConnection(Protocol):
    """What the table needs of a connection."""

    peer: str

    def drain(self) -> None:
        """Take no more requests."""

    def end_stalled(self, limit: float) -> None:
        """End where the client has made no progress for `limit` seconds."""

    def progress_age(self) -> float:
        """Seconds since the client last made progress."""

    def give_way(self) -> None:
        """End, so that another client can be served."""

    def abort(self) -> None:
        """End at once."""


class Connections:
    """All connections of clients. Every method takes constant time, except `end`."""

    def __init__(self, books: Books, most: int, bounds: Bounds) -> None:
        self.most = most
        self.bounds = bounds
        self._books = books
        self._per_peer = max(1, int(most * bounds.share))
        self._open: set[TapConnection] = set()
        self._ending: set[TapConnection] = set()  # of those open, the ones that gave way
        self._peers: Counter[str] = Counter()  # connections by the address that has them
        # In the order in which they give way. The values are not used: a dict keeps its order, a set does not.
        self._fresh: dict[TapConnection, None] = {}  # no request has come, or nothing comes any more
        self._idle: dict[TapConnection, None] = {}  # between two requests
        self._uploading: dict[
            TapConnection, None
        ] = {}  # whose request is incomplete; the last to make progress is last
        self._unread: dict[TapConnection, None] = {}  # whose client does not read
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._open)

    def join(self, connection: TapConnection) -> str:
        """Add a connection. Returns why it cannot be served; empty where it can."""
        peer = _share_of(connection.peer)
        self._open.add(connection)
        self._peers[peer] += 1
        self._books.connections = len(self._open)
        self._empty.clear()
        refused = ""
        if len(self._open) - len(self._ending) > self.most and not self._make_room(""):
            refused = f"all {self.most} connections of the tap serve requests; try again, or raise --max-connections"
        elif self._peers[peer] > self._per_peer and not self._make_room(peer):
            refused = f"this address has its {self._per_peer} connections to the tap; use fewer"
        if not refused:
            self._fresh[connection] = None
        return refused

    def leave(self, connection: TapConnection) -> None:
        """Remove a connection that is lost."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._ending.discard(connection)
        peer = _share_of(connection.peer)
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        self._forget(connection)
        self._books.connections = len(self._open)
        if not self._open:
            self._empty.set()

    def idles(self, connection: TapConnection) -> None:
        """The tap waits for the connection's next request."""
        self._forget(connection)
        self._idle[connection] = None

    def lingers(self, connection: TapConnection) -> None:
        """The connection has ended for the tap, and is about to be closed."""
        self._forget(connection)
        self._fresh[connection] = None

    def uploads(self, connection: TapConnection) -> None:
        """The connection's request has begun, or more of it has arrived."""
        self._forget(connection)
        self._uploading[connection] = None

    def served(self, connection: TapConnection) -> None:
        """The connection's request is complete: it is the upstream's turn."""
        self._forget(connection)

    def _forget(self, connection: TapConnection) -> None:
        for group in (self._fresh, self._idle, self._uploading, self._unread):
            group.pop(connection, None)

    def unread(self, connection: TapConnection, stalled: bool) -> None:
        """Whether the connection's client has stopped reading."""
        if not stalled:
            self._unread.pop(connection, None)
        else:
            self._unread.setdefault(connection)

    def _make_room(self, peer: str) -> bool:
        """Have one connection give way, of a peer where one is named. Whether there was one that could."""
        for group, stalled in (
            (self._fresh, 0.0),
            (self._uploading, STALLED_SECONDS),
            (self._idle, IDLE_SECONDS),
            (self._unread, 0.0),
        ):
            for connection in islice(group, _SEARCH):
                if peer and _share_of(connection.peer) != peer:
                    continue
                if stalled and connection.progress_age() < stalled:
                    break  # so are all that follow
                self._ending.add(connection)
                self._forget(connection)
                connection.give_way()
                return True
        return False

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


def _share_of(peer: str) -> str:
    """The address whose share a connection counts against: of IPv6 the network of 64 bits, which one machine has."""
    if ":" not in peer:
        return peer
    packed = socket.inet_pton(socket.AF_INET6, peer.partition("%")[0])
    return peer if packed.startswith(bytes(10)) else packed[:8].hex()
