"""Long work on an event loop, in slices: others have their turn in between.

    def ingest(self) -> Steps[int]:          # a generator
        for part in parts:
            self._take(part)
            yield                            # here others may have a turn
        page = yield lambda: parse(body)     # pure work that may run in a thread; its result comes back
        return len(page)

    complete(self.ingest())                  # at one go, as in a replay
    await in_slices(self.ingest(), thread)   # on a loop: 10 ms at most, then a turn for others

Both give the same. State of the loop stays with the loop, so nothing is locked.

An exception keeps the frames that it passed, and what they refer to: a page of megabytes. Where one of these frames
still refers to the exception, that is a cycle, which stays until a collection of all garbage. So each forgets it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Work = Callable[[], Any]
"""Touches nothing that anything else changes meanwhile."""

Steps = Generator[Work | None, Any, T]

SLICE_SECONDS = 0.01


def complete(steps: Steps[T]) -> T:
    """Do all of it now. Raises what the steps raise."""
    result: Any = None
    error: Exception | None = None
    try:
        while True:
            work = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            if work is not None:
                try:
                    result = work()
                except Exception as raised:
                    error = raised
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        error = None


async def in_slices(steps: Steps[T], run: Callable[[Work], Awaitable[Any]]) -> T:
    """Do all of it on the running loop, in slices of `SLICE_SECONDS`. run: runs pure work in a thread.

    Raises what the steps raise; what `run` raises is raised where the steps wait for it.
    """
    result: Any = None
    error: Exception | None = None
    turn = time.monotonic()
    try:
        while True:
            work = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            if work is not None:
                try:
                    result = await run(work)
                except Exception as raised:
                    error = raised
                turn = time.monotonic()
            elif time.monotonic() - turn >= SLICE_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        error = None
