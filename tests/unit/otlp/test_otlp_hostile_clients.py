"""Clients of the OTLP receiver that stall, go away, flood it with connections, or send garbage."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from otlp_stage import EXPORT, GRPC, HTTP, call, good, listening, post, taken
from span_fixtures import lines, protobuf

from kvitals.agent import connections
from kvitals.agent.collectors import otlp_grpc, otlp_http, otlp_json, otlp_wire
from kvitals.agent.collectors.grpc_front import QUIET_SECONDS
from kvitals.agent.listeners import LISTENERS
from kvitals.series.slices import Steps, complete

HEAD = (
    b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"
    b"Content-Length: 1000\r\n\r\n"
)


async def test_a_client_that_never_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_http, "BODY_SECONDS", 0.2)
    async with listening() as sense:
        reader, writer = await asyncio.open_connection("127.0.0.1", sense.ports[HTTP])
        writer.write(HEAD + b"\x0a")
        await writer.drain()
        assert (await post(sense, good()))[0] == 200  # nobody else waits
        assert b" 408 " in await reader.readline()
        writer.close()
        parts, dropped = taken(sense)
        assert (len(parts), dropped) == (1, {"timeout": 1})
        assert sense._intake._held == 0


async def test_a_client_that_goes_away_within_its_request() -> None:
    async with listening() as sense:
        _, writer = await asyncio.open_connection("127.0.0.1", sense.ports[HTTP])
        writer.write(HEAD + b"\x0a" * 500)
        await writer.drain()
        writer.transport.abort()
        assert (await post(sense, good()))[0] == 200
        for _ in range(100):
            if sense._intake._held == 0:
                break
            await asyncio.sleep(0.01)
        assert sense._intake._held == 0


async def test_what_was_unpacked_of_a_refused_call_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[weakref.ref[set[int]]] = []

    def groups(_: bytes) -> Steps[list[otlp_wire.SpanGroup]]:
        large = set(b"large")
        unpacked.append(weakref.ref(large))
        yield None
        raise otlp_wire.OtlpFormatError("no")

    monkeypatch.setattr(otlp_wire, "groups", groups)
    gc.collect()
    gc.disable()
    try:
        async with listening() as sense:
            with pytest.raises(grpc.aio.AioRpcError):
                await call(sense, good())
            await asyncio.sleep(0.05)
            assert [ref() for ref in unpacked] == [None]
    finally:
        gc.enable()


async def test_a_call_whose_request_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_grpc, "BODY_SECONDS", 0.2)

    async def slowly() -> AsyncIterator[bytes]:
        await asyncio.sleep(20)
        yield good()

    async with listening() as sense, grpc.aio.insecure_channel(f"127.0.0.1:{sense.ports[GRPC]}") as channel:
        calls = [channel.stream_unary(EXPORT)(slowly()) for _ in range(otlp_grpc.MAX_CALLS_OF_PEER)]
        codes = {await one.code() for one in calls}
        assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
        await call(sense, good())
        parts, dropped = taken(sense)
        assert (len(parts), dropped) == (1, {"timeout": otlp_grpc.MAX_CALLS_OF_PEER})


async def test_connections_are_bounded_and_the_idle_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LISTENERS, "otlp_http", replace(LISTENERS["otlp_http"], connections=2, per_peer=2))
    monkeypatch.setattr(connections, "STALLED_SECONDS", 60.0)
    async with listening() as sense:
        half = HEAD[:20]
        clients = [await asyncio.open_connection("127.0.0.1", sense.ports[HTTP]) for _ in range(2)]
        for (_, writer), said in zip(clients, (HEAD, half), strict=True):
            writer.write(said)
        await asyncio.sleep(0.05)
        assert (await post(sense, good()))[0] == 200
        assert await clients[1][0].read() == b""  # the head that was never whole
        clients.append(await asyncio.open_connection("127.0.0.1", sense.ports[HTTP]))
        clients[2][1].write(HEAD)
        await asyncio.sleep(0.05)
        assert (await post(sense, good()))[0] == 503  # the others have bodies under way
        assert taken(sense)[1] == {"busy": 1}
        for _, writer in clients:
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.05)
        assert (await post(sense, good()))[0] == 200


async def test_connections_over_grpc_are_bounded_and_end_without_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_grpc, "ROW", replace(otlp_grpc.ROW, connections=8, first_byte=2.0))
    async with listening() as sense:
        idle = [await asyncio.open_connection("127.0.0.1", sense.ports[GRPC]) for _ in range(50)]
        ended = [asyncio.create_task(_until_closed(reader)) for reader, _ in idle]
        await asyncio.sleep(0.5)
        assert sum(one.done() for one in ended) >= 42
        assert (await post(sense, good()))[0] == 200
        async with asyncio.timeout(30):
            await asyncio.gather(*ended)
        await call(sense, good())
        for _, writer in idle:
            writer.close()


async def test_idle_connections_over_grpc_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshaken, as a client makes them, and kept open: those of one address have a share, and the quiet give way."""
    monkeypatch.setattr(otlp_grpc, "ROW", replace(otlp_grpc.ROW, connections=12, per_peer=8))
    async with listening() as sense:
        address = ("127.0.0.1", sense.ports[GRPC])
        idle = []
        for number in range(40):
            reader, writer = await asyncio.open_connection(*address, local_addr=(f"127.0.0.{2 + number % 2}", 0))
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            idle.append((reader, writer))
        ended = [asyncio.create_task(_until_closed(reader)) for reader, _ in idle]
        await asyncio.sleep(2 * QUIET_SECONDS)
        assert sum(one.done() for one in ended) >= 40 - 12
        for _ in range(10):
            await call(sense, good())
        assert len(taken(sense)[0]) == 10
        for _, writer in idle:
            writer.close()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        await reader.read()
    except ConnectionError:
        return


