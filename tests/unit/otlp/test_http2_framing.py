"""What the front of the gRPC server lets through of HTTP/2, and whose calls give way."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from otlp_stage import EXPORT, GRPC, call, good, listening, taken

from kvitals.agent.collectors import grpc_front, http2_framing, otlp
from kvitals.agent.collectors.http2_framing import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAMES_AT_ONCE,
    HEADERS,
    MAX_HEADER_BYTES,
    PADDED,
    PREFACE,
    CallHeads,
    FrameBudget,
    FrameHead,
    Framing,
    FramingError,
    cost_of,
)
from kvitals.agent.collectors.http2_framing import PRIORITY as WITH_PRIORITY
from kvitals.agent.listeners import LISTENERS
from tests.support.processes import free_port

SETTINGS, PING, PRIORITY, WINDOW_UPDATE, UNKNOWN = 4, 6, 2, 8, 0xFA
BEGIN = PREFACE + bytes(3) + bytes((SETTINGS, 0)) + bytes(4)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


HEAD = b"\x83\x86" + b"".join(
    literal(name, value)
    for name, value in (
        (b":path", EXPORT.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)


def test_frames_are_the_same_however_the_bytes_are_cut() -> None:
    sent = BEGIN + frame(HEADERS, 0, 1, b"x" * 9) + frame(CONTINUATION, END_HEADERS, 1, b"yy") + frame(DATA, 1, 1, b"z")
    for size in (1, 2, 7, 10, len(sent)):
        seen: list[FrameHead] = []
        framing = Framing(seen.append, PREFACE)
        for at in range(0, len(sent), size):
            framing.feed(sent[at : at + size])
        assert [(each.kind, each.length) for each in seen] == [
            (SETTINGS, 0),
            (HEADERS, 9),
            (CONTINUATION, 2),
            (DATA, 1),
        ]
        assert framing.is_between


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n",
        BEGIN + frame(HEADERS, END_HEADERS, 1, bytes(MAX_HEADER_BYTES + 1)),
        BEGIN + frame(HEADERS, 0, 1, bytes(16_384)) + frame(CONTINUATION, 0, 1, bytes(16_384)) * 4,
        BEGIN + frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * (http2_framing.MAX_CONTINUATIONS + 1),
        BEGIN + frame(CONTINUATION, END_HEADERS, 1),
        BEGIN + frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 3),
        BEGIN + frame(HEADERS, 0, 1) + frame(PING, 0, 0, bytes(8)),
        BEGIN + frame(UNKNOWN, 0, 1, bytes(20_000)),
    ],
)
def test_what_no_client_sends(sent: bytes) -> None:
    with pytest.raises(FramingError):
        Framing(lambda _: None, PREFACE).feed(sent)


async def ends(port: int, sent: bytes, times: int = 1, first: bytes = b"") -> bool:
    """Whether the connection ends within a moment once this is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(BEGIN + first)
        for _ in range(times):
            writer.write(sent)
            await writer.drain()
        async with asyncio.timeout(5):
            while await reader.read(65_536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        writer.close()
    return True


async def test_a_header_block_without_an_end_costs_next_to_nothing() -> None:
    """Its sender has no token, and the library keeps all of it."""
    block = frame(CONTINUATION, 0, 1, literal(b"x-a1", b"y" * 100) * 100)
    async with listening() as sense:
        await call(sense, good())
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(8):
            assert await ends(sense.ports[GRPC], block * 4, 225, frame(HEADERS, 0, 1, HEAD))
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_maxrss - before.ru_maxrss < 60_000  # KB; the blocks have 76 MB
        await call(sense, good())
        assert len(taken(sense)[0]) == 2


@pytest.mark.parametrize(
    "each",
    [
        frame(SETTINGS, 0, 0),
        frame(PING, 0, 0, bytes(8)),
        frame(PRIORITY, 0, 3, bytes(5)),
        frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
        frame(UNKNOWN, 0, 1),
        frame(DATA, PADDED, 1, b"\xff" + bytes(255)),
        frame(DATA, 0, 1, bytes(256)),
        frame(DATA, 0, 99, bytes(2048)),  # no call has this stream
    ],
)
async def test_frames_without_a_request_without_end(each: bytes) -> None:
    async with listening() as sense:
        first = frame(HEADERS, END_HEADERS, 1, HEAD)
        assert await ends(sense.ports[GRPC], each * 1000, 3 + int(FRAMES_AT_ONCE) // 1000, first)
        await call(sense, good())


def test_what_an_address_may_send_at_once_is_followed_soon() -> None:
    """Each connection was followed through 4,000 frames before it was closed, all of them in one turn of the loop."""
    burst = PREFACE + (frame(PING, 0, 0, bytes(8)) + frame(SETTINGS, 0, 0)) * 5000
    began = time.process_time()
    for _ in range(LISTENERS["otlp_grpc"].per_peer):
        budget = FrameBudget(0.0)
        with pytest.raises(FramingError, match="carry no request"):
            Framing(lambda _, budget=budget: budget.spend(0.0), PREFACE).feed(burst)
    assert time.process_time() - began < 0.15  # it is 0.04 s where nothing else runs, and was 0.26 s


async def _unfinished(port: int, address: str, calls: int) -> tuple[Any, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(BEGIN + b"".join(frame(HEADERS, END_HEADERS, 1 + 2 * n, HEAD) for n in range(calls)))
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("connections", [1, 6])
async def test_calls_that_nobody_completes_keep_nobody_out(connections: int) -> None:
    async with listening() as sense:
        held = [await _unfinished(sense.ports[GRPC], "127.0.0.2", grpc_front.MAX_CALLS) for _ in range(connections)]
        await asyncio.sleep(0.3)
        for _ in range(20):
            await call(sense, good())
        assert len(taken(sense)[0]) == 20
        for _, writer in held:
            writer.close()


async def test_a_call_that_gives_way_is_to_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest holder's does, also where it is within a frame."""
    monkeypatch.setattr(grpc_front, "MAX_CALLS", 2)

    async def slowly() -> AsyncIterator[bytes]:
        await asyncio.sleep(20)
        yield good()

    async with listening() as sense, grpc.aio.insecure_channel(f"127.0.0.1:{sense.ports[GRPC]}") as channel:
        calls = [channel.stream_unary(EXPORT)(slowly()) for _ in range(2)]
        await asyncio.sleep(0.5)
        await call(sense, good())
        done, _ = await asyncio.wait([asyncio.ensure_future(each.code()) for each in calls], timeout=1)
        assert [each.result() for each in done] == [grpc.StatusCode.UNAVAILABLE]
        assert taken(sense)[1] == {"busy": 1}


async def test_calls_of_a_connection_within_a_frame_give_way() -> None:
    async with listening() as sense:
        port = sense.ports[GRPC]
        held = [await _unfinished(port, "127.0.0.2", grpc_front.MAX_CALLS) for _ in range(3)]
        for _, writer in held:
            writer.write(frame(DATA, END_STREAM, 15, bytes(100))[:50])
        await asyncio.sleep(0.3)
        for _ in range(5):
            await call(sense, good())
        for _, writer in held:
            writer.close()


def call_head(path: bytes) -> bytes:
    return HEAD.replace(literal(b":path", EXPORT.encode()), literal(b":path", path))


@pytest.mark.parametrize("path", [b"/\x80", b"/x/" + b"\x80\xff" * 60, b"/a\0b", b"/caf\xc3\xa9", b"/a\nb"])
async def test_a_path_that_the_library_cannot_read_ends_its_connection_alone(path: bytes) -> None:
    """Such a path ended the library's server for good, without a token."""
    async with listening() as sense:
        assert await ends(sense.ports[GRPC], frame(HEADERS, END_HEADERS | END_STREAM, 1, call_head(path)))
        await call(sense, good())
        parts, _ = taken(sense)
        assert len(parts) == 1


def test_a_head_is_read_whatever_frames_it_comes_in() -> None:
    read: list[bytes] = []
    block = call_head(b"/whole")
    padded = frame(HEADERS, PADDED | WITH_PRIORITY, 1, b"\3" + bytes(5) + block[:20] + bytes(3))
    sent = BEGIN + padded + frame(CONTINUATION, END_HEADERS, 1, block[20:]) + frame(DATA, 1, 1, b"z")
    sent += frame(HEADERS, END_HEADERS, 3, block)
    for size in (1, 3, 50, len(sent)):
        read.clear()
        framing = Framing(lambda _: None, PREFACE, lambda block: read.append(block) is None)
        for at in range(0, len(sent), size):
            framing.feed(sent[at : at + size])
        assert read == [block, block]


def test_what_follows_a_head_waits_where_no_more_may_be_read() -> None:
    seen: list[FrameHead] = []
    framing = Framing(seen.append, PREFACE, lambda _: False)
    calls = [frame(HEADERS, END_HEADERS, stream, HEAD) + frame(DATA, 1, stream, b"z") for stream in (1, 3)]
    left, followed = BEGIN + b"".join(calls), []
    while left:
        followed.append(framing.feed(left))
        left = left[followed[-1] :]
    size = len(calls[0])
    assert followed == [len(BEGIN) + size - 10, size, 10]  # a frame of DATA has 10 bytes
    assert [each.kind for each in seen] == [SETTINGS, HEADERS, DATA, HEADERS, DATA]


@pytest.mark.parametrize("block", [b"\xff" * 40, b"\x00\x7f\xff", b"\xbf", b"\x82" * 1500])
def test_a_head_that_cannot_be_unpacked_is_refused(block: bytes) -> None:
    with pytest.raises(FramingError):
        CallHeads().check(block)


def test_the_largest_heads_cost_a_client_its_budget() -> None:
    """What they cost the loop is bounded so: two of them a second."""
    budget, block = FrameBudget(0.0), bytes(MAX_HEADER_BYTES)
    budget.spend(0.0, cost_of(block))
    with pytest.raises(FramingError):
        budget.spend(0.0, cost_of(block))
    assert cost_of(HEAD) == 0


@pytest.mark.parametrize("block", [call_head(b"/\x80"), call_head(b"/" + b"x" * 126)[:-1], b"\xff\xff\xff\xff\xff\x7f"])
async def test_a_head_ends_its_connection_in_whatever_frames_it_comes(block: bytes) -> None:
    async with listening() as sense:
        await call(sense, good())
        padded = bytes((9,)) + bytes(5) + block + bytes(9)
        cut = frame(HEADERS, END_STREAM, 1, block[:5]) + frame(CONTINUATION, END_HEADERS, 1, block[5:])
        for sent in (frame(HEADERS, END_HEADERS | END_STREAM | PADDED | WITH_PRIORITY, 1, padded), cut):
            assert await ends(sense.ports[GRPC], sent)
            await call(sense, good())
        assert sense.read(1.0)[0].state == "ok"


async def test_a_server_that_ends_by_itself_is_reported_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends it: here the path that the front would refuse."""
    monkeypatch.setattr(CallHeads, "check", lambda self, block: None)
    monkeypatch.setattr(otlp, "AGAIN_SECONDS", 0.3)
    async with listening(grpc=f"127.0.0.1:{free_port()}") as sense:
        await call(sense, good())
        sense.read(1.0)
        assert await ends(sense.ports[GRPC], frame(HEADERS, END_HEADERS | END_STREAM, 1, call_head(b"/\x80")))
        await asyncio.sleep(0.1)
        record = sense.read(2.0)[0]
        assert (record.state, record.reason) == ("partial", "not_listening")
        assert "UnicodeDecodeError" in record.message
        async with asyncio.timeout(10):
            while GRPC not in sense.ports:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await call(sense, good())
        sense.read(3.0)
        assert sense.read(4.0)[0].state == "ok"
