"""Clients and upstreams that hold connections, memory or the loop: what the tap does about each."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from tap_stage import OK, STREAM, Call, Client, Stage, chunk, post, staged, until

from kvitals.agent.connection_table import share_of
from kvitals.agent.loop_watch import EVENTS_AT_ONCE, LoopWatch
from kvitals.agent.tap import client_connections
from kvitals.agent.tap.client_connections import Bounds
from kvitals.agent.tap.relay import MAX_INTERIM

UPLOAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def answers(call: Call) -> None:
    """Answers requests with a body of two bytes; reads the bodies of others and says nothing."""
    while b"Content-Length: 2\r\n" in await call.request():
        await call.body(2)
        await call.say(OK)
    await call.until_gone()


async def never_answers(call: Call) -> None:
    await call.request()
    await call.until_gone()


async def ask(stage: Stage) -> bytes:
    """A good client's answer."""
    client = await stage.client()
    await client.send(post())
    answer = await client.exactly(len(OK))
    client.leave()
    return answer


async def stalled(stage: Stage, count: int, data: bytes) -> list[Client]:
    """Clients that send this and nothing more."""
    clients = []
    for _ in range(count):
        clients.append(await stage.client())
        await clients[-1].send(data)
    return clients


# -- a full table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"GET / HT", UPLOAD, UPLOAD + b"some", post()])
async def test_who_waits_for_its_client_gives_way_to_a_new_one(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connections, "IDLE_SECONDS", 0.05)
    async with staged(answers, max_connections=8, bounds=Bounds(share=1.0)) as stage:
        clients = await stalled(stage, 8, data)
        await until(
            lambda: len(stage.tap.connections or ()) == 8 and stage.tap.books.request_bytes >= 8 * len(data) - 64
        )
        await asyncio.sleep(0.2)
        for _ in range(4):
            assert await ask(stage) == OK
        said = await clients[0].rest()  # the one that had waited longest
        assert said.startswith(b"HTTP/1.1 503 ") == bool(data not in (b"", post()))
        assert stage.tap.books.refused["gave_way"] >= 1


async def test_one_address_has_a_share_and_no_more() -> None:
    async with staged(never_answers, max_connections=4, bounds=Bounds(share=0.5)) as stage:
        await stalled(stage, 2, post())
        await until(lambda: len(stage.calls) == 2 and all(call.requests for call in stage.calls))
        assert b"this address uses all of its 2 connections" in await (await stage.client()).rest()


def test_an_address_of_ipv6_counts_with_its_network() -> None:
    assert share_of("2001:db8:1:2::1") == share_of("2001:db8:1:2:ffff::9%eth0") != share_of("2001:db8:1:3::1")
    assert share_of("::ffff:10.0.0.1") != share_of("::ffff:10.0.0.2")
    assert share_of("10.0.0.1") == "10.0.0.1"


# -- time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0.0, 0.02])
async def test_a_body_that_does_not_come_is_given_up(every: float) -> None:
    async with staged(answers, bounds=Bounds(body=0.2)) as stage:
        client = await stage.client()
        await client.send(UPLOAD)

        async def trickle() -> None:
            while every:
                await client.send(b"x")
                await asyncio.sleep(every)

        trickling = asyncio.create_task(trickle())
        said = await client.until(b"}\n")
        assert said.startswith(b"HTTP/1.1 408 ") and b"bytes of the body did not arrive within 0.2 s" in said
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)
        await until(lambda: stage.calls[0].gone.is_set())


async def test_a_slow_upload_that_makes_progress_passes() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(40_000)
        await asyncio.sleep(0.6)  # the engine's time is not the client's
        await call.say(OK)
        await call.until_gone()

    async with staged(script, bounds=Bounds(body=0.3)) as stage:
        client = await stage.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 40000\r\n\r\n")
        for _ in range(20):
            await client.send(b"x" * 2000)
            await asyncio.sleep(0.04)
        assert await client.exactly(len(OK)) == OK


async def test_an_idle_connection_is_closed() -> None:
    async with staged(answers, bounds=Bounds(idle=0.05)) as stage:
        client = await stage.client()
        await client.send(post())
        assert await client.rest() == OK


async def endless(call: Call) -> None:
    await call.request()
    await call.body(2)
    await call.say(STREAM)
    while True:
        await call.say(chunk(b"x" * 60_000))


async def deaf(stage: Stage) -> Client:
    client = await stage.client()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(post())
    return client


async def test_a_client_that_reads_nothing_any_more_is_given_up() -> None:
    async with staged(endless, bounds=Bounds(unread=0.3)) as stage:
        await deaf(stage)
        part = await stage.part()
        assert part.error == "tap_unread" and stage.tap.books.refused["unread"] == 1
        await until(lambda: not stage.tap.books.connections)


# -- the upstream -----------------------------------------------------------------------------------------


async def test_interim_responses_are_few() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say((CONTINUE * 100_000)[: 2 << 20])
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        began = time.process_time()
        await client.send(post())
        said = await client.until(b"}\n")
        assert b"HTTP/1.1 502 " in said and b"more than %d interim responses" % MAX_INTERIM in said
        assert time.process_time() - began < 2.0  # with that of the client and the upstream


async def test_some_interim_responses_pass_in_order() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(CONTINUE * MAX_INTERIM + OK)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        assert await client.exactly(MAX_INTERIM * len(CONTINUE) + len(OK)) == CONTINUE * MAX_INTERIM + OK


# -- the end ----------------------------------------------------------------------------------------------


@pytest.mark.system
async def test_a_tap_that_stops_does_not_wait_for_who_makes_no_progress() -> None:
    async def script(call: Call) -> None:
        if b"Content-Length: 2\r\n" in await call.request():
            await call.body(2)
            await call.say(STREAM)
            while True:
                await call.say(chunk(b"x" * 60_000))
        await call.until_gone()

    async with staged(script, drain=12.0) as stage:
        for data in (b"", b"GET / HT", UPLOAD, UPLOAD + b"some"):
            await stalled(stage, 5, data)
        await deaf(stage)
        await until(lambda: len(stage.calls) == 11)
        began = time.monotonic()
        await stage.tap.close()
        assert time.monotonic() - began < 10  # not the drain


def test_all_ready_sockets_are_served_a_few_at_a_time() -> None:
    served, most = set[int](), 0

    async def serve() -> None:
        nonlocal most
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(5 * EVENTS_AT_ONCE)]
        for ours, theirs in pairs:
            theirs.send(b"x")
            loop.add_reader(ours, served.add, ours.fileno())
        while len(served) < len(pairs):
            before = len(served)
            await asyncio.sleep(0)
            most = max(most, len(served) - before)
        for ours, theirs in pairs:
            loop.remove_reader(ours)
            ours.close()
            theirs.close()

    watch = LoopWatch()
    with asyncio.Runner(loop_factory=watch.new_loop) as runner:
        runner.run(asyncio.wait_for(serve(), 10))
    watch.close()
    assert 0 < most <= 2 * EVENTS_AT_ONCE
