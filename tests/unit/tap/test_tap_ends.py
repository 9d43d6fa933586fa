"""Who leaves, who breaks, who is slow: what passes the tap ends when either side ends it."""

from __future__ import annotations

import asyncio
import os
import socket
import time

import pytest
from tap_stage import LAST, OK, PATIENCE, STREAM, Call, Script, Stage, chunk, event, post, staged, until

from kvitals.agent.tap.sockets import ABORTIVE

# -- who leaves, who breaks, who is slow ------------------------------------------------------------------


async def test_a_client_that_leaves_in_mid_stream_is_gone_upstream_within_50_ms() -> None:
    gone_at: list[float] = []

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await call.until_gone()
        gone_at.append(time.monotonic())

    delays = []
    async with staged(script) as stage:
        for _ in range(5):
            client = await stage.client()
            await client.send(post())
            await client.until(event("a"))
            left = time.monotonic()
            client.leave()
            await until(lambda: stage.calls[-1].gone.is_set())
            delays.append(gone_at[-1] - left)
        part = await stage.part()
    assert part.aborted and part.finish == "abort" and part.status == 200
    assert part.ttft is not None and part.output_tokens is None
    assert min(delays) < 0.05  # the best of five: the machine may be busy
    assert stage.tap.books.under_way == {}


async def test_a_client_that_leaves_while_it_waits_is_gone_upstream_too() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        await until(lambda: bool(stage.calls and stage.calls[0].requests))
        client.writer.close()  # in order, rather than with a reset
        await until(lambda: stage.calls[0].gone.is_set())
        part = await stage.part()
    assert part.aborted and part.status is None and part.ttft is None


async def test_a_client_that_has_read_the_end_may_leave_before_the_last_byte() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a") + LAST.removesuffix(b"0\r\n\r\n"))
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        await client.until(b"[DONE]\n\n")
        client.leave()
        part = await stage.part()
    assert not part.aborted and part.finish == "stop"


END = LAST.removesuffix(b"0\r\n\r\n")


async def plain_client(stage: Stage, room: int = 0) -> socket.socket:
    """A request on a bare socket, which can be closed without waiting. room: bytes that the kernel holds for it."""
    client = socket.socket()
    if room:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.connect(("127.0.0.1", stage.tap.port))
    client.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(client, post())
    return client


async def received(client: socket.socket, mark: bytes) -> None:
    got = b""
    async with asyncio.timeout(PATIENCE):
        while mark not in got:
            got += await asyncio.get_running_loop().sock_recv(client, 1 << 16)


def depart(client: socket.socket, how: str) -> None:
    """Gone when this returns."""
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTIVE)
    client.close()


def say_at_once(call: Call, data: bytes) -> None:
    """Sent when this returns."""
    assert os.write(call.writer.get_extra_info("socket").fileno(), data) == len(data)


