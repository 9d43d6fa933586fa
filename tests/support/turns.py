"""The longest turn of an event loop, in CPU time of its thread: what other threads and processes do does not count."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Turns:
    """What was seen so far."""

    longest: float = 0.0  # seconds


@contextlib.contextmanager
def watched_turns() -> Iterator[Turns]:
    """Measure the turns of the running loop until the block ends."""
    seen = Turns()

    async def tick() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            seen.longest = max(seen.longest, time.thread_time() - began)

    task = asyncio.get_running_loop().create_task(tick())
    try:
        yield seen
    finally:
        task.cancel()
