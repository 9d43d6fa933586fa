"""Traces that are sent: what is in them, which are sent, and to real receivers that are there or not."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from agent.config import Config, Otlp, OtlpOutTable
from agent.exports import otlp
from agent.exports.otlp import OtlpOut, Sampler, read_headers
from agent.exports.otlp_spans import SCOPE, SpanMaker, named
from agent.requests.part import PHASES, PartsRecord
from agent.requests.record import Phase, RequestRecord, SpanRef
from agent.requests.stitch import LIMITS
from agent.senses.otlp import OtlpSense
from agent.service import Node, encode
from rules.loader import family_of, load
from rules.span_map import load_span_maps
from series.promql import evaluate
from series.types import METRIC_NAME
from tests.unit.requests.parts import llm, tap

TRACE, TAP, CLIENT, ENGINE = "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "1" * 16, "2" * 16
START = 1_700_000_000.0
NEAR = 1e-6
"""Seconds that a float of now resolves, and some."""


def record(number: int = 0, **more: Any) -> RequestRecord:
    """A request through the tap to one vLLM."""
    told: dict[str, Any] = {
        "id": f"req-{number}",
        "trace": f"{TRACE[:-4]}{number:04x}",
        "start": START,
        "end": START + 2.0,
        "complete": True,
        "engines": {"unified": "10.0.0.1:8000/0"},
        "tenant": "t-aaaaaaaaaa",
        "model": "m",
        "phases": (
            Phase("gateway", 0.004, "derived", START, "outside"),
            Phase("queue", 0.5, "measured", START + 0.003),
            Phase("transfer", None, "unknown", None, "nobody told"),
            Phase("prefill", 0.25, "measured", START + 0.503),
            Phase("decode", 1.2, "measured", START + 0.753),
            Phase("unattributed", 0.046, "derived"),
        ),
        "ttft": 0.76,
        "e2e": 2.0,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 7,
        "status": 200,
        "finish": "stop",
        "observers": ("kvitals", "vllm"),
        "spans": (SpanRef("tap", TAP, "", CLIENT), SpanRef("engine", ENGINE, "", TAP)),
    }
    return RequestRecord(**(told | more))


def spans(of: RequestRecord) -> dict[str, ReadableSpan]:
    made = SpanMaker("1.2", {"node": "n"}).spans(of, "slow")
    assert len({span.context.span_id for span in made}) == len(made)
    return {span.name.removeprefix("kvitals."): span for span in made}


def seconds(span: ReadableSpan) -> tuple[float, float]:
    """Start after the request's, and duration."""
    assert span.start_time is not None and span.end_time is not None
    return (span.start_time - int(START) * 10**9) / 1e9, (span.end_time - span.start_time) / 1e9


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# What is in a trace


def test_a_request_and_its_phases() -> None:
    made = spans(record())
    assert list(made) == ["request", "gateway", "queue", "prefill", "decode"]
    assert {name: seconds(span) for name, span in made.items()} == {
        "request": (0.0, 2.0),
        "gateway": (0.0, 0.004),
        "queue": pytest.approx((0.003, 0.5), abs=NEAR),
        "prefill": pytest.approx((0.503, 0.25), abs=NEAR),
        "decode": pytest.approx((0.753, 1.2), abs=NEAR),
    }
    assert not any(said(span)["kvitals.laid_out"] for name, span in made.items() if name != "request")
    assert said(made["gateway"]) == {
        "kvitals.phase.source": "derived",
        "kvitals.phase.why": "outside",
        "kvitals.laid_out": False,
    }
    assert said(made["decode"])["kvitals.engine"] == "10.0.0.1:8000/0"
    request = said(made["request"])
    assert (
        request
        | {
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.response.finish_reasons": ("stop",),
            "server.address": "10.0.0.1",
            "server.port": 8000,
            "kvitals.tenant": "t-aaaaaaaaaa",
            "kvitals.kept": "slow",
            "kvitals.phase.unknown": ("transfer",),
            "kvitals.phase.unattributed": 0.046,
        }
        == request
    )
    assert "error.type" not in request and "kvitals.session" not in request
    assert made["request"].resource.attributes == {
        "service.name": "kvitals",
        "service.version": "1.2",
        "kvitals.node": "n",
    }


def test_what_is_unknown_is_left_out() -> None:
    bare = spans(RequestRecord(id="x", start=START, end=START + 1.0, complete=False))
    assert list(bare) == ["request"]
    assert seconds(bare["request"]) == (0.0, 1.0)
    assert set(said(bare["request"])) == {"kvitals.request.id", "kvitals.outcome", "kvitals.kept", "kvitals.complete"}
    assert bare["request"].context.trace_id


