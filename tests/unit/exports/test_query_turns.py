"""QueryTurns of queries: an address with many requests waits for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kvitals.agent.exports.query_turns import NoTurnError, QueryTurns


class Work:
    """Requests that hold their turn until they are told to end, and the order in which they began."""

    def __init__(self, turns: QueryTurns) -> None:
        self.began: list[str] = []
        self._turns = turns
        self._end = asyncio.Semaphore(0)
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, *addresses: str) -> Sequence[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._one(address)) for address in addresses]
        self._tasks += tasks
        await asyncio.sleep(0.01)
        return tasks

    async def _one(self, address: str) -> None:
        async with self._turns.turn(address):
            self.began.append(address)
            await self._end.acquire()

    async def end(self, count: int = 1) -> None:
        for _ in range(count):
            self._end.release()
        await asyncio.sleep(0.01)

    async def end_all(self) -> None:
        await self.end(100)
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_another_address_waits_for_one_request_and_not_for_all() -> None:
    work = Work(QueryTurns(running=1, waiting=32, share=24))
    await work.ask(*["many"] * 10, "good")
    await work.end(2)
    assert work.began == ["many", "many", "good"]
    await work.end_all()
    assert work.began.count("many") == 10


async def test_an_address_cannot_take_every_place() -> None:
    work = Work(QueryTurns(running=1, waiting=32, share=3))
    refused = (await work.ask(*["many"] * 6))[-1]
    with pytest.raises(NoTurnError, match="3 requests from this address"):
        await refused
    await work.ask("good")
    await work.end_all()
    assert work.began.count("good") == 1


async def test_all_places_taken() -> None:
    work = Work(QueryTurns(running=1, waiting=2, share=2))
    *_, refused = await work.ask("a", "b", "c", "d")
    with pytest.raises(NoTurnError, match="2 requests are waiting"):
        await refused
    await work.end_all()


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_who_leaves_gives_the_turn_on(which: int) -> None:
    work = Work(QueryTurns(running=1, waiting=32, share=24))
    tasks = await work.ask("a", "b", "c")
    tasks[which].cancel()
    await asyncio.sleep(0.01)
    await work.end_all()
    assert len(work.began) == (3 if which == 0 else 2)
    await work.ask("d")
    assert work.began[-1] == "d"
    await work.end_all()


async def test_who_leaves_in_the_moment_of_the_turn_gives_it_on() -> None:
    turns = QueryTurns(running=1, waiting=32, share=24)
    work = Work(turns)
    tasks = await work.ask("a", "b", "c")
    work._end.release()
    for _ in range(20):
        await asyncio.sleep(0)
        if "b" in work.began or turns._queues.get("b") is None:
            break
    tasks[1].cancel()
    await work.end_all()
    await work.ask("d")
    assert work.began[-1] == "d"
    await work.end_all()


async def test_a_client_that_leaves_as_its_turn_comes_gives_the_turn_on() -> None:
    """Of 40 queries that moved to another queue, 13 ended as KeyError, which clients saw as 500."""
    turns = QueryTurns(running=1, waiting=32, share=24)
    work = Work(turns)
    _, leaving = await work.ask("first", "leaves")
    ending = asyncio.ensure_future(work.end())
    await asyncio.sleep(0)
    leaving.cancel()
    await ending
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await work.ask("next")
    assert work.began == ["first", "next"]
    await work.end_all()


async def test_the_last_free_turn_is_for_an_address_that_has_none() -> None:
    """Two slow queries of one address held both turns, and another client's quick one waited for ten seconds."""
    work = Work(QueryTurns(running=2, waiting=32, share=24))
    await work.ask("many", "many", "many")
    assert work.began == ["many"]
    await work.ask("good")
    assert work.began == ["many", "good"]
    await work.end(2)
    assert work.began == ["many", "good", "many"]
    await work.end_all()
    assert work.began.count("many") == 3
