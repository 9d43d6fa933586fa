"""The OTLP receiver's bounds on bytes, spans and parts."""

from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.any_pb2 import Any as ProtobufAny
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from otlp_stage import call, good, listening, post, taken
from span_fixtures import protobuf, request, span

from kvitals.agent.collectors import otlp_http, otlp_intake, otlp_json, otlp_messages, otlp_wire


async def test_who_brings_too_much_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_intake, "MAX_WAITING", 10)
    async with listening() as sense:
        await call(sense, good(10))
        status, _, headers = await post(sense, good())
        assert (status, headers["Retry-After"]) == (429, "1")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(sense, good())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_of(refused.value) == b"\x0a\x02\x08\x01"  # RetryInfo of 1 s
        parts, dropped = taken(sense)
        assert (len(parts), dropped["busy"]) == (10, 2)
        assert (await post(sense, good()))[0] == 200


def retry_of(error: grpc.aio.AioRpcError) -> bytes:
    """The RetryInfo in the details of a gRPC error."""
    metadata = {key: value for key, value in error.trailing_metadata() or ()}  # noqa: C416 (it is no mapping)
    assert metadata["google.rpc.retryinfo-bin"] == otlp_wire.RETRY_INFO
    details = otlp_messages.Status.FromString(metadata["grpc-status-details-bin"]).details[0]
    assert ProtobufAny.FromString(details.SerializeToString()).type_url.endswith("/google.rpc.RetryInfo")
    value: bytes = details.value
    return value


async def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as sense:
        monkeypatch.setattr(sense._intake, "_max_held", 1000)
        assert (await post(sense, b"\x00" * 1001))[0] == 429
        assert (await post(sense, good()))[0] == 200
        assert sense._intake._held == 0


async def test_a_gzip_bomb() -> None:
    bomb = gzip.compress(bytes(200_000_000), 9)
    async with listening() as sense:
        status, body, _ = await post(sense, bomb, Content_Encoding="gzip")
        assert status == 413
        assert b"max_bytes" in body
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(sense, bytes(50_000_000), compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sense._intake._held == 0
        assert taken(sense) == ([], {"too_large": 1})
        await call(sense, good())


async def test_a_request_that_is_too_large() -> None:
    most = 65536
    async with listening(max_bytes=most) as sense:
        assert (await post(sense, bytes(most + 1)))[0] == 413
        assert (await post(sense, chunks(bytes(most // 2 + 1), 2)))[0] == 413
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(sense, bytes(most + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert taken(sense) == ([], {"too_large": 2})
        assert sense._intake._held == 0


async def chunks(piece: bytes, times: int) -> AsyncIterator[bytes]:
    for _ in range(times):
        yield piece


async def test_a_million_empty_spans() -> None:
    """93 times its size in memory, were it unpacked at once."""
    inner = b"\x12\x00" * 1_000_000
    payload = wrapped(0x0A, wrapped(0x12, inner))
    async with listening() as sense:
        answer = ExportTraceServiceResponse.FromString(await call(sense, payload))
        assert answer.partial_success.rejected_spans == 1_000_000 - otlp_intake.MAX_SPANS
        assert taken(sense) == (
            [],
            {"not_ours": otlp_intake.MAX_SPANS, "over_limit": 1_000_000 - otlp_intake.MAX_SPANS},
        )


def wrapped(tag: int, inner: bytes) -> bytes:
    size, length = len(inner), bytearray([tag])
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes(length) + inner


async def test_spans_resources_and_scopes_of_any_size() -> None:
    huge = span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-abcdef", x="y" * otlp_wire.MAX_SPAN_BYTES)
    async with listening() as sense:
        answer = ExportTraceServiceResponse.FromString(await call(sense, protobuf(request(huge))))
        assert answer.partial_success.rejected_spans == 1
        status, _, _ = await post(sense, protobuf(request(resource={"x": "y" * otlp_wire.MAX_OUTER_BYTES})))
        assert status == 400
        assert (await post(sense, b"\x0a\x02\x12\x00" * (otlp_wire.MAX_GROUPS + 1)))[0] == 400
        assert (await post(sense, b"\x0a\x00" * (otlp_wire.MAX_GROUPS + 1)))[0] == 400
        objects = b'{"resourceSpans":[' + b"{}," * otlp_json.MAX_OBJECTS + b"{}]}"
        assert (await post(sense, objects, otlp_http.JSON))[0] == 400