def test_behind_the_tap_the_span_is_the_taps() -> None:
    """Nobody else sends it, and the engine's span names it as its parent."""
    made = spans(record())
    request = made["request"]
    assert f"{request.context.trace_id:032x}" == record().trace
    assert f"{request.context.span_id:016x}" == TAP
    assert request.parent is not None and f"{request.parent.span_id:016x}" == CLIENT
    assert request.kind is SpanKind.SERVER
    assert all(made[name].parent == request.context for name in ("queue", "decode"))


def test_else_it_is_below_the_outermost_one() -> None:
    request = spans(record(spans=(SpanRef("gateway", CLIENT), SpanRef("engine", ENGINE, "", CLIENT))))["request"]
    assert request.parent is not None and f"{request.parent.span_id:016x}" == CLIENT
    assert request.kind is SpanKind.INTERNAL
    assert f"{request.context.span_id:016x}" not in (TAP, CLIENT, ENGINE)


@pytest.mark.parametrize(("parents", "parent"), [((CLIENT, CLIENT), CLIENT), ((CLIENT, ""), None), (("", ""), None)])
def test_of_a_pair_that_nobody_was_seen_around(parents: tuple[str, str], parent: str | None) -> None:
    """The request is longer than either engine's span, so it is in neither."""
    refs = (SpanRef("engine", ENGINE, "", parents[0]), SpanRef("engine", TAP, "", parents[1]))
    request = spans(record(spans=refs))["request"]
    assert (f"{request.parent.span_id:016x}" if request.parent else None) == parent


def test_spans_of_other_traces_are_linked() -> None:
    """Two choices of one request that were asked for without a traceparent."""
    request = spans(record(spans=(SpanRef("engine", ENGINE), SpanRef("engine", CLIENT, "f" * 32))))["request"]
    assert [(f"{one.context.trace_id:032x}", f"{one.context.span_id:016x}") for one in request.links] == [
        ("f" * 32, CLIENT)
    ]
    assert request.parent is not None and f"{request.parent.span_id:016x}" == ENGINE


@pytest.mark.parametrize(
    ("told", "outcome", "code", "error"),
    [
        ({"status": 500}, "error", StatusCode.ERROR, "500"),
        ({"error": "timeout", "status": None}, "error", StatusCode.ERROR, "timeout"),
        ({"status": 429}, "refused", StatusCode.ERROR, "429"),
        ({"status": 400}, "invalid", StatusCode.UNSET, "400"),
        ({"aborted": True}, "aborted", StatusCode.UNSET, None),
    ],
)
def test_how_it_ended(told: dict[str, Any], outcome: str, code: StatusCode, error: str | None) -> None:
    request = spans(record(**told))["request"]
    assert (said(request)["kvitals.outcome"], request.status.status_code) == (outcome, code)
    assert said(request).get("error.type") == error


@pytest.mark.parametrize(
    "starts",
    [
        (START, None, START + 0.6),  # one is not known
        (START, START + 700.0, START + 701.0),  # another clock
        (START, START + 0.9, START + 0.1),  # in another order
        (START - 5.0, START, START + 0.6),
    ],
)
def test_what_does_not_fit_is_laid_out_in_order(starts: tuple[float | None, ...]) -> None:
    lengths = {"queue": 0.5, "prefill": 0.25, "decode": 1.0}
    phases = tuple(
        Phase(name, length, "measured", start) for (name, length), start in zip(lengths.items(), starts, strict=True)
    )
    made = spans(record(phases=phases))
    assert {name: seconds(made[name]) for name in lengths} == {
        "queue": (0.0, 0.5),
        "prefill": (0.5, 0.25),
        "decode": (0.75, 1.0),
    }
    assert all(said(made[name])["kvitals.laid_out"] for name in lengths)


def test_a_pair_has_two_engines() -> None:
    pair = record(
        engines={"prefill": "p:1", "decode": "d"},
        phases=tuple(Phase(name, 0.1, "measured") for name in ("queue", "prefill", "transfer", "decode")),
    )
    made = spans(pair)
    assert {n: said(s).get("kvitals.engine") for n, s in made.items()} == {
        "request": None, "queue": None, "prefill": "p:1", "transfer": "d", "decode": "d",
    }  # fmt: skip
    assert said(made["request"])["kvitals.engine.prefill"] == "p:1"
    assert "server.address" not in said(made["request"])  # `d` is a name


TIMES = st.floats(0.0, 1_000.0, allow_nan=False)


