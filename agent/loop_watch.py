"""The event loop's delay, measured all the time.

    loop_watch.run(main())             # as asyncio.run, on a loop that is watched
    loop_watch.begin()                 # on the loop, once the program has started
    loop_watch.current()               # the watch of the running loop, for its metrics page

The selector knows when the loop works and when it waits: between the return of one `select` and the next call every
callback that was ready runs, and nobody else has a turn. That time is measured at each turn, for about a microsecond.
While it lasts, a thread looks at the loop's stack now and then, so a stall names its task and function even before it
ends.
"""

from __future__ import annotations

import asyncio
import errno
import math
import select
import selectors
import socket
import sys
import threading
import time
from asyncio import selector_events
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from kvitals.agent.log_limit import LogLimit
from kvitals.agent.logger import Logger
from kvitals.series.types import METRIC_NAME, Labels

log = Logger()
_not_accepted = LogLimit(log.error)

T = TypeVar("T")

EVENTS_AT_ONCE = 16
"""Sockets that are served in one turn of the loop. Timers and signals wait for no more than these."""

NOTED_SECONDS = 0.02
"""Turns of the loop from this length on are remembered."""

STALL_SECONDS = 0.1
"""From this length on a turn is a stall: it is counted and logged."""

KEPT_SECONDS = 60.0
"""For how long the longest turn is reported."""

LOG_SECONDS = 60.0
"""A stall is logged this long after the one before, or at once where it took twice the CPU time of that."""

SAMPLE_SECONDS = 0.05
"""How often the thread looks whether the loop is late: 20 times a second, 10 microseconds each."""

_OURS = "kvitals."
_BETWEEN = (__name__, "kvitals.agent.garbage", "kvitals.ui.cli.main")
"""Modules of ours that do nothing on the loop, or are called by the collector in the midst of what does."""


class Stall(NamedTuple):
    """A turn of the loop in which nothing else could run."""

    ended: float  # monotonic
    seconds: float
    cpu_seconds: float  # of the loop's thread: much less than `seconds` where the machine was busy
    where: str  # task and function; empty where it was too short to be seen


