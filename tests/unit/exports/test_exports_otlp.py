"""Which traces are sent, and to real receivers that are there or not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from traced import TAP, record

from kvitals.agent.collectors.otlp import OtlpSense
from kvitals.agent.exports import otlp_export
from kvitals.agent.exports.otlp_export import OtlpOut, Sampler, read_headers
from kvitals.agent.exports.otlp_spans import SCOPE
from kvitals.agent.node import Node
from kvitals.agent.records import encode
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.stitch import LIMITS
from kvitals.config import Config, Otlp, OtlpOutTable
from kvitals.rules.loader import family_of, load
from kvitals.series.files import replace_file
from kvitals.series.promql import evaluate
from kvitals.series.types import METRIC_NAME
from tests.unit.requests.parts import llm, tap

# Which are sent


def test_slow_and_failed_ones_are_always_sent() -> None:
    sampler = Sampler(0.0, lambda _: 1.0)
    assert sampler.why(record()) == ""
    assert sampler.why(record(ttft=1.5)) == "slow"
    assert sampler.why(record(ttft=None)) == ""
    assert sampler.why(record(status=503)) == "failed"
    assert sampler.why(record(aborted=True)) == "failed"
    assert sampler.why(record(status=400)) == ""
    assert Sampler(1.0, lambda _: None).why(record(ttft=1.5)) == "share"


@pytest.mark.parametrize("name", ["ttft", "e2e"])
def test_the_slowest_of_late_are_sent(name: str) -> None:
    sampler = Sampler(0.0, lambda _: None)
    kept = [i for i in range(3_000) if sampler.why(record(**{name: ((i * 7919) % 3_000) / 100}))]
    assert 20 < len(kept) < 60  # one in a hundred
    assert sampler.why(record(**{name: 40.0})) == "slow"


def test_alike_requests_are_no_top() -> None:
    sampler = Sampler(0.0, lambda _: None)
    assert not any(sampler.why(record(i)) for i in range(500))


def test_the_share_goes_by_the_trace() -> None:
    traces = [f"{i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for i in range(2_000)]
    few, more = Sampler(0.1, lambda _: None), Sampler(0.3, lambda _: None)
    by_few = {t for t in traces if few.why(record(trace=t))}
    by_more = {t for t in traces if more.why(record(trace=t))}
    assert by_few < by_more
    assert 140 < len(by_few) < 260
    without = sum(bool(few.why(record(i, trace=""))) for i in range(2_000))
    assert 140 < without < 260


# To real receivers


class Collector:
    """Keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []  # statuses to answer with; 200 after these
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        self.headers.append(headers)
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self.requests.append(ExportTraceServiceRequest.FromString(body))
        return status

    @property
    def spans(self) -> list[Any]:
        scopes = [scope for r in self.requests for rs in r.resource_spans for scope in rs.scope_spans]
        assert {scope.scope.name for scope in scopes} <= {SCOPE}
        return [span for scope in scopes for span in scope.spans]


@asynccontextmanager
async def over_http(port: int = 0) -> AsyncIterator[Collector]:
    collector = Collector()

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        status = collector.take(body, {name.lower(): value for name, value in request.headers.items()})
        return web.Response(status=status, body=ExportTraceServiceResponse().SerializeToString())

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    collector.port = runner.addresses[0][1]
    try:
        yield collector
    finally:
        await runner.cleanup()