@pytest.mark.parametrize(
    ("body", "kind", "headers", "status"),
    [
        (b"garbage", otlp_http.PROTOBUF, {}, 400),
        (b"\xff" * 1000, otlp_http.PROTOBUF, {}, 400),
        (b"{", otlp_http.JSON, {}, 400),
        (b"[]", otlp_http.JSON, {}, 400),
        (b'{"resourceSpans": 1}', otlp_http.JSON, {}, 400),
        (b'{"resourceSpans":' + b"[" * 50_000, otlp_http.JSON, {}, 400),
        (b"\xff\xfe", otlp_http.JSON, {}, 400),
        (b"not gzip", otlp_http.PROTOBUF, {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(b"\x0a" * 100, mtime=0)[:-9], otlp_http.PROTOBUF, {"Content_Encoding": "gzip"}, 400),
        (b"", otlp_http.PROTOBUF, {"Content_Encoding": "br"}, 415),
        (b"", "text/plain", {}, 415),
        (b"", otlp_http.PROTOBUF, {}, 200),
        (b"{}", otlp_http.JSON, {}, 200),
    ],
)
async def test_requests_that_are_none(body: bytes, kind: str, headers: dict[str, str], status: int) -> None:
    async with listening() as sense:
        got, answer, _ = await post(sense, body, kind, **headers)
        assert got == status
        if status != 200:
            assert len(answer) < 1000
        parts, dropped = taken(sense)
        assert parts == []
        assert dropped == ({"malformed": 1} if status == 400 else {})


async def test_garbage_over_grpc() -> None:
    async with listening() as sense:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(sense, b"garbage")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not an OTLP request" in (refused.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await call(sense, b"", f"/{otlp_grpc.TRACES}/Delete")
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert taken(sense) == ([], {"malformed": 1})


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(payload: bytes) -> None:
    for decode in (otlp_wire.groups, otlp_json.groups):
        try:
            found = complete(decode(payload))
        except otlp_wire.OtlpFormatError:
            continue
        for group in found:
            list(group.spans)


@given(st.data())
def test_a_damaged_recording_is_read_or_refused(data: st.DataObject) -> None:
    line = lines("vllm-0.32")[30]
    for decode, whole in ((otlp_wire.groups, protobuf(line)), (otlp_json.groups, line)):
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:place] + data.draw(st.binary(max_size=4)) + whole[place + data.draw(st.integers(0, 8)) :]
        try:
            found = complete(decode(damaged))
        except otlp_wire.OtlpFormatError:
            continue
        for group in found:
            list(group.spans)


async def test_a_page_whose_own_name_leads_to_loopback_cannot_write() -> None:
    """DNS rebinding: Origin and Host are equal, and neither is a name of this machine."""
    async with listening() as sense:
        reader, writer = await asyncio.open_connection("127.0.0.1", sense.ports[HTTP])
        writer.write(
            b"POST /v1/traces HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n"
            b"Sec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()
