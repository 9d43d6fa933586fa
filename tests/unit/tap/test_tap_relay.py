"""What passes the tap passes as it is, and at once."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from tap_stage import LAST, OK, STREAM, Call, chunk, event, post, staged, until


def fields_of(head: bytes) -> list[bytes]:
    return head[:-4].split(b"\r\n")[1:]


def added(head: bytes) -> list[bytes]:
    return [line for line in fields_of(head) if line.lower().startswith((b"traceparent:", b"x-request-id:"))]


# -- nothing is changed -----------------------------------------------------------------------------------


async def test_a_request_arrives_as_it_was_sent() -> None:
    async def script(call: Call) -> None:
        await call.request()
        assert await call.body(5) == b"\x00\xff{\r\n"
        await call.say(OK)

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(
            b"PATCH /a%2Fb//c?q=%20;x&y= HTTP/1.1\r\nhOsT: engine:1\r\nX-Odd:\t two  blanks \r\nx-odd: again\r\n"
            b"Keep-Alive: 5\r\nTE: trailers\r\nConnection: te, keep-alive\r\nContent-Length: 5\r\n\r\n\x00\xff{\r\n"
        )
        assert await client.exactly(len(OK)) == OK
        (head,) = stage.calls[0].requests
        assert head.startswith(b"PATCH /a%2Fb//c?q=%20;x&y= HTTP/1.1\r\n")
        kept = [line for line in fields_of(head) if line not in added(head)]
        assert kept == [b"hOsT: engine:1", b"X-Odd:\t two  blanks ", b"x-odd: again", b"Content-Length: 5"]
        assert len(added(head)) == 2


async def test_a_client_cannot_have_a_field_removed_that_a_gateway_added() -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.say(OK)

    fields = (b"Authorization: Bearer k", b"Cookie: c", b"X-Acme-Tenant: t", b"Content-Type: text/plain", b"X-Mine: 1")
    named = b", ".join(line.partition(b":")[0] for line in fields)
    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"\r\n".join((b"GET / HTTP/1.1", b"Host: x", *fields, b"Connection: " + named, b"", b"")))
        assert await client.exactly(len(OK)) == OK
        (head,) = stage.calls[0].requests
        assert set(fields) < set(fields_of(head)) and b"Connection" not in head


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


# -- nothing is held back ---------------------------------------------------------------------------------


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
