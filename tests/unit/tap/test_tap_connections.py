"""Connections through the tap, and what is refused on them."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl

import pytest
import trustme
from tap_stage import LAST, OK, STREAM, Call, Client, event, post, staged, until

from kvitals.agent.tap.client_connections import Bounds
from kvitals.agent.tap.sockets import Upstream


async def answers(call: Call) -> None:
    """Answers every request that has a body of two bytes."""
    while True:
        await call.request()
        await call.body(2)
        await call.say(OK)


# -- connections ------------------------------------------------------------------------------------------


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
        (pair,) = stage.tap.connections._open  # type: ignore[union-attr]
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


# -- what is refused --------------------------------------------------------------------------------------


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
        (b"nonsense\r\n\r\n", 400, "not a request of HTTP"),
        (b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "not with an empty one"),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400, "CR and LF"),
        (b"GET / HTTP/1.1\r\nX: a\nHost: x\r\n\r\n", 400, "CR and LF"),
        (b"GET / HTTP/1.1\r\nX: a\rY: b\r\n\r\n", 400, "CR and LF"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "not a field"),
        (b"GET / HTTP/1.1\r\nX: a\r\n folded\r\n\r\n", 400, "not a field"),
        (b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", 400, "control character"),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "control character"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "0 Host fields"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400, "2 Host fields"),
        (b"GET / HTTP/1.0\r\nHost: x\r\nhost: y\r\n\r\n", 400, "2 Host fields"),
        *(
            (b"POST / HTTP/1.%d\r\nHost: x\r\n%s\r\n\r\n" % (minor, fields), status, what)
            for minor, fields, status, what in (
                (1, b"Content-Length: 1\r\nTransfer-Encoding: chunked", 400, "unclear"),
                (1, b"Content-Length: 1\r\nTransfer-Encoding: ,", 400, "unclear"),
                (1, b"Content-Length: 1\r\nTransfer-Encoding:", 400, "unclear"),
                (1, b"Transfer-Encoding: ,", 400, "unclear"),
                (1, b"Transfer-Encoding:", 400, "unclear"),
                (1, b"Transfer-Encoding: chunked,", 400, "unclear"),
                (1, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400, "unclear"),
                (1, b"Transfer-Encoding: chunked, gzip", 400, "unclear"),
                (1, b"Transfer-Encoding: gzip, chunked", 501, "chunked"),
                (1, b"Transfer-Encoding: xchunked", 501, "chunked"),
                (0, b"Transfer-Encoding: chunked", 400, "unclear"),
                (1, b"Content-Length: 1\r\nContent-Length: 2", 400, "exactly one number"),
                (1, b"Content-Length: 1\r\nContent-Length: 1", 400, "exactly one number"),
                (1, b"Content-Length: +1", 400, "exactly one number"),
                (1, b"Content-Length: 1, 1", 400, "exactly one number"),
                (1, b"Content-Length:", 400, "exactly one number"),
                (1, b"Transfer-Encoding: chunked\r\n\r\nzz", 400, "its size"),
                (1, b"Transfer-Encoding: chunked\r\n\r\n0x1", 400, "its size"),
                (1, b"Transfer-Encoding: chunked\r\n\r\n1;a\rb", 400, "its size"),
                (1, b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc", 400, "longer than its size"),
                (1, b"Transfer-Encoding: chunked\r\n\r\n0\r\nHost: y", 400, "belongs in the head"),
            )
        ),
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


async def test_a_head_that_never_ends_is_given_up() -> None:
    async with staged(answers, bounds=Bounds(first_byte=0.05, head=0.05)) as stage:
        silent, slow, second = [await stage.client() for _ in range(3)]
        await slow.send(b"GET / HT")
        await second.send(post() + b"POST ")
        assert await silent.rest() == b""
        assert (await told(slow))[0] == 408
        assert (await second.rest()).startswith(OK + b"HTTP/1.1 408 ")


async def test_one_client_too_many_is_turned_away_and_those_with_requests_are_not() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await stop.wait()
        await call.say(OK)

    stop = asyncio.Event()
    async with staged(script, max_connections=1) as stage:
        first = await stage.client()
        await first.send(post())
        await until(lambda: bool(stage.calls and stage.calls[0].requests))
        code, message = await told(await stage.client())
        assert code == 503 and "--max-connections" in message
        stop.set()
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


@pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_bad_first_chunk_with_the_head_of_an_answer_is_a_502(interim: bytes) -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(interim + STREAM + b"nonsense\r\n")
        await call.until_gone()

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(post())
        code, message = await told(client)
        part = await stage.part()
    assert code == 502 and "a chunk does not begin with its size" in message
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
            stage.tap.upstream = Upstream("127.0.0.1", closed.getsockname()[1])
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
        stage.tap.upstream = Upstream("127.0.0.1", port, trusting)
        client = await stage.client()
        await client.send(post())
        assert await client.rest() == STREAM + event("a") + LAST
        stage.tap.upstream = Upstream("127.0.0.1", port, ssl.create_default_context())
        client = await stage.client()
        await client.send(post())
        code, message = await told(client)
        assert code == 502 and "certificate" in message.lower()
    secure.close()
