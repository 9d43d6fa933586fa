"""Whose calls of a gRPC server are read next: few in one turn of the loop, and so many a second of an address.

    turns = CallTurns(loop)
    turns.may_read(connection)       # else `connection.follow` is called in a later turn
    turns.read(connection, size)     # a header block of so many bytes was read; whether another one may be
    await turns.connects(peer)       # before a new connection is followed

A call's head takes CPU time of ours and of gRPC's library whatever becomes of the call, and costs its client nothing.
So each address has an account of heads. Who has used it up is read later: no call is refused for that. A new
connection costs heads too, so that one which ended for what it sent gains nothing by connecting again.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from kvitals.agent.connection_table import share_of

HEAD_BYTES_A_TURN = 32 * 1024
"""Of header blocks in one turn of the loop, of all connections: after so many the others wait for the next turn. 16 KB
take up to 6 ms of CPU time."""

LEAST_HEAD_BYTES = 512
"""What a header block counts at least in a turn: a short one takes up to 0.1 ms as well."""

CONNECTION_BYTES_A_TURN = HEAD_BYTES_A_TURN // 8
"""Of one connection, so that others have their turn too."""

HEADS_PER_SECOND, HEADS_AT_ONCE = 400.0, 100.0
"""Of one address. A call takes up to 1 ms of CPU time."""

CONNECTION_HEADS = 10.0
"""What a new connection costs its address: to connect it to the library takes as long as some calls."""

MOST_OWED = -HEADS_PER_SECOND
"""What an address owes at most: it is read again after a second, whatever it sent."""

_ACCOUNTS = 1024
"""Addresses of which an account is kept before those that are full are dropped."""


class CallReader(Protocol):
    """What is needed of a connection."""

    peer: str

    def follow(self) -> None:
        """Read more of what its client sent."""


class CallTurns:
    """The turns of all connections of a server. On one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bytes = 0  # of header blocks in this turn
        self._of_connection: dict[CallReader, int] = {}  # the same of each connection
        self._waiting: dict[CallReader, None] = {}  # a dict keeps their order
        self._accounts: dict[str, tuple[float, float]] = {}  # address -> heads that are left, and when that was
        self._next: asyncio.Handle | None = None

    def may_read(self, reader: CallReader) -> bool:
        """Whether more of a connection may be read in this turn; else it is its turn later."""
        if self._bytes < HEAD_BYTES_A_TURN and not self._used_up(reader) and self.debt(reader.peer) <= 0:
            return True
        self._waiting.setdefault(reader)
        self._schedule()
        return False

    def read(self, reader: CallReader, size: int) -> bool:
        """A header block of so many bytes was read. Returns as `may_read` does."""
        counted = max(size, LEAST_HEAD_BYTES)
        self._bytes += counted
        self._of_connection[reader] = self._of_connection.get(reader, 0) + counted
        self.spend(reader.peer)
        self._schedule()
        return self.may_read(reader)

    def spend(self, peer: str, heads: float = 1.0) -> None:
        """Take off an address's account."""
        if len(self._accounts) >= _ACCOUNTS:
            kept = [each for each in self._accounts if self._left(each)[0] < HEADS_AT_ONCE]
            self._accounts = {each: self._accounts[each] for each in kept}
        left, now = self._left(share_of(peer))
        self._accounts[share_of(peer)] = max(left - heads, MOST_OWED), now

    async def connects(self, peer: str) -> None:
        """A new connection of an address: wait until it has its turn."""
        self.spend(peer, CONNECTION_HEADS)
        await asyncio.sleep(max(self.debt(peer), 0.0))

    def debt(self, peer: str) -> float:
        """Seconds until more of an address is read; at most 0 where it may be now."""
        return (1.0 - self._left(share_of(peer))[0]) / HEADS_PER_SECOND

    def leave(self, reader: CallReader) -> None:
        """The connection has ended. May be called twice."""
        self._waiting.pop(reader, None)
        self._of_connection.pop(reader, None)

    def _left(self, share: str) -> tuple[float, float]:
        now = self._loop.time()
        left, at = self._accounts.get(share, (HEADS_AT_ONCE, now))
        return min(left + (now - at) * HEADS_PER_SECOND, HEADS_AT_ONCE), now

    def _used_up(self, reader: CallReader) -> bool:
        return self._of_connection.get(reader, 0) >= CONNECTION_BYTES_A_TURN

    def _schedule(self) -> None:
        """Begin another turn: the next one of the loop, or later where all that wait have used up their accounts."""
        if self._next is not None:
            if not isinstance(self._next, asyncio.TimerHandle):
                return
            self._next.cancel()
        if self._bytes:
            self._next = self._loop.call_soon(self._turn)
            return
        wait = min(map(self.debt, {reader.peer for reader in self._waiting}))
        self._next = self._loop.call_later(wait, self._turn) if wait > 0 else self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._next, self._bytes = None, 0
        self._of_connection.clear()
        for reader in list(self._waiting):
            if self._bytes >= HEAD_BYTES_A_TURN:
                break
            if self.debt(reader.peer) <= 0 and reader in self._waiting:
                del self._waiting[reader]
                reader.follow()
        if self._waiting:
            self._schedule()
