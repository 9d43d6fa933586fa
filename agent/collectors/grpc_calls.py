"""The calls under way of all connections of a gRPC server, and whose gives way when there are too many.

A call whose request is incomplete costs its client nothing, so anyone could hold all there may be. So an address has a
share of them. Where there is no room, the address with most calls gives way, of it the connection with most, and of
that one its oldest call that waits for its client; no address with fewer calls than that of the new one would have.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar

from kvitals.agent.collectors.http2_framing import END_STREAM, PADDED, FrameHead
from kvitals.agent.connection_table import share_of

MESSAGE_HEAD = 5
"""Bytes before a message: whether it is packed, and its length."""


class OpenCall:
    """One call. Its request is whole with the last byte of its message, which the server answers then, or at the end of
    its stream; the head of a frame proves nothing of what follows it."""

    __slots__ = ("_head", "_left", "whole_since")

    def __init__(self) -> None:
        self.whole_since: float | None = None  # seconds, when its request had come
        self._head = b""
        self._left = 0  # bytes of the message, once its length is known

    @property
    def is_whole(self) -> bool:
        """Whether its request has come."""
        return self.whole_since is not None

    def take(self, frame: FrameHead, piece: bytes, is_last: bool, now: float) -> None:
        """A piece of a DATA frame has come. is_last: of its frame. No client pads: what is padded is not counted."""
        if frame.flags & END_STREAM and is_last:
            self.end(now)
        if self.is_whole or frame.flags & PADDED:
            return
        if len(self._head) < MESSAGE_HEAD:
            missing = MESSAGE_HEAD - len(self._head)
            self._head, piece = self._head + piece[:missing], piece[missing:]
            self._left = int.from_bytes(self._head[1:])
        self._left -= len(piece)
        if len(self._head) == MESSAGE_HEAD and self._left <= 0:
            self.end(now)

    def end(self, now: float) -> None:
        """Its request has come as a whole. May be called twice."""
        if self.whole_since is None:
            self.whole_since = now


class Caller(Protocol):
    """What the table needs of a connection."""

    peer: str
    calls: dict[int, OpenCall]
    """By stream, the oldest first."""

    def end_call(self, stream: int) -> None:
        """End a call, so that another can be served."""


C = TypeVar("C", bound=Caller)


class CallTable(Generic[C]):
    """most, per_peer: calls of all connections, and of those of one address. patience: seconds after which a call whose
    request has come waits for its client too, who does not read the answer. Times in seconds of any clock that does not
    go back."""

    def __init__(self, most: int, per_peer: int, patience: float) -> None:
        self._most, self._per_peer, self._patience = most, per_peer, patience
        self._callers: dict[C, None] = {}  # those with calls

    def begin(self, caller: C, stream: int, now: float) -> bool:
        """A call begins. Returns whether it may go on: another one gave way where there was no room."""
        own, held = share_of(caller.peer), self._held()
        is_full = held.total() >= self._most
        if is_full or held[own] >= self._per_peer:
            larger = {peer for peer, calls in held.items() if calls > held[own] + 1}
            if not self._make_room({own} if held[own] >= self._per_peer else larger | {own}, held, now):
                return False
        caller.calls[stream] = OpenCall()
        self._callers[caller] = None
        return True

    def end(self, caller: C, stream: int) -> None:
        """A call is over. May be called twice."""
        caller.calls.pop(stream, None)
        if not caller.calls:
            self._callers.pop(caller, None)

    def leave(self, caller: C) -> None:
        """The connection has ended. May be called twice."""
        caller.calls.clear()
        self._callers.pop(caller, None)

    def _held(self) -> Counter[str]:
        """Calls by address."""
        held: Counter[str] = Counter()
        for caller in self._callers:
            held[share_of(caller.peer)] += len(caller.calls)
        return held

    def _make_room(self, peers: set[str], held: Counter[str], now: float) -> bool:
        """End one call of these addresses that waits for its client. Returns whether there was one."""
        callers = [each for each in self._callers if share_of(each.peer) in peers]
        for caller in sorted(callers, key=lambda each: (-held[share_of(each.peer)], -len(each.calls))):
            if (stream := self._oldest(caller, now)) is not None:
                caller.end_call(stream)
                return True
        return False

    def _oldest(self, caller: C, now: float) -> int | None:
        """The stream of the call that gives way first; None where none waits for its client."""
        for stream, call in caller.calls.items():
            if call.whole_since is None or now - call.whole_since > self._patience:
                return stream
        return None
