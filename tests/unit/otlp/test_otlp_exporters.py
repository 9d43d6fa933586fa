"""Real exporters at the OTLP receiver: what is accepted, refused in part, and who may send."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from pathlib import Path

import grpc
import pytest
import trustme
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_stage import EXPORT, GRPC, HTTP, call, good, listening, post, taken, url
from span_fixtures import Plain, lines, protobuf, request, span

from kvitals.agent.collectors import otlp, otlp_http
from kvitals.agent.collectors.otlp import OtlpSense
from kvitals.agent.requests.observation import PartsRecord
from kvitals.config import Otlp


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


# Where it cannot listen


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
