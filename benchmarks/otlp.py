"""Spans to parts of requests: CPU time per span, directly and over gRPC and HTTP.

    python -m benchmarks.otlp [--seconds 20]

The spans are those of a recorded vLLM server (tests/fixtures/spans), with new ids, 512 in a request, as exporters batch
them. "unpacked only" is protobuf's own unpacking of the same requests, below which nothing in Python can be. Over the
wire the receiver is a process of its own, and all of its CPU time counts, threads and network included; beside it a
receiver that unpacks the requests and keeps nothing. What it takes until the parts are requests measures
`benchmarks.requests`. Exits with 1 when fewer than 40,000 spans a second and core become parts directly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import signal
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks import processes
from kvitals.agent.collectors import otlp_json, otlp_wire
from kvitals.agent.collectors.otlp import OtlpSense
from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.spans import SpanReader
from kvitals.config import Otlp
from kvitals.series.slices import Steps, complete

BUDGET = 40_000
BATCH = 512
BATCHES = 20
ROUNDS = 10
SENDERS = 4
GRPC_PORT, HTTP_PORT, PEER_PORT = 19731, 19732, 19733
FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "spans"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
IDS = ("traceId", "spanId", "parentSpanId")


Send = Callable[[float, Sequence[bytes]], int]
"""Sends requests for some seconds, and returns how many were taken."""


class Names:
    """Pseudonyms that cost nothing: real ones are remembered."""

    def pseudonym(self, raw: str) -> str:
        return raw

    def session(self, raw: str) -> str:
        return raw


def batches() -> list[dict[str, Any]]:
    """Requests of 512 spans in OTLP's JSON: real `llm_request` spans with ids and times of their own."""
    lines = (FIXTURES / "vllm-0.32.jsonl").read_text().splitlines()
    recorded = [of for line in lines if '"llm_request"' in line for of in json.loads(line)["resourceSpans"]]
    chance = random.Random(0)
    made = []
    for _ in range(BATCHES):
        now = time.time_ns()
        spans = [_anew(recorded[i % len(recorded)]["scopeSpans"][0]["spans"][0], chance, now) for i in range(BATCH)]
        scope = {"scope": recorded[0]["scopeSpans"][0]["scope"], "spans": spans}
        made.append({"resourceSpans": [{"resource": recorded[0]["resource"], "scopeSpans": [scope]}]})
    return made


def _anew(span: dict[str, Any], chance: random.Random, now: int) -> dict[str, Any]:
    took = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
    ids = {"traceId": f"{chance.getrandbits(128):032x}", "spanId": f"{chance.getrandbits(64):016x}"}
    times = {"startTimeUnixNano": str(now - took), "endTimeUnixNano": str(now)}
    request_id = {"stringValue": f"chatcmpl-{chance.getrandbits(128):032x}"}
    attributes = [a | {"value": request_id} if a["key"] == "gen_ai.request.id" else a for a in span["attributes"]]
    return span | ids | times | {"attributes": attributes}


def protobuf(said: dict[str, Any]) -> bytes:
    """A request in OTLP's JSON as one in protobuf."""
    return json_format.ParseDict(_in_base64(said), ExportTraceServiceRequest()).SerializeToString()


def _in_base64(said: Any) -> Any:
    """Protobuf's JSON has ids in base64 where OTLP has them in hexadecimal."""
    if isinstance(said, dict):
        return {k: b64encode(bytes.fromhex(v)).decode() if k in IDS else _in_base64(v) for k, v in said.items()}
    return [_in_base64(one) for one in said] if isinstance(said, list) else said


def directly(requests: Sequence[bytes], decode: Callable[[bytes], Steps[list[otlp_wire.SpanGroup]]]) -> float:
    """CPU seconds per span from bytes to parts, the best of some rounds."""
    reader = SpanReader(Names(), ("tenant.id", "enduser.id", "user.id"))

    def round_() -> int:
        parts: list[RequestPart] = []
        dropped: dict[str, int] = {}
        for request in requests:
            for group in complete(decode(request)):
                reader.read(group.spans, group.scope, group.engine, time.time(), parts, dropped)
        assert parts and not dropped
        return len(parts)

    return _best(round_)


def unpacked(requests: Sequence[bytes]) -> float:
    """CPU seconds per span of unpacking alone."""

    def round_() -> int:
        return sum(_count(ExportTraceServiceRequest.FromString(request)) for request in requests)

    return _best(round_)


def _best(round_: Callable[[], int]) -> float:
    costs = []
    for _ in range(ROUNDS):
        began = time.process_time()
        spans = round_()
        costs.append((time.process_time() - began) / spans)
    return min(costs)


