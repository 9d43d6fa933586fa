"""Real exporters and hostile clients at the OTLP sense."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import trustme
from google.protobuf.any_pb2 import Any as ProtobufAny
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from span_fixtures import Plain, lines, protobuf, request, span

from kvitals.agent.collectors import otlp, otlp_grpc, otlp_http, otlp_intake, otlp_json, otlp_messages, otlp_wire
from kvitals.agent.collectors.otlp import OtlpSense
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.config import Otlp

GRPC, HTTP = "grpc", "http"
EXPORT = f"/{otlp_grpc.TRACES}/Export"
HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: 1000\r\n\r\n"


@asynccontextmanager
async def listening(clock: Any = time.time, **settings: Any) -> AsyncIterator[OtlpSense]:
    ports = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    sense = OtlpSense(Otlp(**ports | settings), Plain(), ("tenant.id",), clock)
    assert await sense.open() == []
    try:
        yield sense
    finally:
        await sense.close()


def url(sense: OtlpSense, signal: str = "traces") -> str:
    return f"http://127.0.0.1:{sense.ports[HTTP]}/v1/{signal}"


async def post(
    sense: OtlpSense, body: Any, kind: str = otlp_http.PROTOBUF, signal: str = "traces", **headers: str
) -> tuple[int, bytes, Any]:
    sent = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url(sense, signal), data=body, headers=sent) as answer,
    ):
        return answer.status, await answer.read(), answer.headers


async def call(sense: OtlpSense, body: bytes, method: str = EXPORT, **more: Any) -> bytes:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{sense.ports[GRPC]}") as channel:
        answer: bytes = await channel.unary_unary(method)(body, timeout=20, **more)
        return answer


def taken(sense: OtlpSense) -> tuple[list[RequestPart], Counter[str]]:
    """All parts, and what was dropped."""
    records = sense.read(1.0)
    dropped: Counter[str] = Counter()
    for record in records:
        dropped.update(record.dropped)
    return [part for record in records for part in record.parts], dropped


def good(spans: int = 1) -> bytes:
    """A request of spans that are kept, if they are of now."""
    many = [
        span("llm_request", at=time.time(), gen_ai__request__id=f"chatcmpl-rq-{i}") | {"spanId": f"{i + 1:016x}"}
        for i in range(spans)
    ]
    return protobuf(request(*many))


def sdk_spans() -> list[ReadableSpan]:
    """Spans as the SDK of an instrumented program makes them."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("my-client")
    with tracer.start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat", "tenant.id": "acme"}) as s:
        s.set_attribute("gen_ai.usage.input_tokens", 7)
        s.set_attribute("gen_ai.response.finish_reasons", ["stop"])
        s.add_event("gen_ai.content.prompt", {"gen_ai.prompt": "a secret"})
        with tracer.start_as_current_span("SELECT"):
            pass
    provider.shutdown()
    return list(kept.get_finished_spans())


# Real exporters


@pytest.mark.parametrize("packed", [False, True])
async def test_the_exporter_over_grpc(packed: bool) -> None:
    async with listening() as sense:
        compression = grpc.Compression.Gzip if packed else grpc.Compression.NoCompression
        exporter = GrpcExporter(f"127.0.0.1:{sense.ports[GRPC]}", insecure=True, compression=compression)
        assert await asyncio.to_thread(exporter.export, sdk_spans()) is SpanExportResult.SUCCESS
        exporter.shutdown()
        check_sdk_part(sense)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_the_exporter_over_http(compression: Compression) -> None:
    async with listening() as sense:
        exporter = HttpExporter(url(sense), compression=compression)
        assert await asyncio.to_thread(exporter.export, sdk_spans()) is SpanExportResult.SUCCESS
        exporter.shutdown()
        check_sdk_part(sense)


def check_sdk_part(sense: OtlpSense) -> None:
    (part,), dropped = taken(sense)
    assert (part.name, part.tenant, part.prompt_tokens, part.finish) == ("llm_call", "t-acme", 7, "stop")
    assert dropped == {"not_ours": 1}


