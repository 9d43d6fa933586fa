"""What passes the tap passes as it is, at once, and ends when either side ends it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import ssl
import time

import pytest
import trustme
from tap_stage import LAST, PATIENCE, STREAM, Call, Client, Script, Stage, chunk, event, post, staged, until

from agent.tap import relay

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def fields_of(head: bytes) -> list[bytes]:
    return head[:-4].split(b"\r\n")[1:]


def added(head: bytes) -> list[bytes]:
    return [line for line in fields_of(head) if line.lower().startswith((b"traceparent:", b"x-request-id:"))]


async def answers(call: Call) -> None:
    """Answers every request that has a body of two bytes."""
    while True:
        await call.request()
        await call.body(2)
        await call.say(OK)


# -- nothing is changed ------------------------------------------------------------------------------------


async def test_a_request_arrives_as_it_was_sent() -> None:
    async def script(call: Call) -> None:
        await call.request()
        assert await call.body(5) == b"\x00\xff{\r\n"
        await call.say(OK)

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(
            b"PATCH /a%2Fb//c?q=%20;x&y= HTTP/1.1\r\nhOsT: engine:1\r\nX-Odd:\t two  blanks \r\nx-odd: again\r\n"
            b"Keep-Alive: 5\r\nX-Mine: 1\r\nConnection: x-mine, keep-alive\r\nContent-Length: 5\r\n\r\n\x00\xff{\r\n"
        )
        assert await client.exactly(len(OK)) == OK
        (head,) = stage.calls[0].requests
        assert head.startswith(b"PATCH /a%2Fb//c?q=%20;x&y= HTTP/1.1\r\n")
        kept = [line for line in fields_of(head) if line not in added(head)]
        assert kept == [b"hOsT: engine:1", b"X-Odd:\t two  blanks ", b"x-odd: again", b"Content-Length: 5"]
        assert len(added(head)) == 2


async def test_a_response_arrives_as_it_was_sent_with_its_chunks_and_trailers() -> None:
    said = (
        b"HTTP/1.1 299 Made\tUp\r\nX-Twice: a\r\nx-twice:b\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;name=v\r\nabc\r\n00A\r\n0123456789\r\n0;last\r\nX-Sum: 7\r\n\r\n"
    )

    async def script(call: Call) -> None:
        await call.request()
        await call.say(said)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await client.exactly(len(said)) == said


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_what_comes_in_small_pieces_passes_too(size: int) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x" * 40) + b"0\r\nT: 1\r\n\r\n"

    async def script(call: Call) -> None:
        await call.request()
        assert await call.reader.readuntil(b"0\r\nX: y\r\n\r\n") == chunk(b"body") + b"0\r\nX: y\r\n\r\n"
        for at in range(0, len(answer), size):
            await call.say(answer[at : at + size])
            await asyncio.sleep(0)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        sent = (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"body") + b"0\r\nX: y\r\n\r\n"
        )
        for at in range(0, len(sent), size):
            await client.send(sent[at : at + size])
            await asyncio.sleep(0)
        assert await client.exactly(len(answer)) == answer


async def test_a_large_body_passes_both_ways() -> None:
    body = bytes(range(256)) * 8192  # 2 MB

    async def script(call: Call) -> None:
        await call.request()
        assert await call.body(len(body)) == body
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        sending = asyncio.create_task(client.send(post(body)))
        await client.until(b"\r\n\r\n")
        assert await client.exactly(len(body)) == body
        await sending


async def test_gzip_passes_unopened_and_its_usage_is_unknown() -> None:
    packed = gzip.compress(b'{"usage": {"prompt_tokens": 3}}')
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(head % len(packed) + packed)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        await client.until(b"\r\n\r\n")
        assert await client.exactly(len(packed)) == packed
        part = await stage.part()
        assert (part.status, part.prompt_tokens, part.stream) == (200, None, None)
        assert stage.tap.books.unread == {"encoded": 1}


# -- nothing is held back ----------------------------------------------------------------------------------


async def test_a_stream_passes_event_by_event() -> None:
    seen = asyncio.Queue[str]()

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM)
        for text in ("a", "b", "c"):
            await call.say(event(text))
            await seen.get()  # the next one is sent only when the client has this one
        await call.say(LAST)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post(b"{}", b"x-tenant-id: acme"))
        assert await client.until(b"\r\n\r\n") == STREAM
        for text in ("a", "b", "c"):
            assert await client.exactly(len(event(text))) == event(text)
            seen.put_nowait(text)
        assert await client.exactly(len(LAST)) == LAST
        part = await stage.part()
    assert (part.observer, part.system, part.name, part.engine) == ("tap", "kvitals", "/chat/completions", "one")
    assert (part.prompt_tokens, part.cached_tokens, part.output_tokens) == (12, 8, 3)
    assert (part.status, part.finish, part.aborted, part.error) == (200, "stop", False, "")
    assert (part.tenant, part.model, part.stream) == ("t-emca", "tiny", True)
    assert part.ttft is not None and part.start is not None and part.end is not None
    assert 0 < part.phases["gateway"] < part.ttft < part.end - part.start
    assert part.itl is not None and part.itl_max is not None and part.itl_p99 is not None
    assert part.itl <= part.itl_max and part.itl_p99 <= part.itl_max * 1.001


async def test_the_request_body_passes_as_it_comes() -> None:
    got = asyncio.Event()

    async def script(call: Call) -> None:
        await call.request()
        assert await call.body(4) == b"half"
        got.set()
        assert await call.body(4) == b"half"
        await call.say(OK)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf")
        async with asyncio.timeout(5):
            await got.wait()
        await client.send(b"half")
        assert await client.exactly(len(OK)) == OK


async def test_expect_100_continue_is_between_client_and_upstream() -> None:
    async def script(call: Call) -> None:
        assert b"Expect: 100-continue" in await call.request()
        await call.say(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        await call.body(2)
        await call.say(OK)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"{}")
        assert await client.exactly(len(OK)) == OK


async def test_an_answer_before_the_end_of_the_request_ends_the_connection() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.say(b"HTTP/1.1 413 Too Much\r\nContent-Length: 0\r\n\r\n")
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nsome")
        assert (await client.rest()).startswith(b"HTTP/1.1 413 Too Much\r\n")
        await until(lambda: stage.calls[0].gone.is_set())


# -- who leaves, who breaks, who is slow -------------------------------------------------------------------


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
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, relay._ABORTIVE)
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
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, relay._ABORTIVE)
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
        (pair,) = stage.tap._pairs._open  # type: ignore[union-attr]
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


# -- connections -------------------------------------------------------------------------------------------


async def test_requests_of_one_connection_go_one_after_the_other() -> None:
    async with staged(answers) as stage:
        client = await stage.client()
        await client.send(post(b"{}", b"X-Request-Id: 1") + post(b"{}", b"X-Request-Id: 2"))
        await client.send(post(b"{}", b"X-Request-Id: 3"))
        assert await client.exactly(3 * len(OK)) == 3 * OK
        await stage.part(3)
        (call,) = stage.calls
        assert [b"X-Request-Id: %d" % i in head for i, head in enumerate(call.requests, 1)] == [True] * 3
        assert [part.phases["gateway"] >= 0 for part in stage.parts] == [True] * 3


async def test_many_requests_sent_ahead_are_bounded_and_all_answered() -> None:
    count = 2000

    async with staged(answers) as stage:
        client = await stage.client()
        sending = asyncio.create_task(client.send(post() * count))
        assert await client.exactly(count * len(OK)) == OK * count
        await sending


async def test_what_is_sent_ahead_of_a_slow_answer_waits_at_the_client() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        sending = asyncio.create_task(client.send(post(b"{}") * (256 << 10)))  # 25 MB
        await until(lambda: bool(stage.calls and stage.calls[0].requests))
        (pair,) = stage.tap._pairs._open  # type: ignore[union-attr]
        await until(lambda: pair._held == {"too far ahead"})
        await asyncio.sleep(0.1)
        assert not sending.done()
        assert len(pair._ahead) < 1 << 20
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_an_idle_connection_ends_when_the_upstream_ends_it() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(OK)

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        assert await client.rest() == OK
        assert stage.tap.books.failures == {}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"),
        (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    ],
)
async def test_who_says_close_is_closed(asked: bytes, said: bytes) -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.say(said)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(asked)
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        await until(lambda: stage.calls[0].gone.is_set())
        (head,) = stage.calls[0].requests
        assert (b"Connection: close" in head) == (b"close" in asked or b"1.0" in asked)
        assert head.splitlines()[0] == asked.splitlines()[0]


async def test_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.say(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await asyncio.sleep(0.01)
        await call.say(b"data: 2\n\n")

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.rest()).endswith(b"\r\n\r\ndata: 1\n\ndata: 2\n\n")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_leave_the_connection_open(asked: bytes, said: bytes) -> None:
    async def script(call: Call) -> None:
        while True:
            await call.request()
            await call.say(said)

    async with staged(script) as stage:
        client = await stage.client()
        for _ in range(2):
            await client.send(asked)
            assert await client.exactly(len(said)) == said
        assert len(stage.calls) == 1


async def test_a_websocket_passes() -> None:
    async def script(call: Call) -> None:
        head = await call.request()
        assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in head and b"Sec-WebSocket-Key: k" in head
        await call.say(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
        while data := await call.reader.read(100):
            await call.say(data.upper())
        call.gone.set()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(
            b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
            b"Sec-WebSocket-Key: k\r\n\r\n"
        )
        head = await client.until(b"hello")
        assert head.startswith(b"HTTP/1.1 101") and b"Upgrade: websocket" in head
        await client.send(b"abc")
        assert await client.exactly(3) == b"ABC"
        client.leave()
        await until(lambda: stage.calls[0].gone.is_set())
        await until(lambda: not stage.tap.books.under_way)
        assert stage.tap.books.requests == {("", "101"): 1}


async def test_other_protocols_are_not_offered_and_not_taken() -> None:
    async def script(call: Call) -> None:
        assert b"pgrade" not in await call.request()
        await call.say(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n")
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 502 ")


# -- what is refused ---------------------------------------------------------------------------------------


async def told(client: Client) -> tuple[int, str]:
    """Status and message of an error of the tap's own."""
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert int(head.split()[1]) == error["code"] and b"Connection: close" in head
    return error["code"], error["message"]