def _count(request: ExportTraceServiceRequest) -> int:
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


async def sense() -> None:
    """Receive, until interrupted; then print how many parts came."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    receiver = OtlpSense(Otlp(grpc=f"127.0.0.1:{GRPC_PORT}", http=f"127.0.0.1:{HTTP_PORT}"), Names(), ("tenant.id",))
    assert not await receiver.open()
    print("ready", flush=True)
    parts = 0
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(receiver.arrived(), 0.5)
        parts += sum(len(record.parts) for record in receiver.read(time.time()))
        await asyncio.sleep(0.05)
    await receiver.close()
    print(parts)


class _Peer(trace_service_pb2_grpc.TraceServiceServicer):
    """As the protocol's own generated code has it: unpacks, counts, and keeps nothing."""

    spans = 0

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol's name)
        self.spans += _count(request)
        return trace_service_pb2.ExportTraceServiceResponse()


def peer() -> None:
    """Receive and keep nothing, until interrupted; then print how many spans came."""
    servicer = _Peer()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{PEER_PORT}")
    server.start()
    print("ready", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.wait_for_termination()
    server.stop(0)
    print(servicer.spans)


def over_the_wire(role: str, send: Send, seconds: float) -> tuple[float, float]:
    """CPU seconds per span of a receiver in a process of its own, and spans a second of the wall."""
    requests = [protobuf(said) for said in batches()]
    with ExitStack() as stack:
        receiver = stack.enter_context(processes.child("benchmarks.otlp", f"--{role}"))
        send(0.5, requests)  # connections, caches
        began, cpu = time.monotonic(), processes.cpu_seconds(receiver.pid)
        with futures.ThreadPoolExecutor(SENDERS) as pool:
            taken = BATCH * sum(pool.map(lambda _: send(seconds, requests), range(SENDERS)))
        took, spent = time.monotonic() - began, processes.cpu_seconds(receiver.pid) - cpu
        receiver.send_signal(signal.SIGINT)
        assert receiver.stdout is not None
        assert int(receiver.stdout.readline()) >= taken
    return spent / taken, taken / took


def send_grpc(port: int) -> Send:
    """Sends requests one after the other, again and again; where the receiver asks for patience, it has it."""

    def send(seconds: float, requests: Sequence[bytes]) -> int:
        end, taken = time.monotonic() + seconds, 0
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            export = channel.unary_unary(EXPORT)
            while time.monotonic() < end:
                for request in requests:
                    try:
                        export(request, timeout=30)
                        taken += 1
                    except grpc.RpcError as error:
                        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error
                        time.sleep(0.05)
        return taken

    return send


def send_http(seconds: float, requests: Sequence[bytes]) -> int:
    """The same over HTTP."""
    end, taken = time.monotonic() + seconds, 0
    connection = http.client.HTTPConnection("127.0.0.1", HTTP_PORT)
    while time.monotonic() < end:
        for request in requests:
            connection.request("POST", "/v1/traces", request, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 429:
                time.sleep(0.05)
            else:
                assert answer.status == 200, answer.status
                taken += 1
    connection.close()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sense", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sense:
        asyncio.run(sense())
        return 0
    if options.peer:
        peer()
        return 0
    said = batches()
    requests, texts = [protobuf(one) for one in said], [json.dumps(one).encode() for one in said]
    print(f"{sum(map(len, requests)) / BATCHES / BATCH:.0f} bytes a span, {BATCH} spans a request")
    print(f"\n{'':34} {'us CPU a span':>14} {'spans a second and core':>24}")

    def tell(name: str, cost: float) -> None:
        print(f"{name:34} {cost * 1e6:14.1f} {1 / cost:24,.0f}")

    tell("unpacked only", unpacked(requests))
    cost = directly(requests, otlp_wire.groups)
    tell("protobuf to parts", cost)
    tell("JSON to parts", directly(texts, otlp_json.groups))
    for name, role, send in (
        ("gRPC, whole process", "sense", send_grpc(GRPC_PORT)),
        ("HTTP, whole process", "sense", send_http),
        ("gRPC, unpacked and nothing kept", "peer", send_grpc(PEER_PORT)),
    ):
        spent, rate = over_the_wire(role, send, options.seconds)
        tell(f"{name} ({rate:,.0f}/s)", spent)
    print(f"\nbudget {BUDGET:,} spans a second and core from bytes to parts; load {os.getloadavg()[0]:.1f}")
    return 0 if 1 / cost >= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
