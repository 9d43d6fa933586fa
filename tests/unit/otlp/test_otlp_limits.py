"""The OTLP receiver's bounds on bytes, spans and parts."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import time
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from google.protobuf.any_pb2 import Any as ProtobufAny
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from otlp_stage import call, good, listening, post, taken
from span_fixtures import Plain, protobuf, request, span

from kvitals.agent.collectors import otlp_http, otlp_intake, otlp_json, otlp_messages, otlp_wire
from kvitals.agent.requests.spans import SpanReader
from kvitals.config import Otlp
from kvitals.series.slices import complete


def wrapped(tag: int, inner: bytes) -> bytes:
    size, length = len(inner), bytearray([tag])
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes(length) + inner


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


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(lambda: wrapped(0x0A, wrapped(0x12, b"\x12\x00" * 2_000_000)), id="spans"),
        pytest.param(lambda: b"\x0a\x00" * 2_000_000, id="resources"),
        pytest.param(lambda: wrapped(0x0A, b"\x12\x00" * 2_000_000), id="scopes"),
        pytest.param(lambda: b"\x10\x00" * 2_000_000, id="unknown fields"),
        pytest.param(lambda: wrapped(0x0A, wrapped(0x0A, b"\x0a\x00" * 32_000)) * 60, id="attributes of resources"),
    ],
)
async def test_two_million_empty_fields_are_refused_and_cost_little(payload: Callable[[], bytes]) -> None:
    """Google's parser takes 0.05 to 0.1 s for each of these, and 93 times their size in memory for the spans."""
    body = payload()
    begun = time.process_time()
    with pytest.raises(otlp_wire.OtlpFormatError, match="send smaller batches"):
        complete(otlp_wire.groups(body))
    assert time.process_time() - begun < 0.5  # about 0.015 s
    async with listening() as sense:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(sense, body)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await post(sense, io.BytesIO(body)))[0] == 400
        assert taken(sense) == ([], {"malformed": 2})


async def test_spans_of_many_attributes_are_read_in_several_turns() -> None:
    span = wrapped(0x12, b"\x4a\x00" * 32_000)
    payload = wrapped(0x0A, wrapped(0x12, span * 60))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    intake = otlp_intake.SpanIntake(Otlp(), SpanReader(Plain(), ()))
    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    assert (await intake.take(payload, otlp_wire.groups, "192.0.2.1"))[0] == 0
    counting.cancel()
    assert turns > 5  # 60 spans were one turn of 0.1 s


FLOODER, OTHER = "192.0.2.1", "192.0.2.2"


async def order(requests: list[tuple[str, bytes]]) -> tuple[list[str], int]:
    """Requests that are complete at the same moment: in which order they were answered, and the most that were in one
    turn of the loop."""
    intake = otlp_intake.SpanIntake(Otlp(), SpanReader(Plain(), ()))
    answered: list[str] = []

    async def take(peer: str, payload: bytes) -> None:
        with contextlib.suppress(otlp_wire.OtlpFormatError):
            await intake.take(payload, otlp_wire.groups, peer)
        answered.append(peer)

    tasks = [asyncio.create_task(take(*one)) for one in requests]
    most = before = 0
    while len(answered) < len(tasks):
        await asyncio.sleep(0)
        most, before = max(most, len(answered) - before), len(answered)
    await asyncio.gather(*tasks)
    return answered, most


async def test_requests_that_are_complete_together_and_refused_are_read_one_after_the_other() -> None:
    """16 of 12,000 resources were 0.75 s in one turn of the loop, as a request that is refused waited for nothing."""
    refused = wrapped(0x0A, wrapped(0x0A, b"\x0a\x00" * 32_000))
    answered, most = await order([(FLOODER, refused)] * 8)
    assert len(answered) == 8 and most == 1


async def test_addresses_take_turns() -> None:
    answered, _ = await order([(FLOODER, b"")] * 20 + [(OTHER, b"")])
    assert answered.index(OTHER) <= 2


@pytest.mark.parametrize(
    "payload",
    [
        wrapped(0x0A, wrapped(0x0A, wrapped(0x0A, b"\x0a\x01k"))) * 4000,
        wrapped(0x0A, wrapped(0x0A, wrapped(0x0A, b"\x0a\x01k") * 4000)),
        wrapped(0x0A, wrapped(0x12, b"") * 4000),
        wrapped(0x0A, wrapped(0x12, wrapped(0x12, b"") * 4000)),
    ],
    ids=["resources", "attributes", "scopes", "spans"],
)
def test_the_layers_around_spans_are_read_in_steps(payload: bytes) -> None:
    """60 ms of CPU time for 25,000 of them were one turn of the loop."""
    assert sum(1 for _ in otlp_wire.groups(payload)) >= 4000 // otlp_wire.FIELDS_A_STEP