class LoopWatch:
    """Measures one event loop."""

    def __init__(self) -> None:
        self.stalls = 0
        """Turns of `STALL_SECONDS` and more."""
        self._counts = False
        self._recent: deque[Stall] = deque()  # the longest first, each newer than those before it
        self._since: float | None = None  # when the turn began that goes on; None while the loop waits
        self._cpu_since = 0.0
        self._seen: tuple[float, str] = (0.0, "")  # of the turn that began then
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._closed = threading.Event()
        self._logged, self._logged_cpu = float("-inf"), 0.0

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that is watched until `close`, to be run in this thread."""
        self._loop = _WatchedLoop(_WatchedSelector(self))
        self._loop.set_exception_handler(_report)
        _watches[self._loop] = self
        self._thread_id = threading.get_ident()
        threading.Thread(target=self._look, name="kvitals-loop-watch", daemon=True).start()
        return self._loop

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def begin(self) -> None:
        """Count from now on: what a program does at its start delays nobody."""
        if self._counts:
            return
        self._counts = True
        self.turn_begins()  # what this turn of the loop did so far was the start

    def longest(self) -> Stall | None:
        """The longest turn that ended within the last minute; None where none was worth noting."""
        before = time.monotonic() - KEPT_SECONDS
        while self._recent and self._recent[0].ended < before:
            self._recent.popleft()
        return self._recent[0] if self._recent else None

    def values(self) -> dict[str, float]:
        """The families of the loop."""
        longest = self.longest()
        return {
            "kvitals_loop_stall_seconds": longest.seconds if longest else 0.0,
            "kvitals_loop_stall_cpu_seconds": longest.cpu_seconds if longest else 0.0,
            "kvitals_loop_stalls_total": float(self.stalls),
        }

    def series(self, labels: Mapping[str, str]) -> dict[Labels, float]:
        """The same as series of a window."""
        return {Labels({**labels, METRIC_NAME: name}): value for name, value in self.values().items()}

    def turn_begins(self) -> None:
        """The loop has something to do."""
        self._cpu_since, self._since = time.thread_time(), time.monotonic()

    def turn_ends(self) -> None:
        """The loop waits."""
        since, self._since = self._since, None
        if since is None:
            return
        now = time.monotonic()
        if now - since >= NOTED_SECONDS and self._counts:
            self._note(since, now)

    def _note(self, since: float, now: float) -> None:
        seen_since, where = self._seen
        stall = Stall(now, now - since, time.thread_time() - self._cpu_since, where if seen_since == since else "")
        while self._recent and self._recent[-1].seconds <= stall.seconds:
            self._recent.pop()
        self._recent.append(stall)
        if stall.seconds < STALL_SECONDS:
            return
        self.stalls += 1
        if now - self._logged >= LOG_SECONDS or stall.cpu_seconds >= 2 * self._logged_cpu > 0:
            self._logged, self._logged_cpu = now, stall.cpu_seconds
            log.warning(
                "event loop stalled",
                seconds=round(stall.seconds, 3),
                cpu_seconds=round(stall.cpu_seconds, 3),
                where=stall.where or "too short to be seen",
            )

    def _look(self) -> None:
        while not self._closed.wait(SAMPLE_SECONDS):
            since = self._since
            if since is not None and self._seen[0] != since and time.monotonic() - since >= NOTED_SECONDS:
                self._seen = since, self._where()

    def _where(self) -> str:
        """Task and function that run on the loop now."""
        task = asyncio.current_task(self._loop) if self._loop is not None else None
        name = getattr(task.get_coro(), "__qualname__", task.get_name()) if task is not None else "callback"
        frame = innermost = sys._current_frames().get(self._thread_id)
        while frame is not None and not _is_ours(frame.f_globals.get("__name__", "")):
            frame = frame.f_back
        frame = frame or innermost
        if frame is None:
            return name
        module, function = frame.f_globals.get("__name__", "?"), frame.f_code.co_qualname
        return f"{name} in {module}.{function}, line {frame.f_lineno}"


def _is_ours(module: str) -> bool:
    """Whether it is a module of kvitals that does something on the loop."""
    return module.startswith(_OURS) and module not in _BETWEEN


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's exception handler. asyncio reports each connection that it cannot accept, 100 a second at each address
    while the limit of open files is reached; one of these a minute is logged."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        _not_accepted("limit of open files reached: connections are not accepted", error=str(error))
    else:
        loop.default_exception_handler(context)


class _SocketTransport(selector_events._SelectorSocketTransport):  # type: ignore[misc, name-defined]
    """A connection that is freed once it has ended.

    asyncio's own keeps one of its methods in an attribute, which is a cycle: each connection stays until a collection
    of cycles, and where one set it aside while it was open (agent/garbage.py), for much longer.
    """

    def _call_connection_lost(self, exc: Exception | None) -> None:
        super()._call_connection_lost(exc)
        own = [name for name, value in vars(self).items() if getattr(value, "__self__", None) is self]
        for name in own:
            setattr(self, name, _nothing)


class _WatchedLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, with the selector of a watch."""

    def _make_socket_transport(
        self,
        sock: socket.socket,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        *,
        extra: dict[str, Any] | None = None,
        server: asyncio.AbstractServer | None = None,
    ) -> asyncio.Transport:
        transport: asyncio.Transport = _SocketTransport(self, sock, protocol, waiter, extra, server)
        return transport


def _nothing() -> None:
    """Called in place of what a connection does, once it has ended."""


class _WatchedSelector(selectors.DefaultSelector):
    """Tells a watch when the loop waits, and reports a few ready sockets at a time: the kernel reports the others next.

    asyncio's own selector asks for all of them, and the loop serves all before it looks at a timer or a signal: with
    thousands of busy connections that takes seconds.
    """

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__()
        self._watch = watch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._watch.turn_ends()
        try:
            return self._few(timeout) if sys.platform == "linux" else super().select(timeout)
        finally:
            self._watch.turn_begins()

    def _few(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """As `selectors.EpollSelector.select` of CPython 3.11, for a bounded number of sockets."""
        seconds = -1 if timeout is None else max(math.ceil(timeout * 1e3) * 1e-3, 0)
        try:
            ready = self._selector.poll(seconds, EVENTS_AT_ONCE)  # type: ignore[attr-defined]
        except InterruptedError:
            return []
        found = []
        keys = self.get_map()
        for fd, event in ready:
            mask = (event & ~select.EPOLLIN and selectors.EVENT_WRITE) | (
                event & ~select.EPOLLOUT and selectors.EVENT_READ
            )
            if key := keys.get(fd):
                found.append((key, mask & key.events))
        return found


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


def current() -> LoopWatch | None:
    """The watch of the running loop; None on a loop that is not watched."""
    try:
        return _watches.get(asyncio.get_running_loop())
    except RuntimeError:
        return None


def begin() -> None:
    """Count from now on, on the running loop; nothing happens on one that is not watched."""
    if (watch := current()) is not None:
        watch.begin()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on a loop that is watched."""
    watch = LoopWatch()
    try:
        with asyncio.Runner(loop_factory=watch.new_loop) as runner:
            return runner.run(main)
    finally:
        watch.close()
