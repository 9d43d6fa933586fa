"""The connections of one listener: how many there are, whose they are, and which give way when there are too many.

A connection that only waits for its client costs that client nothing, so anyone can hold thousands. Where an address
has more than its share, one of its own connections gives way; where the table is full, one of anybody's. First go those
that never sent a whole request, then uploads that stall, then idle ones, then clients that do not read; of each the one
that waits longest. A connection whose request is being answered stays.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Generic, Protocol, TypeVar

_SEARCH = 64
"""Connections that are looked at, at most, to find one that gives way."""


class Waiting(Enum):
    """What a connection waits for that only its client can do, in the order in which connections give way."""

    NEW = "new"
    """It has sent no whole request, or has ended for the listener."""
    UPLOAD = "upload"
    """Its request is incomplete."""
    IDLE = "idle"
    """Its last request is answered."""
    UNREAD = "unread"
    """Its client does not read. It may wait for another thing besides."""


class Member(Protocol):
    """What the table needs of a connection."""

    peer: str
    """The client's address; empty where there is none."""

    def progress_age(self) -> float:
        """Seconds since the client last made progress."""

    def may_give_way(self) -> bool:
        """Whether it may end now."""

    def give_way(self) -> None:
        """End, so that another client can be served."""


M = TypeVar("M", bound=Member)


class ConnectionTable(Generic[M]):
    """All connections of a listener. Every method takes constant time."""

    def __init__(self, most: int, per_peer: int, patience: Mapping[Waiting, float]) -> None:
        """most, per_peer: connections of all and of one address. patience: seconds for which a connection must have
        made no progress before it gives way, by what it waits for; the others give way at any age."""
        self.most = most
        self.per_peer = per_peer
        self.patience = patience
        self._open: set[M] = set()
        self._ending: set[M] = set()  # of those open, the ones that gave way
        self._peers: Counter[str] = Counter()  # connections that do not end, by their address
        # The values are not used: a dict keeps its order, a set does not.
        self._groups: dict[Waiting, dict[M, None]] = {group: {} for group in Waiting}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[M]:
        """Those of now, also while some leave."""
        return iter(list(self._open))

    def of_peer(self, peer: str) -> int:
        """Connections of an address."""
        return self._peers[share_of(peer)]

    def join(self, member: M) -> str:
        """Add a connection. Returns why it cannot be served: `all` or `peer`; empty where it can."""
        peer = share_of(member.peer)
        self._open.add(member)
        self._peers[peer] += 1
        over = len(self._open) - len(self._ending) > self.most
        crowd = peer if self._peers[peer] > self.per_peer else ""
        if (crowd or over) and not self._make_room(crowd):
            return "all" if over else "peer"
        self.waits(member, Waiting.NEW)
        return ""

    def leave(self, member: M) -> None:
        """Remove a connection. May be called twice."""
        if member not in self._open:
            return
        self._open.remove(member)
        if member in self._ending:
            self._ending.remove(member)
        else:
            self._discount(member)

    def waits(self, member: M, group: Waiting) -> None:
        """The connection waits for its client, from now on."""
        self.served(member)
        if member in self._open and member not in self._ending:
            self._groups[group][member] = None

    def served(self, member: M) -> None:
        """The connection waits for nothing that its client could do."""
        for group in self._groups.values():
            group.pop(member, None)

    def unread(self, member: M, stalled: bool) -> None:
        """Whether the connection's client has stopped reading."""
        group = self._groups[Waiting.UNREAD]
        if not stalled:
            group.pop(member, None)
        elif member in self._open and member not in self._ending:
            group.setdefault(member)

    def _discount(self, member: M) -> None:
        peer = share_of(member.peer)
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        self.served(member)

    def _make_room(self, peer: str) -> bool:
        """Have one connection give way, of an address where one is named. Whether there was one that could."""
        for waiting, group in self._groups.items():
            patience = self.patience.get(waiting, 0.0)
            for member in islice(group, _SEARCH):
                if (peer and share_of(member.peer) != peer) or not member.may_give_way():
                    continue
                if patience and member.progress_age() < patience:
                    break  # so are all that follow
                self._ending.add(member)
                self._discount(member)
                member.give_way()
                return True
        return False


def share_of(peer: str) -> str:
    """The address whose share a connection or a message counts against: of IPv6 the network of 64 bits, which one
    machine has."""
    if ":" not in peer:
        return peer
    packed = socket.inet_pton(socket.AF_INET6, peer.partition("%")[0])
    return peer if packed.startswith(bytes(10)) else packed[:8].hex()
