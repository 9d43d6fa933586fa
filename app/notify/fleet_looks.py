"""Looks at pools of a Prometheus, or at an agent's history: one at a time of each pool, shared by all messages that
wait for it, and no more of them than their share of the CPU time allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvitals.agent.workers import Worker

LOOKS_AT_ONCE = 2
"""Looks that are under way at the same time. Most of a look is work of this process, so more make each one slower."""
MAX_LOOKS = 16
"""Looks that are kept for messages that come later."""

MAX_WAITING = 32
"""Looks that wait: twice as many as there are diagnoses at a time. Of older ones nobody waits for the answer."""
BURST_SECONDS, CPU_SHARE = 20.0, 0.25
"""CPU time of looks at once, and of a core in the long run: each alert may ask for a moment of its own."""

T = TypeVar("T")


class TooManyLooksError(Exception):
    """A look was dropped: others are more recent."""


class LookBudget:
    """CPU time that looks may still take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left, self._at = BURST_SECONDS, clock()

    def spend(self, seconds: float) -> None:
        """A look took so much."""
        self._left = self._now() - seconds
        self._at = self._clock()

    def wait_seconds(self) -> float:
        """Until the next look may begin."""
        return max(-self._now() / CPU_SHARE, 0.0)

    def _now(self) -> float:
        return min(self._left + CPU_SHARE * (self._clock() - self._at), BURST_SECONDS)


@dataclass(eq=False)
class PlaceLook(Generic[T]):
    """A look at a place: waits, is under way, or is done. moment: what is judged; seconds since the epoch."""

    place: Mapping[str, str]
    moment: float
    answer: asyncio.Future[T]
    begun: bool = False

    @property
    def failed(self) -> bool:
        return self.answer.done() and (self.answer.cancelled() or self.answer.exception() is not None)


@dataclass
class FleetLooks(Generic[T]):
    """judge: blocks; the place and the moment that are judged. cost: what a look takes is what this grows by in its
    thread; seconds."""

    judge: Callable[[Mapping[str, str], float], T]
    budget: LookBudget = field(default_factory=LookBudget)
    cost: Callable[[], float] = time.thread_time
    _looks: list[PlaceLook[T]] = field(default_factory=list, repr=False)  # the oldest first
    _running: set[asyncio.Task[None]] = field(default_factory=set, repr=False)
    # Daemon threads: a server that is slow must not hold up the end of the process.
    _idle: list[Worker] = field(default_factory=lambda: [Worker("look") for _ in range(LOOKS_AT_ONCE)], repr=False)
    _timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def at(self, moment: float, place: Mapping[str, str], age: float) -> PlaceLook[T]:
        """A look at a place less than `age` seconds from a moment: done, under way, or a new one. One that waits
        judges the latest moment that somebody asks for."""
        for look in sorted(self._looks, key=lambda one: one.moment, reverse=True):
            if look.place == place and abs(moment - look.moment) < age and not look.failed:
                if not look.begun:
                    look.moment = max(look.moment, moment)
                return look
        look = PlaceLook(place, moment, asyncio.get_running_loop().create_future())
        done = [one for one in self._looks if one.answer.done()]
        for old in done[: max(0, len(self._looks) + 1 - MAX_LOOKS)]:
            self._looks.remove(old)
        waiting = [one for one in self._looks if not one.begun and not one.answer.done()]
        for old in waiting[: max(0, len(waiting) + 1 - MAX_WAITING)]:
            self._looks.remove(old)
            old.answer.set_exception(TooManyLooksError("too many diagnoses are waiting; newer ones are done first"))
            old.answer.exception()  # nobody may wait any more
        self._looks.append(look)
        self._begin()
        return look

    def _begin(self) -> None:
        """Begin with what waits, the latest moment first."""
        while self._idle:
            waiting = [one for one in self._looks if not one.begun and not one.answer.done()]
            look = max(waiting, key=lambda one: one.moment, default=None)
            if look is None:
                return
            if (pause := self.budget.wait_seconds()) > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(pause, self._resume)
                return
            look.begun = True
            task = asyncio.create_task(self._run(look, self._idle.pop()), name="fleet")
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _resume(self) -> None:
        self._timer = None
        self._begin()

    def _judged(self, look: PlaceLook[T]) -> T:
        began = self.cost()
        try:
            return self.judge(look.place, look.moment)
        finally:
            self.budget.spend(self.cost() - began)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._begin()

    async def _run(self, look: PlaceLook[T], worker: Worker) -> None:
        try:
            answer = await worker.run(lambda: self._judged(look))
        except Exception as error:  # whoever waits for it gets it
            look.answer.set_exception(error)
            look.answer.exception()  # nobody may wait any more
        except asyncio.CancelledError:
            look.answer.cancel()
            raise
        else:
            look.answer.set_result(answer)
        self._idle.append(worker)
