"""Turns of queries, shared among addresses: one address with many requests waits for itself, others do not."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NoTurnError(Exception):
    """Too much waits already; the message states the limit."""


class QueryTurns:
    """So many pieces of work at a time. Addresses that wait take turns, each with its oldest request first.

    The last free turn is for an address that has none: one with many slow requests leaves it to others.
    """

    def __init__(self, running: int, waiting: int, share: int) -> None:
        """running: at the same time; waiting: requests that wait, at most; share: of these, from one address."""
        self._free = running
        self._most = waiting
        self._share = share
        self._running: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn, and keep it. Raises NoTurnError where too many wait."""
        await self._begin(address)
        try:
            yield
        finally:
            self._end(address)

    async def _begin(self, address: str) -> None:
        if self._may_begin(address):
            self._take(address)
            return
        waits = self._queues.get(address, ())
        if len(waits) >= self._share:
            raise NoTurnError(f"{len(waits)} requests from this address already wait")
        if sum(map(len, self._queues.values())) >= self._most:
            raise NoTurnError(f"{self._most} requests are waiting already")
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(address, turn)
            else:
                self._end(address)
            raise

    def _may_begin(self, address: str) -> bool:
        return self._free > 1 or (self._free == 1 and not self._running[address])

    def _take(self, address: str) -> None:
        self._free -= 1
        self._running[address] += 1

    def _end(self, address: str) -> None:
        self._free += 1
        self._running[address] -= 1
        if not self._running[address]:
            del self._running[address]
        self._pass_on()

    def _leave(self, address: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(address)
        if queue is None or turn not in queue:  # its turn came as its client left
            return
        queue.remove(turn)
        if not queue:
            del self._queues[address]

    def _pass_on(self) -> None:
        """Give free turns to the addresses whose last one is the longest ago."""
        while (address := next(filter(self._may_begin, self._queues), None)) is not None:
            queue = self._queues[address]
            turn = queue.popleft()
            if queue:
                self._queues.move_to_end(address)
            else:
                del self._queues[address]
            if not turn.done():
                self._take(address)
                turn.set_result(None)
