"""How many bytes the tap handles in one turn of the loop."""

from __future__ import annotations

import asyncio
import time

from tap_stage import LAST, STREAM, Call, Client, chunk, post, staged

from kvitals.agent.tap.books import MAX_UNREAD, Books
from kvitals.agent.tap.context import ContextFields
from kvitals.agent.tap.exchange import Clock, TapPlace
from kvitals.agent.tap.http1 import read_request, read_response
from kvitals.agent.tap.turns import MAX_READ, MIN_READ, TURN_BYTES, LoopTurn

EVENT = b"data:{}\n\n"
"""As many events as there can be in so many bytes."""


async def test_the_connections_of_a_turn_share_its_bytes() -> None:
    turns = LoopTurn()
    assert turns.read_share() == MAX_READ  # nobody else reads
    await asyncio.sleep(0)
    for _ in range(16):
        turns.read_share()
    await asyncio.sleep(0)
    assert [turns.read_share() for _ in range(16)] == [TURN_BYTES // 16] * 16
    await asyncio.sleep(0)
    assert {turns.read_share() for _ in range(1000)} >= {MIN_READ}


async def test_a_turn_parses_so_many_bytes_and_the_next_one_again() -> None:
    turns = LoopTurn()
    assert turns.may_parse(2 * TURN_BYTES)  # whatever came at once is parsed at once
    assert not turns.may_parse(1)
    await asyncio.sleep(0)
    assert turns.may_parse(TURN_BYTES - 1) and turns.may_parse(1) and not turns.may_parse(1)


class _Names:
    def of_headers(self, headers: object, peer: str) -> str:
        return ""

    def session(self, raw: str) -> str:
        return ""


async def test_streams_that_are_due_together_are_not_parsed_in_one_turn() -> None:
    books = Books(TapPlace(), ContextFields(), _Names(), lambda _: None)
    head = read_request(post().partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    entries = [books.open(head, "127.0.0.1", Clock(time.time(), time.perf_counter())) for _ in range(64)]
    for entry in entries:
        entry.answered(read_response(STREAM))
    piece, longest = EVENT * (1024 // len(EVENT)), 0.0
    for _ in range(MAX_UNREAD // 1024):
        for at in range(0, 64, 16):
            began = time.process_time()
            for entry in entries[at : at + 16]:
                entry.content(piece, time.perf_counter())
            longest = max(longest, time.process_time() - began)
            await asyncio.sleep(0)
    assert longest < 0.15  # all in one turn take ten times 0.1 s
    assert not books.broken


async def test_a_stream_beside_others_at_full_speed_arrives_whole() -> None:
    piece = chunk(EVENT * 2000)

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM)
        for _ in range(5):
            await call.say(piece)
        await call.say(LAST)
        await call.until_gone()

    async def whole(client: Client) -> bytes:
        await client.send(post())
        return await client.exactly(len(STREAM) + 5 * len(piece) + len(LAST))

    async with staged(script) as stage:
        answers = await asyncio.gather(*[whole(await stage.client()) for _ in range(4)])
        assert all(one == STREAM + piece * 5 + LAST for one in answers)