def test_the_resources_of_a_request_in_json_are_read_in_steps() -> None:
    scopes = ",".join(['{"scopeSpans":[{}]}'] * 1000)
    assert sum(1 for _ in otlp_json.groups(b'{"resourceSpans":[%s]}' % scopes.encode())) == 1000


@given(st.lists(st.tuples(st.text(max_size=5), st.lists(st.text(max_size=300), max_size=5)), max_size=5))
def test_the_layers_are_read_as_google_reads_them(made: list[tuple[str, list[str]]]) -> None:
    message = ExportTraceServiceRequest()
    for service, names in made:
        resource_spans = message.resource_spans.add(schema_url="s")
        resource_spans.resource.dropped_attributes_count = 300
        resource_spans.resource.attributes.add(key="service.name").value.string_value = service
        scope_spans = resource_spans.scope_spans.add(schema_url="u")
        scope_spans.scope.name = service
        for name in names:
            scope_spans.spans.add(name=name)
    groups = complete(otlp_wire.groups(message.SerializeToString()))
    assert [(group.scope, [span.name for span in group.spans]) for group in groups] == made
    assert [group.engine for group in groups] == [
        otlp_wire.engine_of({"service.name": service if service.isprintable() else ""}) for service, _ in made
    ]


@given(st.binary(max_size=60))
def test_what_google_refuses_is_refused(payload: bytes) -> None:
    try:
        groups = complete(otlp_wire.groups(payload))
    except otlp_wire.OtlpFormatError:
        return
    for group in groups:
        list(group.spans)


async def test_spans_resources_and_scopes_of_any_size() -> None:
    huge = span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-abcdef", x="y" * otlp_wire.MAX_SPAN_BYTES)
    async with listening() as sense:
        answer = ExportTraceServiceResponse.FromString(await call(sense, protobuf(request(huge))))
        assert answer.partial_success.rejected_spans == 1
        status, _, _ = await post(sense, protobuf(request(resource={"x": "y" * otlp_wire.MAX_OUTER_BYTES})))
        assert status == 400
        objects = b'{"resourceSpans":[' + b"{}," * otlp_json.MAX_OBJECTS + b"{}]}"
        assert (await post(sense, objects, otlp_http.JSON))[0] == 400


MANY = {f"k{number}": str(number) for number in range(20_000)}


@pytest.mark.parametrize("more", [MANY, {"x": "y" * 1_000_000}, {"x": "y" * 140_000}], ids=["many", "1 MB", "140 KB"])
async def test_a_span_that_is_too_large_is_dropped_and_reported_so(more: dict[str, str]) -> None:
    """In JSON it became a part, and took 0.1 s; in protobuf the exporter was told of an invalid span."""
    small = span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-abcdef")
    large = span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-ghijkl", **more)
    for body, kind in (
        (protobuf(request(small, large)), otlp_http.PROTOBUF),
        (json.dumps(request(small, large)).encode(), otlp_http.JSON),
    ):
        async with listening() as sense:
            status, answer, _ = await post(sense, io.BytesIO(body), kind)
            assert status == 200
            partial = (
                ExportTraceServiceResponse.FromString(answer).partial_success.error_message
                if kind == otlp_http.PROTOBUF
                else json.loads(answer)["partialSuccess"]["errorMessage"]
            )
            assert partial.startswith("1 times a span larger than 64 KB")
            parts, dropped = taken(sense)
            assert (len(parts), dropped) == (1, {"too_large": 1})


@pytest.mark.parametrize("broken", [b"1", b"[]", b'{"name":1}', b'{"attributes":' + b"[" * 500 + b"]" * 500 + b"}"])
async def test_a_broken_span_in_json_costs_no_other(broken: bytes) -> None:
    small = span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-abcdef")
    body = json.dumps(request(small)).encode().replace(b'"spans": [', b'"spans": [' + broken + b", ")
    async with listening() as sense:
        assert (await post(sense, body, otlp_http.JSON))[0] == 200
        parts, dropped = taken(sense)
        assert (len(parts), dropped) == (1, {"malformed": 1})


@pytest.mark.parametrize("text", ['{"resourceSpans":[%s]}', '{"resourceSpans":[{"scopeSpans":[%s]}]}'])
def test_too_many_resources_or_scopes_are_refused_before_any_is_decoded(text: str) -> None:
    """None of these is an object, which nobody notices: 90,000 of them took 0.2 s of the loop."""
    with pytest.raises(otlp_wire.OtlpFormatError, match="more than 4096 resources or scopes"):
        complete(otlp_json.groups((text % ",".join(["1"] * 4097)).encode()))
