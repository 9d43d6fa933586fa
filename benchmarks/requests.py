"""How many parts a second of a core become requests: stitched, assembled, kept and counted by tenant and engine.

    python -m benchmarks.requests [--requests 50000]

The parts have the shape of vLLM's recorded `llm_request` (tests/fixtures/spans) and of the tap's. They come in batches
of 512 at 2,500 requests a second of the records' clock, with a row of series every second, as in an agent.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable

from agent.requests.part import PartsRecord, RequestPart, identity
from agent.requests.side import RequestSide
from series.window import Window

BATCH = 512
PER_SECOND = 2500.0
TENANTS = 1000
ENGINES = 8
Make = Callable[[random.Random, int, float], list[RequestPart]]


class _Engines:
    """Engines that are watched."""

    def label(self, name: str) -> str:
        return name

    def role(self, name: str) -> str:
        return ""

    def labels(self, engine: str) -> dict[str, str]:
        return {"node": "bench"}


def engine_alone(chance: random.Random, n: int, t: float) -> list[RequestPart]:
    """vLLM's span of a request, whose caller has a trace."""
    return [_llm(chance, n, t, parent=f"{n:016x}")]


def tap_and_engine(chance: random.Random, n: int, t: float) -> list[RequestPart]:
    """The same with the tap around it."""
    engine = _llm(chance, n, t, parent=f"a{n:015x}")
    whole = (engine.end or 0.0) - (engine.start or 0.0) + 0.004
    tap = RequestPart(
        observer="tap", system="kvitals", seen=t, ids=engine.ids[:2], span=f"a{n:015x}", name="/chat/completions",
        start=t - whole, end=t, engine=engine.engine, tenant=f"t-{int(chance.paretovariate(1.1)) % TENANTS:010d}",
        model="m", stream=True, phases={"gateway": 0.0003}, ttft=(engine.ttft or 0.0) + 0.002, itl=0.014, itl_max=0.03,
        itl_p99=0.02, prompt_tokens=137, cached_tokens=64, output_tokens=16, status=200, finish="stop",
    )  # fmt: skip
    return [engine, tap]


def _llm(chance: random.Random, n: int, t: float, parent: str) -> RequestPart:
    queue, prefill, decode = chance.expovariate(20), 0.02 + chance.expovariate(10), 0.2 + chance.expovariate(2)
    request = f"{chance.getrandbits(64):016x}"
    ids = (
        identity("trace", f"{chance.getrandbits(128):032x}"),
        identity("request", request),
        identity("response", f"chatcmpl-{request}"),
    )
    whole = queue + prefill + decode + 0.008
    return RequestPart(
        observer="engine", system="vllm", seen=t, ids=ids, span=f"{n:016x}", parent=parent, name="llm_request",
        start=t - whole, end=t, engine=f"10.0.0.{n % ENGINES}:8000", ttft=queue + prefill + 0.003,
        phases={"queue": queue, "prefill": prefill, "decode": decode}, prompt_tokens=137, output_tokens=16,
    )  # fmt: skip


def measure(make: Make, requests: int) -> str:
    """One run, in words."""
    chance = random.Random(1)
    records: list[PartsRecord] = []
    parts: list[RequestPart] = []
    t = 1_790_000_000.0
    for n in range(requests):
        t += 1 / PER_SECOND
        parts += make(chance, n, t)
        if len(parts) >= BATCH:
            records.append(PartsRecord(t=t, source="bench", parts=tuple(parts)))
            parts = []
    count = sum(len(record.parts) for record in records)
    side = RequestSide(Window(1800, 200_000, 20_000), {"node": "bench"}, _Engines(), lambda *_: False, 50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    for record in records:
        side.feed(record)
        side.advance(record.t)
    side.advance(t + 60)
    spent = time.process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return (
        f"{make.__name__}: {count} parts, {requests} requests: {count / spent:,.0f} parts a second,"
        f" {spent / count * 1e6:.1f} us a part; {len(side.store)} records kept, {grown:.0f} MB more"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=50_000)
    arguments = parser.parse_args()
    for make in (engine_alone, tap_and_engine):
        print(measure(make, arguments.requests))


if __name__ == "__main__":
    main()
