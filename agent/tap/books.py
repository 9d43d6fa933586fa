"""The tap's bookkeeping. Traffic calls it and is never stopped by it: what fails in here is counted and no more."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kvitals.agent.logger import Logger
from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.record import is_refusal
from kvitals.agent.tap.context import ContextFields, RequestPseudonyms, context_of
from kvitals.agent.tap.exchange import Clock, Observation, TapPlace, measured_as
from kvitals.agent.tap.http1 import RequestHead, Response
from kvitals.agent.tap.turns import LoopTurn

SAY_AGAIN_SECONDS = 60.0
MAX_PIECES, MAX_WAITING = 16, 8 * 1024
"""Pieces and bytes of a response from which on they are parsed, in a turn that has time for it."""
MAX_UNREAD = 32 * 1024
"""Bytes of a response from which on they are parsed in any turn."""

_log = Logger()
P = ParamSpec("P")
T = TypeVar("T")


class Entry:
    """A request that is under way. Every method may be called at any time, and none raises."""

    def __init__(self, books: Books, key: int, head: RequestHead, peer: str, began: Clock) -> None:
        self.added: tuple[bytes, ...] = ()
        """Lines for the upstream's head."""
        self.removed: frozenset[bytes] = frozenset()
        self._books = books
        self._key = key
        self._pieces: list[tuple[bytes, float]] = []  # of the response's content, with when they came
        self._size = 0  # bytes of them
        self._most = 1 + key % MAX_PIECES  # at first: streams that began together are not read together
        self._observation = books.guarded(books.observe, head, peer, began)
        if self._observation is not None:
            self.added = self._observation.context.added
            self.removed = self._observation.context.removed

    def connected(self) -> None:
        """The request's head went to the upstream."""
        if self._observation is not None:
            self._books.guarded(self._observation.connected, time.perf_counter())

    def answered(self, head: Response) -> None:
        """The response began."""
        if self._observation is not None and (why := self._books.guarded(self._observation.answered, head)):
            self._books.unread[why] += 1

    def content(self, piece: bytes, now: float) -> None:
        """More of the response's content came at `now` of the steady clock.

        Some are parsed at once, which took 3 microseconds a piece, one by one 6, and few in one turn of the loop, since
        other streams wait for as long.
        """
        self._pieces.append((piece, now))
        self._size += len(piece)
        due = len(self._pieces) >= self._most or self._size >= MAX_WAITING
        if self._size >= MAX_UNREAD or (due and self._books.turns.may_parse(self._size)):
            self._read()

    def _read(self) -> None:
        pieces, self._pieces, self._size, self._most = self._pieces, [], 0, MAX_PIECES
        if self._observation is not None:
            self._books.guarded(self._observation.content, pieces)

    def ended(self, *, left: bool = False, missed: bool = False, error: str = "", status: int = 0) -> None:
        """The response ended, or something else ended the request. left: the client went away; missed: with the end
        of what it was to get still here. Only the first call counts."""
        self._read()
        self._books.guarded(self._books.close, self._key, self._observation, left, missed, error, status)
        self._observation = None


class Books:
    """What the tap counts of itself, and the requests under way."""

    def __init__(
        self, place: TapPlace, wanted: ContextFields, names: RequestPseudonyms, deliver: Callable[[RequestPart], None]
    ) -> None:
        self.under_way: dict[int, float] = {}  # in the order in which they began -> when, by the steady clock
        self.requests: Counter[tuple[str, str]] = Counter()  # (measured as, status or what there was instead)
        self.unread: Counter[str] = Counter()  # why -> answers
        self.failures: Counter[str] = Counter()  # upstream's, why ->
        self.refused: Counter[str] = Counter()  # clients, why ->
        self.broken = 0  # times that the bookkeeping failed
        self.turns = LoopTurn()
        self.connections = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self._place = place
        self._wanted = wanted
        self._names = names
        self._deliver = deliver
        self._begun = 0
        self._said = float("-inf")  # when a failure was last logged

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest request under way; 0 where there is none."""
        began = next(iter(self.under_way.values()), None)
        return 0.0 if began is None else time.perf_counter() - began

    def open(self, head: RequestHead, peer: str, began: Clock) -> Entry:
        """A request of a client at address `peer`, whose first byte came at `began`."""
        self._begun += 1
        self.under_way[self._begun] = began.steady
        return Entry(self, self._begun, head, peer, began)

    def observe(self, head: RequestHead, peer: str, began: Clock) -> Observation:
        """Begin to watch a request."""
        context = context_of(head, peer, self._wanted, self._names)
        return Observation(measured_as(head), context, self._place, began)

    def close(
        self, key: int, observation: Observation | None, left: bool, missed: bool, error: str, status: int
    ) -> None:
        """End a request that is under way."""
        if self.under_way.pop(key, None) is None:
            return
        if observation is None:
            return
        part = observation.ended(time.perf_counter(), left=left, missed=missed, error=error, status=status or None)
        aborted = part.aborted and not is_refusal(part.status)  # as of the request's record
        told = "aborted" if aborted else str(part.status or part.error)
        self.requests[part.name, told] += 1
        if observation.unread:
            self.unread[observation.unread] += 1
        if part.name:
            self._deliver(part)

    def guarded(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What `do` returns; None where it fails, which is counted and does no more harm."""
        try:
            return do(*args, **kwargs)
        except Exception as error:
            self.broken += 1
            now = time.monotonic()
            if now - self._said >= SAY_AGAIN_SECONDS:
                self._said = now
                # Where and of what kind, never the message: it could quote an answer.
                where = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]]
                _log.error("bookkeeping failed; the tap still forwards traffic", kind=type(error).__name__, where=where)
            return None