@contextmanager
def over_grpc() -> Any:
    collector = Collector()

    class Service(TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
            collector.take(request.SerializeToString(), dict(context.invocation_metadata()))
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Service(), server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gathered for a second is sent at once."""
    monkeypatch.setattr(otlp_export, "GATHER_SECONDS", 0.02)


@asynccontextmanager
async def sending(endpoint: str, **more: Any) -> AsyncIterator[OtlpOut]:
    out = OtlpOut(OtlpOutTable(endpoint=endpoint, **({"sample": 1.0} | more)), {"node": "n"}, first_wait=0.01)
    out.open()
    try:
        yield out
    finally:
        await out.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 (a thread tells it)
            await asyncio.sleep(0.01)


async def test_over_http(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("# for the collector\nAuthorization: Bearer abc\n\nX-Scope=a b\n")
    async with over_http() as collector, sending(collector.endpoint, headers_file=headers) as out:
        assert (out.status().state, out.status().reason) == ("unknown", "idle")
        for i in range(200):
            out.offer(record(i))
        await until(lambda: out.status().sent["share"] == 200)
        status = out.status()
    assert (status.state, status.reason, status.message, status.waiting) == ("ok", "ok", "", 0)
    assert set(status.dropped.values()) == {0}
    found = collector.spans
    assert Counter(span.name for span in found) == dict.fromkeys(
        ("kvitals.request", "kvitals.gateway", "kvitals.queue", "kvitals.prefill", "kvitals.decode"), 200
    )
    assert len(collector.requests) < 20
    assert {(h["authorization"], h["x-scope"], h["content-encoding"]) for h in collector.headers} == {
        ("Bearer abc", "a b", "gzip")
    }
    by_trace: dict[bytes, list[Any]] = {}
    for span in found:
        by_trace.setdefault(span.trace_id, []).append(span)
    for some in by_trace.values():
        (request,) = (span for span in some if span.name == "kvitals.request")
        assert request.span_id.hex() == TAP
        assert all(span.parent_span_id == request.span_id for span in some if span is not request)
        assert all(
            request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            and span.end_time_unix_nano <= request.end_time_unix_nano
            for span in some
        )


async def test_over_grpc(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer abc")
    with over_grpc() as collector:
        async with sending(collector.endpoint, protocol="grpc", headers_file=headers) as out:
            out.offer(record())
            await until(lambda: out.status().sent["share"] == 1)
    assert len(collector.spans) == 5
    assert collector.headers[0]["authorization"] == "Bearer abc"


class Nobody:
    def pseudonym(self, raw: str) -> str:
        return ""

    def session(self, raw: str) -> str:
        return ""


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_what_comes_back_counts_no_second_time(protocol: str) -> None:
    """To a collector that sends all on to kvitals itself."""
    sense = OtlpSense(Otlp(grpc="127.0.0.1:0", http="127.0.0.1:0"), Nobody(), ())
    assert await sense.open() == []
    now = time.time()
    shifted = msgspec.structs.replace(
        record(), start=now, phases=tuple(msgspec.structs.replace(p, start=None) for p in record().phases)
    )
    try:
        endpoint = f"http://127.0.0.1:{sense.ports[protocol]}"
        name = "grpc" if protocol == "grpc" else "http/protobuf"
        async with sending(endpoint, protocol=name) as out:
            out.offer(shifted)
            await until(lambda: out.status().sent["share"] == 1)
        records = sense.read(now)
    finally:
        await sense.close()
    assert [part for one in records for part in one.parts] == []
    assert sum((Counter(one.dropped) for one in records), Counter()) == {"detail": 5}


async def test_a_collector_that_was_away() -> None:
    """Nothing listens at first; what was offered meanwhile arrives."""
    async with over_http() as gone:
        port = gone.port
    async with sending(f"http://127.0.0.1:{port}") as out:
        out.offer(record(1))
        await until(lambda: out.status().state == "failed")
        status = out.status()
        assert (status.reason, status.waiting) == ("not_delivered", 1)
        assert f"http://127.0.0.1:{port}/v1/traces refuses traces (" in status.message
        assert "refused" in status.message
        assert "[otlp_out]" in status.message
        async with over_http(port) as collector:
            await until(lambda: out.status().sent["share"] == 1)
            assert out.status().state == "ok"
    assert len(collector.spans) == 5


async def test_a_batch_that_is_refused_is_given_up() -> None:
    async with over_http() as collector:
        collector.answers = [400] * otlp_export.MAX_TRIES
        async with sending(collector.endpoint) as out:
            out.offer(record(1))
            await until(lambda: out.status().dropped["not_delivered"] == 1)
            assert out.status().state == "failed" and "400" in out.status().message
            out.offer(record(2))
            await until(lambda: out.status().sent["share"] == 1)
    assert len(collector.headers) == otlp_export.MAX_TRIES + 1


async def test_a_full_queue_keeps_the_newest() -> None:
    out = OtlpOut(OtlpOutTable(endpoint="http://127.0.0.1:9", sample=1.0), {})
    for i in range(otlp_export.MAX_WAITING + 10):
        out.offer(record(i))
    status = out.status()
    assert (status.waiting, status.dropped["queue_full"]) == (otlp_export.MAX_WAITING, 10)
    await out.close()


async def test_close_with_a_collector_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends all the same, within twice the time that it is given."""
    monkeypatch.setattr(otlp_export, "CLOSE_SECONDS", 0.5)
    monkeypatch.setattr(otlp_export, "SEND_SECONDS", 0.8)

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    async with server:
        out = OtlpOut(OtlpOutTable(endpoint=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", sample=1.0), {})
        out.open()
        out.offer(record())
        await until(lambda: out.status().waiting == 1)
        async with asyncio.timeout(20 * otlp_export.CLOSE_SECONDS):
            await out.close()


async def test_headers_are_read_again(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    async with over_http() as collector, sending(collector.endpoint, headers_file=headers) as out:
        out.offer(record(1))
        await until(lambda: out.status().state == "failed")
        assert (out.status().reason, out.status().message) == (
            "headers_file",
            f"{headers}: the headers for the collector cannot be read: No such file or directory",
        )
        replace_file(headers, b"a: 1")
        out.offer(record(2))  # the first one may be given up by now
        await until(lambda: out.status().sent["share"] > 0 and out.status().waiting == 0)
        replace_file(headers, b"a: 2")
        out.offer(record(3))
        await until(lambda: collector.headers[-1]["a"] == "2")
    assert collector.headers[0]["a"] == "1"


@pytest.mark.parametrize("content", ["token-without-a-name", "a: b\n: secret", "ä: secret", "a: \x01secret"])
def test_headers_that_are_none_are_not_repeated(tmp_path: Path, content: str) -> None:
    path = tmp_path / "headers"
    path.write_text(content)
    with pytest.raises(ValueError, match="a header must be a line such as") as error:
        read_headers(path)
    assert "secret" not in str(error.value) and "token-without" not in str(error.value)


def test_headers_that_are_too_large(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("a: b\n" * 10_000)
    with pytest.raises(ValueError, match="larger than"):
        read_headers(path)


def test_families_are_known() -> None:
    known = load().families
    out = OtlpOut(OtlpOutTable(endpoint="http://127.0.0.1:9"), {"node": "n"})
    series = out.status().series({"node": "n"})
    for labels in series:
        family = family_of(labels.name, known)
        assert family is not None
        assert set(labels) - {METRIC_NAME, "node"} <= set(known[family].labels)
    assert {labels.get("state"): value for labels, value in series.items() if "state" in labels} == {"unknown": 1.0}


async def test_a_node_sends_what_it_put_together() -> None:
    async with over_http() as collector:
        node = Node(Config(otlp_out=OtlpOutTable(endpoint=collector.endpoint, sample=1.0)))
        node.parts.send_traces("1.2")
        now = time.time()
        made = (tap(1, now), llm(1, now, parent="a000000000000001"))
        node.ingest_recorded(encode(PartsRecord(t=now, source="tap", parts=made)))
        node.ingest_recorded(encode(PartsRecord(t=now + LIMITS.settle + 1, source="tap", parts=())))
        await until(lambda: len(collector.spans) > 0)
        node.ingest_recorded(encode(PartsRecord(t=now + 60, source="tap", parts=())))
        await node.close()
    found = {span.name: span for span in collector.spans}
    assert set(found) == {"kvitals.request", "kvitals.gateway", "kvitals.queue", "kvitals.prefill", "kvitals.decode"}
    assert found["kvitals.request"].span_id.hex() == "a000000000000001"  # which vLLM's span is below
    state = evaluate("kvitals_export_state", node.window, now + 60)
    assert not isinstance(state, float)
    assert [(labels["state"], value) for labels, value in state] == [("ok", 1.0)]


async def test_a_node_without_the_table_sends_nothing() -> None:
    node = Node(Config())
    node.parts.send_traces("1.2")
    assert node.requests.send is None
    await node.close()
