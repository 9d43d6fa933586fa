"""What work in steps refers to is freed when the work ends, also where it raised, and not with the next collection.

A page of megabytes that is refused raises an exception, whose traceback refers to the page. In a cycle it would stay
until the collector finds it, or for much longer where a collection ran meanwhile and set it aside.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from kvitals.agent.ingest_share import Meter
from kvitals.agent.workers import Worker
from kvitals.series.slices import Steps, complete, in_slices


class Page:
    """A page that is refused."""

    def parse(self, *, sound: bool) -> int:
        if not sound:
            raise ValueError("too many lines")
        return 7


pages: list[weakref.ref[Page]] = []


def steps(sound: bool, caught: bool) -> Steps[int]:
    """Work on one page that is parsed elsewhere."""
    page = Page()
    pages.append(weakref.ref(page))
    try:
        return (yield lambda: page.parse(sound=sound))
    except ValueError:
        if caught:
            return 0
        raise


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Without a collector of cycles."""
    pages.clear()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(("sound", "caught"), [(True, True), (False, True), (False, False)])
async def test_a_worker_and_its_caller_keep_nothing(sound: bool, caught: bool) -> None:
    worker = Worker("parsing")
    try:
        await in_slices(Meter().steps(steps(sound, caught)), worker.run)
    except ValueError:
        assert not sound
    for _ in range(100):  # the thread lets go a moment after the result is there
        if pages[0]() is None:
            break
        await asyncio.sleep(0.01)
    assert pages[0]() is None


@pytest.mark.parametrize(("sound", "caught"), [(True, True), (False, True), (False, False)])
def test_all_at_one_go_keeps_nothing(sound: bool, caught: bool) -> None:
    try:
        complete(Meter().steps(steps(sound, caught)))
    except ValueError:
        assert not sound
    assert pages[0]() is None
