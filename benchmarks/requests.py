"""How many spans a second of a core become requests: OTLP's bytes to records, counted by tenant and engine.

    python -m benchmarks.requests [--requests 90000]

The bytes are those of `llm_request` spans that a vLLM server sent (tests/fixtures/spans), with ids, times and durations
of their own, 512 in a request, from eight engines, at 2,500 requests a second of the records' clock. They take the way
that they take in the agent: read to parts, written down as a capture's records are and read again, stitched to records,
those kept and counted by tenant, engine and phase, a row of series every second and the slow tail explained every 30
seconds. "with the tap" has the tap's part around each span, as `kvitals tap` posts it.

Beside it a receiver as one writes it first: the same bytes unpacked by OpenTelemetry's own generated code and each
attribute read once. It keeps nothing and makes no requests. Exits with 1 when fewer than 40,000 spans a second of a
core become records.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks.otlp import BATCH, BUDGET, FIXTURES, Names, protobuf
from kvitals.agent.collectors import otlp_wire
from kvitals.agent.engine_resolver import SeenEngines
from kvitals.agent.records import PartsRecord, decode, encode
from kvitals.agent.requests.observation import RequestPart, identity
from kvitals.agent.requests.request_pipeline import RequestSide
from kvitals.agent.requests.spans import SpanReader
from kvitals.series.slices import complete
from kvitals.series.window import Window

PER_SECOND = 2500.0
TENANTS = 1000
ENGINES = 8
ROUNDS = 3
BEGIN = 1_790_000_000.0
STEPS = ("read to parts", "written down and read", "stitched, kept, counted", "tails and series")


class Costs:
    """CPU seconds by step, and the longest single one."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(STEPS, 0.0)
        self.longest = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Counts what is done within."""
        begun = time.process_time()
        yield
        took = time.process_time() - begun
        self.spent[step] += took
        self.longest[step] = max(self.longest[step], took)


class Made:
    """What observers say of some requests: bytes of a batch of spans, and the tap's parts."""

    def __init__(self, chance: random.Random, first: int, recorded: ExportTraceServiceRequest) -> None:
        self.t = BEGIN + (first + BATCH) / PER_SECOND
        request = ExportTraceServiceRequest()
        request.CopyFrom(recorded)
        (of_resource,) = request.resource_spans
        engine = first // BATCH % ENGINES
        del of_resource.resource.attributes[:]
        of_resource.resource.attributes.add(key="service.name").value.string_value = f"10.0.0.{engine}:8000"
        spans = of_resource.scope_spans[0].spans
        patterns = list(spans)
        del spans[:]
        self.tap: list[RequestPart] = []
        for i in range(BATCH):
            span = spans.add()
            span.CopyFrom(patterns[i % len(patterns)])
            self._anew(chance, span, BEGIN + (first + i) / PER_SECOND, engine)
        self.payload = request.SerializeToString()

    def _anew(self, chance: random.Random, span: Span, end: float, engine: int) -> None:
        """Other ids and times, and the tap's word of the same request."""
        queue, prefill, decoding = chance.expovariate(20), 0.02 + chance.expovariate(10), 0.2 + chance.expovariate(2)
        whole, ttft = queue + prefill + decoding + 0.008, queue + prefill + 0.003
        request = f"{chance.getrandbits(64):016x}"
        values = {
            "gen_ai.latency.time_in_queue": queue,
            "gen_ai.latency.time_in_model_prefill": prefill,
            "gen_ai.latency.time_in_model_decode": decoding,
            "gen_ai.latency.time_in_model_inference": prefill + decoding,
            "gen_ai.latency.time_to_first_token": ttft,
            "gen_ai.latency.e2e": whole,
        }
        tokens: dict[str, int] = {}
        for attribute in span.attributes:
            if attribute.key in values:
                attribute.value.double_value = values[attribute.key]
            elif attribute.key == "gen_ai.request.id":
                attribute.value.string_value = f"chatcmpl-{request}"
            elif attribute.value.HasField("int_value"):
                tokens[attribute.key] = attribute.value.int_value
        span.trace_id, span.span_id = chance.randbytes(16), chance.randbytes(8)
        span.parent_span_id = chance.randbytes(8)
        span.start_time_unix_nano, span.end_time_unix_nano = round((end - whole) * 1e9), round(end * 1e9)
        self.tap.append(
            RequestPart(
                observer="tap", system="kvitals", seen=end,
                ids=(identity("trace", span.trace_id.hex()), identity("request", request)),
                span=span.parent_span_id.hex(), name="/chat/completions", start=end - whole - 0.004, end=end,
                engine=f"10.0.0.{engine}:8000", tenant=f"t-{int(chance.paretovariate(1.1)) % TENANTS:010d}", model="m",
                stream=True, phases={"gateway": 0.0003}, ttft=ttft + 0.002, itl=0.014, itl_max=0.03, itl_p99=0.02,
                prompt_tokens=tokens["gen_ai.usage.prompt_tokens"], cached_tokens=0,
                output_tokens=tokens["gen_ai.usage.completion_tokens"], status=200, finish="stop",
            )
        )  # fmt: skip