@pytest.mark.parametrize("said", [LAST, END])
@pytest.mark.parametrize("first", ["client", "upstream"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_who_left_before_the_end_was_passed_has_left(how: str, first: str, said: bytes) -> None:
    """The tap stands in line for a core: it wakes to find the end of the answer, and that the client has gone."""

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await call.until_gone()

    async with staged(script) as stage:
        client = await plain_client(stage)
        await received(client, event("a"))
        events = [lambda: depart(client, how), lambda: say_at_once(stage.calls[0], said)]
        for happens in events if first == "client" else reversed(events):
            happens()  # and the tap has no turn in between
        part = await stage.part()
    assert part.aborted and part.finish == "abort" and part.status == 200


async def test_who_left_before_a_whole_answer_was_passed_has_left() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.until_gone()

    async with staged(script) as stage:
        client = await plain_client(stage)
        await until(lambda: bool(stage.calls and stage.calls[0].requests))
        say_at_once(stage.calls[0], OK)
        depart(client, "close")
        part = await stage.part()
    assert part.aborted and part.status is None


LONG = b"x" * (48 << 10)  # more than the kernel holds on the way to a client behind `narrow`, less than the tap does


def narrow(stage: Stage) -> None:
    """From here on the kernel holds little for clients."""
    assert stage.tap._server is not None
    listening = stage.tap._server.sockets[0].fileno()
    with socket.socket(fileno=os.dup(listening)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def says_long(closes: bytes) -> Script:
    async def script(call: Call) -> None:
        for _ in range(2):
            await call.request()
            await call.body(2)
            await call.say(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (closes, len(LONG), LONG))

    return script


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("closes", [b"", b"Connection: close\r\n"])
async def test_who_leaves_with_the_end_still_at_the_tap_has_left(closes: bytes, how: str) -> None:
    async with staged(says_long(closes)) as stage:
        narrow(stage)
        client = await plain_client(stage, room=4096)
        await received(client, b"\r\n\r\n")
        await asyncio.sleep(0.05)
        assert stage.parts == [] and len(stage.tap.books.under_way) == 1
        depart(client, how)
        part = await stage.part()
    assert part.aborted and part.status == 200 and stage.tap.books.under_way == {}


@pytest.mark.parametrize("closes", [b"", b"Connection: close\r\n"])
async def test_an_answer_ends_when_a_slow_client_has_been_given_it(closes: bytes) -> None:
    async with staged(says_long(closes)) as stage:
        narrow(stage)
        client = await plain_client(stage, room=4096)
        await asyncio.sleep(0.1)
        assert stage.parts == []
        before = time.time()
        await received(client, LONG)
        part = await stage.part()
        assert part.end is not None and part.end >= before and not part.aborted
        if not closes:  # the connection is as good as before
            await asyncio.get_running_loop().sock_sendall(client, post())
            await received(client, LONG)
            assert not (await stage.part(2)).aborted
        client.close()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_an_upstream_that_dies_in_mid_stream_leaves_a_broken_stream(how: str) -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await asyncio.sleep(0.05)
        if how == "reset":
            reset(call)

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        got = await client.rest()
        assert got == STREAM + event("a")  # and no last chunk: any client knows that this is not all
        part = await stage.part()
    assert (part.status, part.error, part.aborted) == (200, "upstream_closed", False)
    assert stage.tap.books.failures == {"closed": 1}


async def test_a_body_that_ends_with_its_connection_is_not_whole_after_a_reset() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.say(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        reset(call)

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"half")
        with pytest.raises(ConnectionError):
            await client.rest()


def reset(call: Call) -> None:
    sock = call.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTIVE)
    call.writer.transport.abort()


async def test_a_client_that_never_reads_stops_the_upstream_and_fills_no_memory() -> None:
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        await call.request()
        await call.body(2)
        await call.say(STREAM)
        piece = chunk(b"x" * 65000)
        while sent < 512 << 20:
            await call.say(piece)
            sent += len(piece)

    async with staged(script) as stage:
        client = await stage.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(post())
        before = -1
        async with asyncio.timeout(20):
            while before != sent or not sent:
                before = sent
                await asyncio.sleep(0.3)
        (pair,) = stage.tap.connections._open  # type: ignore[union-attr]
        assert sent < 64 << 20  # what the kernels hold
        assert pair._client.get_write_buffer_size() < 1 << 20
        assert stage.tap.books.oldest_seconds > 0.3
        client.leave()
        await until(lambda: not stage.tap.books.under_way)
        assert (await stage.part()).aborted


async def test_a_slow_client_gets_all_of_it() -> None:
    body = b"y" * (4 << 20)

    async def script(call: Call) -> None:
        await call.request()
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        for _ in range(8):
            assert await client.exactly(len(body) // 8) == body[: len(body) // 8]
            await asyncio.sleep(0.01)


async def test_an_upstream_that_does_not_read_stops_the_client() -> None:
    async def script(call: Call) -> None:
        call.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(60)

    async with staged(script) as stage:
        client = await stage.client()
        sent = 0

        async def pour() -> None:
            nonlocal sent
            await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n")
            while True:
                await client.send(b"z" * 65536)
                sent += 65536

        pouring = asyncio.create_task(pour())
        before = -1
        async with asyncio.timeout(20):
            while before != sent or not sent:
                before = sent
                await asyncio.sleep(0.3)
        assert sent < 64 << 20
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)


# -- the end ----------------------------------------------------------------------------------------------


async def test_a_tap_that_stops_lets_requests_end() -> None:
    stopping = asyncio.Event()

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await stopping.wait()
        await asyncio.sleep(0.05)
        await call.say(LAST)
        await call.until_gone()

    async with staged(script) as stage:
        idle, busy = await stage.client(), await stage.client()
        await busy.send(post())
        await busy.until(event("a"))
        closing = asyncio.create_task(stage.tap.close())
        stopping.set()
        assert await idle.rest() == b""
        assert await busy.rest() == LAST
        await closing
        assert (await stage.part()).finish == "stop"


async def test_a_tap_that_stops_does_not_wait_for_ever() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        await client.until(event("a"))
        async with asyncio.timeout(5):
            await stage.tap.close()
        part = await stage.part()
    assert part.error == "tap_stopped" and not part.aborted
