"""Long work in slices gives what it gives at one go, and others have their turn in between."""

import asyncio
import time

from kvitals.series.slices import Steps, complete, in_slices


def count(to: int) -> Steps[int]:
    total = 0
    for number in range(to):
        total += number
        time.sleep(0.001)
        yield None
    more: int = yield lambda: 1000
    return total + more


def failing() -> Steps[str]:
    def broken() -> None:
        raise ValueError("broken")

    try:
        yield broken
    except ValueError as error:
        return f"caught {error}"
    return "nothing"


async def test_both_ways_give_the_same_and_others_have_turns() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    assert await in_slices(count(50), asyncio.to_thread) == complete(count(50)) == 1225 + 1000
    beside.cancel()
    assert turns >= 4


async def test_what_work_raises_is_raised_where_the_steps_wait() -> None:
    assert await in_slices(failing(), asyncio.to_thread) == "caught broken"
    assert complete(failing()) == "caught broken"