def recorded() -> ExportTraceServiceRequest:
    """The `llm_request` spans of a recorded server as one request."""
    found = ExportTraceServiceRequest()
    for line in (FIXTURES / "vllm-0.32.jsonl").read_text().splitlines():
        if '"llm_request"' in line:
            request = ExportTraceServiceRequest.FromString(protobuf(json.loads(line)))
            if not found.resource_spans:
                found.CopyFrom(request)
            else:
                found.resource_spans[0].scope_spans[0].spans.extend(request.resource_spans[0].scope_spans[0].spans)
    return found


def measure(made: list[Made], costs: Costs, *, tap: bool) -> tuple[RequestSide, int]:
    """Everything once. Returns what came of it, and how many parts were made."""
    window = Window(1800, 200_000, 20_000)
    engines = SeenEngines(window)
    for i in range(ENGINES):
        labels = {"engine": f"10.0.0.{i}:8000", "node": "bench"}
        engines.named(f"{i}", f"http://10.0.0.{i}:8000", labels["engine"], {labels["engine"]: (labels, "")})
    side = RequestSide(window, {"node": "bench"}, engines, engines.waited, 50)
    reader = SpanReader(Names(), ("tenant.id", "enduser.id", "user.id"))
    count = 0
    for batch in made:
        parts: list[RequestPart] = []
        dropped: dict[str, int] = {}
        with costs.of(STEPS[0]):
            for group in complete(otlp_wire.groups(batch.payload)):
                reader.read(group.spans, group.scope, group.engine, batch.t, parts, dropped)
        assert not dropped
        parts += batch.tap if tap else ()
        count += len(parts)
        with costs.of(STEPS[1]):
            record = decode(encode(PartsRecord(t=batch.t, source="bench", parts=tuple(parts))))
        assert isinstance(record, PartsRecord)
        with costs.of(STEPS[2]):
            side.feed(record)
        with costs.of(STEPS[3]):
            side.advance(record.t)
    with costs.of(STEPS[2]):
        side.flush()
    return side, count


def unpacked(made: list[Made]) -> float:
    """CPU seconds of unpacking with generated code and reading each attribute once."""
    begun = time.process_time()
    for batch in made:
        for of_resource in ExportTraceServiceRequest.FromString(batch.payload).resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
    return time.process_time() - begun


def told(made: list[Made], *, tap: bool) -> float:
    """Measures and says it. Returns the spans a second and core."""
    rounds = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(ROUNDS):
        costs = Costs()
        side, parts = measure(made, costs, tap=tap)
        rounds.append((sum(costs.spent.values()), costs))
        kept = len(side.store)
        del side
        gc.collect()
    total, costs = min(rounds, key=lambda one: one[0])
    spans = BATCH * len(made)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{'spans with the tap' if tap else 'spans alone'}: {spans / total:,.0f} requests a second and core,"
        f" {parts / total:,.0f} parts; {total / spans * 1e6:.1f} us a request; {kept} kept, {grown:.0f} MB more"
    )
    for step, spent in costs.spent.items():
        share = spent / total
        print(f"  {step:26} {spent / spans * 1e6:5.1f} us {share:4.0%}   longest {costs.longest[step] * 1e3:6.1f} ms")
    return spans / total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=90_000)
    arguments = parser.parse_args()
    chance, pattern = random.Random(1), recorded()
    made = [Made(chance, first, pattern) for first in range(0, arguments.requests - BATCH + 1, BATCH)]
    rate = told(made, tap=False)
    told(made, tap=True)
    spent = min(unpacked(made) for _ in range(ROUNDS)) / len(made) / BATCH
    print(f"unpacked by generated code, attributes read, nothing kept: {1 / spent:,.0f} a second, {spent * 1e6:.1f} us")
    print(f"budget {BUDGET:,} spans a second and core, from bytes to records; load {os.getloadavg()[0]:.1f}")
    return 0 if rate >= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