@given(
    st.dictionaries(st.sampled_from(PHASES), st.tuples(st.none() | TIMES, st.none() | st.floats(-10.0, 2_000.0))),
    TIMES,
)
@settings(max_examples=200, deadline=None)
def test_phases_are_within_the_request_and_as_long_as_recorded(
    drawn: dict[str, tuple[float | None, float | None]], rest: float
) -> None:
    phases = tuple(
        Phase(name, length, "measured", START + begin if begin is not None else None)
        for name, (length, begin) in sorted(drawn.items(), key=lambda one: PHASES.index(one[0]))
    )
    e2e = sum(phase.seconds for phase in phases if phase.seconds is not None) + rest
    made = spans(record(phases=phases, e2e=e2e))
    first, last = made["request"].start_time, made["request"].end_time
    assert first is not None and last is not None
    assert set(made) == {"request"} | {phase.name for phase in phases if phase.seconds is not None}
    for phase in phases:
        if phase.seconds is not None:
            span = made[phase.name]
            assert span.start_time is not None and span.end_time is not None
            assert first <= span.start_time <= span.end_time <= last
            assert abs(span.end_time - span.start_time - phase.seconds * 1e9) <= 10


def test_a_record_that_is_sent_twice_is_one_trace() -> None:
    one, other = spans(record(spans=(), trace="")), spans(record(spans=(), trace=""))
    assert [s.context for s in one.values()] == [s.context for s in other.values()]
    different = spans(record(spans=(), trace="", id="another"))
    assert different["request"].context.trace_id != one["request"].context.trace_id


@pytest.mark.parametrize("trace", ["", "xyz", "0" * 32, "é" * 32, "1" * 31, "-" + "1" * 31])
def test_a_trace_id_that_is_none(trace: str) -> None:
    request = spans(record(trace=trace))["request"]
    assert request.context.is_valid
    assert request.parent is None


def test_what_is_sent_is_known_when_it_comes_back() -> None:
    (own,) = (one for one in load_span_maps() if one.system == SCOPE)
    (kind,) = own.spans
    assert set(kind.names) == set(named())
    assert (kind.keep, kind.scopes) == (False, (SCOPE,))


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
        assert f"http://127.0.0.1:{port}/v1/traces does not take traces (" in status.message
        assert "refused" in status.message
        assert "[otlp_out]" in status.message
        async with over_http(port) as collector:
            await until(lambda: out.status().sent["share"] == 1)
            assert out.status().state == "ok"
    assert len(collector.spans) == 5


async def test_a_batch_that_is_refused_is_given_up() -> None:
    async with over_http() as collector:
        collector.answers = [400] * otlp.MAX_TRIES
        async with sending(collector.endpoint) as out:
            out.offer(record(1))
            await until(lambda: out.status().dropped["not_delivered"] == 1)
            assert out.status().state == "failed" and "400" in out.status().message
            out.offer(record(2))
            await until(lambda: out.status().sent["share"] == 1)
    assert len(collector.headers) == otlp.MAX_TRIES + 1


async def test_a_full_queue_keeps_the_newest() -> None:
    out = OtlpOut(OtlpOutTable(endpoint="http://127.0.0.1:9", sample=1.0), {})
    for i in range(otlp.MAX_WAITING + 10):
        out.offer(record(i))
    status = out.status()
    assert (status.waiting, status.dropped["queue_full"]) == (otlp.MAX_WAITING, 10)
    await out.close()


async def test_close_with_a_collector_that_never_answers() -> None:
    """It ends within a few seconds all the same."""

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    async with server:
        out = OtlpOut(OtlpOutTable(endpoint=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", sample=1.0), {})
        out.open()
        out.offer(record())
        async with asyncio.timeout(4 * otlp.CLOSE_SECONDS):
            await out.close()


async def test_headers_are_read_again(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    async with over_http() as collector, sending(collector.endpoint, headers_file=headers) as out:
        out.offer(record(1))
        await until(lambda: out.status().state == "failed")
        assert (out.status().reason, out.status().message) == (
            "headers_file",
            f"{headers}: the headers for the collector can not be read: No such file or directory",
        )
        headers.write_text("a: 1")
        out.offer(record(2))  # the first one may be given up by now
        await until(lambda: out.status().sent["share"] > 0 and out.status().waiting == 0)
        headers.write_text("a: 2")
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
        node.send_traces("1.2")
        now = time.time()
        made = (tap(1, now), llm(1, now, parent="a000000000000001"))
        node.feed(encode(PartsRecord(t=now, source="tap", parts=made)))
        node.feed(encode(PartsRecord(t=now + LIMITS.settle + 1, source="tap", parts=())))
        await until(lambda: len(collector.spans) > 0)
        node.feed(encode(PartsRecord(t=now + 60, source="tap", parts=())))
        await node.close()
    found = {span.name: span for span in collector.spans}
    assert set(found) == {"kvitals.request", "kvitals.gateway", "kvitals.queue", "kvitals.prefill", "kvitals.decode"}
    assert found["kvitals.request"].span_id.hex() == "a000000000000001"  # which vLLM's span is below
    state = evaluate("kvitals_export_state", node.window, now + 60)
    assert not isinstance(state, float)
    assert [(labels["state"], value) for labels, value in state] == [("ok", 1.0)]


async def test_a_node_without_the_table_sends_nothing() -> None:
    node = Node(Config())
    node.send_traces("1.2")
    assert node.requests.send is None
    await node.close()