@pytest.mark.parametrize(
    ("sent", "status", "what"),
    [
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 70_000, 431, "fewer or shorter"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n", 431, "256 fields"),
        (b"nonsense\r\n\r\n", 400, "no request of HTTP"),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400, "CR and LF"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "no field"),
        (b"GET / HTTP/1.1\r\nX: a\r\n folded\r\n\r\n", 400, "no field"),
        (b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", 400, "no field"),
        (b"GET / HTTP/1.1\r\nX: a\rY: b\r\n\r\n", 400, "no field"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "unclear"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "no one number"),
        (b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400, "no one number"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", 400, "no one number"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "chunked"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "unclear"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "its size"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400, "longer than it says"),
        (b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n", 405, "one upstream"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "speaks HTTP/1.1"),
    ],
)
async def test_what_two_readers_could_read_in_two_ways_is_refused(sent: bytes, status: int, what: str) -> None:
    async def script(call: Call) -> None:
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(sent)
        code, message = await told(client)
        assert code == status and what in message and message.startswith("kvitals tap: ")
        assert sum(stage.tap.books.refused.values()) == 1


async def test_a_head_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HEAD_SECONDS", 0.05)

    async with staged(answers) as stage:
        silent, slow, second = [await stage.client() for _ in range(3)]
        await slow.send(b"GET / HT")
        await second.send(post() + b"POST ")
        assert await silent.rest() == b""
        assert (await told(slow))[0] == 408
        assert (await second.rest()).startswith(OK + b"HTTP/1.1 408 ")


async def test_one_client_too_many_is_turned_away_and_the_others_are_not() -> None:
    async with staged(answers, max_connections=1) as stage:
        first = await stage.client()
        await first.send(post())
        assert await first.exactly(len(OK)) == OK
        code, message = await told(await stage.client())
        assert code == 503 and "--max-connections" in message
        await first.send(post())
        assert await first.exactly(len(OK)) == OK


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
async def test_an_upstream_that_does_not_speak_http_is_a_502(said: bytes) -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(said)
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        code, message = await told(client)
        part = await stage.part()
    assert code == 502 and "answers what is no HTTP/1.1" in message
    assert (part.status, part.error) == (502, "upstream_malformed")


async def test_chunks_that_are_none_break_the_stream() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await asyncio.sleep(0.02)
        await call.say(b"nonsense\r\n")
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        assert await client.rest() == STREAM + event("a")
        assert (await stage.part()).error == "upstream_malformed"


async def test_an_upstream_that_is_down_is_a_502_that_says_what_to_do() -> None:
    async def script(_: Call) -> None:
        pass

    async with staged(script) as stage:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            stage.tap.upstream = relay.Upstream("127.0.0.1", closed.getsockname()[1])
        client = await stage.client()
        await client.send(post())
        code, message = await told(client)
        part = await stage.part()
    assert code == 502 and "(Connection refused); is the engine up?" in message
    assert (part.status, part.error) == (502, "upstream_unreachable")
    assert stage.tap.books.failures == {"connect": 1}


async def test_an_upstream_that_closes_without_an_answer_is_a_502() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        assert (await told(client))[0] == 502
        assert (await stage.part()).error == "upstream_closed"


async def test_a_used_connection_that_ends_under_a_request_ends_for_the_client_too() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(OK)
        await call.request()  # and nothing more, as if it had crossed the end of an idle connection

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post() + post())
        assert await client.rest() == OK
        assert (await stage.part(2)).error == "upstream_closed"


async def test_an_upstream_with_tls_is_checked_and_streams_pass() -> None:
    authority = trustme.CA()
    served, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(served)
    authority.configure_trust(trusting)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = Call(reader, writer)
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a") + LAST)
        writer.close()

    async def unused(_: Call) -> None:
        pass

    secure = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=served)
    port = secure.sockets[0].getsockname()[1]
    async with staged(unused) as stage:
        stage.tap.upstream = relay.Upstream("127.0.0.1", port, trusting)
        client = await stage.client()
        await client.send(post())
        assert await client.rest() == STREAM + event("a") + LAST
        stage.tap.upstream = relay.Upstream("127.0.0.1", port, ssl.create_default_context())
        client = await stage.client()
        await client.send(post())
        code, message = await told(client)
        assert code == 502 and "certificate" in message.lower()
    secure.close()


# -- the end -----------------------------------------------------------------------------------------------


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
