"""The ledger's clocks, where the other side is a script. No engine is started here."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from .clients import FINISHED, LEFT, Order, ask

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
PIECE = b'data: {"choices":[{"text":"x"}]}\n\n'


@asynccontextmanager
async def server(pieces: int, more: bool) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Says so many pieces; then ends, or keeps the client waiting."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + PIECE * pieces)
        if more:
            await reader.read()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", writers
    finally:
        listening.close()


@pytest.mark.parametrize("order", [Order([1], 9, leave_after=2), Order([1], 9, leave_within=0.2)])
async def test_who_is_written_down_as_gone_has_closed_its_connection(order: Order) -> None:
    async with server(pieces=3, more=True) as (url, writers), aiohttp.ClientSession() as session:
        seen = await ask(session, url, order, "straight")
        poll = select.poll()
        poll.register(writers[0].get_extra_info("socket"), select.POLLRDHUP)
        assert seen.status == LEFT and poll.poll(0)  # not a moment later: an answer could come to its end in it
        assert seen.e2e is None and seen.ended > seen.sent
    await asyncio.sleep(0)


async def test_who_reads_to_the_end_has_finished() -> None:
    async with server(pieces=3, more=False) as (url, _), aiohttp.ClientSession() as session:
        seen = await ask(session, url, Order([1], 3), "straight")
    assert (seen.status, seen.pieces, seen.http) == (FINISHED, 3, 200)
    assert seen.first is not None and seen.e2e is not None and seen.first <= seen.e2e