async def test_json_plain_and_packed() -> None:
    said = json.dumps(request(span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-abcdef"))).encode()
    async with listening() as sense:
        assert (await post(sense, said, "application/json; charset=utf-8"))[:2] == (200, b"{}")
        assert (await post(sense, gzip.compress(said), otlp_http.JSON, Content_Encoding="gzip"))[0] == 200
        assert len(taken(sense)[0]) == 2


async def test_a_recording_over_both_ways_gives_the_same() -> None:
    requests = [protobuf(line) for line in lines("sglang-0.5.23")]
    async with listening(lambda: 1795246651.0) as sense:
        for one in requests:
            await call(sense, one)
        over_grpc = taken(sense)
        for one in requests:
            await post(sense, one)
        assert taken(sense) == over_grpc
        assert len(over_grpc[0]) > 50


async def test_metrics_and_logs_are_answered_and_not_kept() -> None:
    async with listening() as sense:
        exporter = OTLPMetricExporter(f"127.0.0.1:{sense.ports[GRPC]}", insecure=True)
        assert await asyncio.to_thread(exporter.export, MetricsData([])) is MetricExportResult.SUCCESS
        exporter.shutdown()
        for signal in ("metrics", "logs"):
            status, body, _ = await post(sense, b"\x00" * 1000, signal=signal)
            assert status == 200
            assert b"traces only" in body
        assert taken(sense) == ([], {"signal": 3})


async def test_waiting_for_parts() -> None:
    async with listening() as sense:
        waiting = asyncio.create_task(sense.arrived())
        await asyncio.sleep(0)
        assert not waiting.done()
        await call(sense, good())
        await waiting
        assert len(taken(sense)[0]) == 1
        again = asyncio.create_task(sense.arrived())
        await asyncio.sleep(0)
        assert not again.done()
        again.cancel()


async def test_other_attributes_for_tenants() -> None:
    said = span("chat m", at=time.time(), gen_ai__operation__name="chat", tenant__id="acme", team="red")
    async with listening() as sense:
        await call(sense, protobuf(request(said)))
        sense.configure(("team",))
        await call(sense, protobuf(request(said)))
        assert [part.tenant for part in taken(sense)[0]] == ["t-acme", "t-red"]


async def test_records_have_a_bounded_number_of_parts() -> None:
    async with listening() as sense:
        await call(sense, good(5000))
        records = sense.read(7.0)
        assert [len(record.parts) for record in records] == [2000, 2000, 1000]
        assert [record.waiting for record in records] == [3000, 1000, 0]
        assert {record.source for record in records} == {"otlp"}
        assert sense.read(8.0) == [PartsRecord(t=8.0, source="otlp", parts=())]


# Partial success


async def test_what_can_not_be_used_is_told_to_the_exporter() -> None:
    no_ids = span("llm_request", at=time.time(), gen_ai__request__id="x") | {"traceId": ""}
    old = span("llm_request", at=time.time() - 90_000, gen_ai__request__id="chatcmpl-abcdef")
    good_one = span("llm_request", at=time.time(), gen_ai__request__id="chatcmpl-abcdef")
    said = request(no_ids, old, good_one, span("SELECT", at=time.time()))
    async with listening() as sense:
        answer = ExportTraceServiceResponse.FromString(await call(sense, protobuf(said)))
        assert answer.partial_success.rejected_spans == 2
        assert "without a trace id" in answer.partial_success.error_message
        _, body, _ = await post(sense, json.dumps(said).encode(), otlp_http.JSON)
        assert json.loads(body)["partialSuccess"]["rejectedSpans"] == "2"
        parts, dropped = taken(sense)
        assert len(parts) == 2
        assert dropped == {"no_ids": 2, "time": 2, "not_ours": 2}


async def test_a_broken_span_costs_no_other() -> None:
    whole = good(3)
    broken = whole.replace(b"chatcmpl-rq-1", b"chatcmpl-rq-\xff")  # not UTF-8
    async with listening() as sense:
        answer = ExportTraceServiceResponse.FromString(await call(sense, broken))
        assert answer.partial_success.rejected_spans == 1
        parts, dropped = taken(sense)
        assert [part.ids[1] for part in parts] == ["request:rq-0", "request:rq-2"]
        assert dropped == {"malformed": 1}


# Too much


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


# Clients that misbehave


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

    def groups(_: bytes) -> list[otlp_wire.SpanGroup]:
        large = set(b"large")
        unpacked.append(weakref.ref(large))
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
        calls = [channel.stream_unary(EXPORT)(slowly()) for _ in range(otlp_grpc.MAX_CALLS)]
        codes = {await one.code() for one in calls}
        assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
        await call(sense, good())
        parts, dropped = taken(sense)
        assert (len(parts), dropped) == (1, {"timeout": otlp_grpc.MAX_CALLS})


async def test_connections_are_bounded_and_the_idle_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LISTENERS, "otlp_http", replace(LISTENERS["otlp_http"], connections=2, per_peer=2))
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
        assert (await post(sense, good()))[0] == 503  # the others have requests under way
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
            found = decode(payload)
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
            found = decode(damaged)
        except otlp_wire.OtlpFormatError:
            continue
        for group in found:
            list(group.spans)


# Who may send


async def test_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    async with listening(token_file=token) as sense:
        for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": ""}):
            assert (await post(sense, good(), **wrong))[0] == 401
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(sense, good())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert taken(sense) == ([], {"unauthorized": 4})
        assert (await post(sense, good(), Authorization="Bearer open sesame"))[0] == 200
        await call(sense, good(), metadata=(("authorization", "Bearer open sesame"),))
        token.write_text("another")
        assert (await post(sense, good(), Authorization="Bearer open sesame"))[0] == 401
        token.unlink()
        assert (await post(sense, good(), Authorization="Bearer another"))[0] == 401


async def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they come before what the exporter is told
        monkeypatch.delenv(name, raising=False)
    ca = trustme.CA()
    certificate = ca.issue_cert("127.0.0.1")
    pem = tmp_path / "server.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(pem)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with listening(cert_file=pem, key_file=pem) as sense:
        exporter = HttpExporter(url(sense).replace("http:", "https:"), certificate_file=str(tmp_path / "ca.pem"))
        assert await asyncio.to_thread(exporter.export, sdk_spans()) is SpanExportResult.SUCCESS
        exporter.shutdown()
        credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{sense.ports[GRPC]}", credentials) as channel:
            await channel.unary_unary(EXPORT)(good(), timeout=20)
        assert len(taken(sense)[0]) == 2


# Where it can not listen


async def test_an_address_that_is_taken_is_a_state_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "RETRY_OPEN_SECONDS", 0.01)
    async with listening() as first:
        settings = Otlp(grpc=f"127.0.0.1:{first.ports[GRPC]}", http=f"127.0.0.1:{first.ports[HTTP]}")
        second = OtlpSense(settings, Plain(), ())
        said = await second.open()
        assert len(said) == 2
        assert all("[otlp] in kvitals.toml" in line for line in said)
        (record,) = second.read(1.0)
        assert (record.state, record.reason) == ("failed", "not_listening")
        assert str(first.ports[GRPC]) in record.message
        assert second.ports == {}
    for _ in range(500):
        if len(second.ports) == 2:
            break
        await asyncio.sleep(0.01)
    await call(second, good())
    (record,) = second.read(2.0)
    assert (record.state, len(record.parts)) == ("ok", 1)
    await second.close()


async def test_one_way_in_alone() -> None:
    async with listening(grpc="") as sense:
        assert list(sense.ports) == [HTTP]
        assert sense.read(1.0)[0].state == "ok"


async def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    settings = Otlp(
        grpc="127.0.0.1:0", http="127.0.0.1:0", cert_file=tmp_path / "none.pem", key_file=tmp_path / "none.pem"
    )
    sense = OtlpSense(settings, Plain(), ())
    assert len(await sense.open()) == 2
    await sense.close()
