"""Looks at pools of a Prometheus: one at a time of each pool, shared by all messages that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

LOOKS_AT_ONCE = 2
"""Looks that are under way at the same time. Most of a look is work of this process, so more make each one slower."""
MAX_LOOKS = 16
"""Looks that are kept for messages that come later."""

T = TypeVar("T")


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
    """judge: blocks; the place and the moment that are judged."""

    judge: Callable[[Mapping[str, str], float], T]
    _looks: list[PlaceLook[T]] = field(default_factory=list, repr=False)  # the oldest first
    _running: set[asyncio.Task[None]] = field(default_factory=set, repr=False)

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
        self._looks.append(look)
        self._begin()
        return look

    def _begin(self) -> None:
        """Begin with what waits, the latest moment first."""
        while len(self._running) < LOOKS_AT_ONCE:
            waiting = [one for one in self._looks if not one.begun and not one.answer.done()]
            look = max(waiting, key=lambda one: one.moment, default=None)
            if look is None:
                return
            look.begun = True
            task = asyncio.create_task(self._run(look), name="fleet")
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._begin()

    async def _run(self, look: PlaceLook[T]) -> None:
        try:
            answer = await asyncio.to_thread(self.judge, look.place, look.moment)
        except Exception as error:  # whoever waits for it gets it
            look.answer.set_exception(error)
            look.answer.exception()  # nobody may wait any more
        except asyncio.CancelledError:
            look.answer.cancel()
            raise
        else:
            look.answer.set_result(answer)
