"""The node's own records, fed with those of its targets: whose processes use which GPU."""

from pathlib import Path

from kvitals.agent.node import Node
from kvitals.agent.process_titles import ENGINE_CORE
from kvitals.agent.records import (
    GpuProcess,
    GpuReading,
    GpuRecord,
    HostRecord,
    ProcessSample,
    Record,
    ScrapeRecord,
    encode,
)
from kvitals.config import build
from kvitals.series.promql import evaluate, parse

FIXTURES = Path(__file__).parents[2] / "fixtures" / "exposition"
ONE, TWO = "http://127.0.0.1:8000/metrics", "http://127.0.0.1:8001/metrics"


def fed(*records: Record) -> Node:
    node = Node(build({}))
    node.expect({"targets": [{"url": ONE, "name": "a"}, {"url": TWO}]})
    for record in records:
        node.ingest_recorded(encode(record))
    return node


def now(node: Node, query: str, t: float) -> dict[tuple[str, ...], float]:
    found = evaluate(parse(query), node.window, t)
    assert not isinstance(found, float)
    return {(x.get("gpu", ""), x.get("engine", "")): v for x, v in zip(found.labels, found.values, strict=True)}


def page(target: str, name: str) -> ScrapeRecord:
    return ScrapeRecord(t=1.0, target=target, body=(FIXTURES / f"vllm-0.32-{name}.prom").read_bytes())


def process(target: str, pid: int, rank: str = "", state: str = "ok") -> ProcessSample:
    return ProcessSample(target=target, pid=pid, start_time=1, part=ENGINE_CORE, rank=rank, state=state)


def gpus(t: float, **pids: list[int]) -> GpuRecord:
    readings = [
        GpuReading(gpu=f"GPU-{name}", index=i, processes=[GpuProcess(pid=pid) for pid in using])
        for i, (name, using) in enumerate(pids.items())
    ]
    return GpuRecord(t=t, gpus=readings)


def test_gpus_are_assigned_to_engines_and_their_ranks_by_process() -> None:
    host = HostRecord(t=2.0, processes=(process(ONE, 10), process(TWO, 20, "0"), process(TWO, 21, "1")))
    node = fed(page(ONE, "loaded"), page(TWO, "dp2-ngram"), host, gpus(2.0, a=[10], b=[20], c=[21, 99]))
    rank = "127.0.0.1:8001/"
    assert now(node, "kvitals_gpu_engine", 2.0) == {
        ("GPU-a", "a"): 1.0, ("GPU-b", f"{rank}0"): 1.0, ("GPU-c", f"{rank}1"): 1.0,
    }  # fmt: skip
    assert now(node, "kvitals_engine_gpus", 2.0) == {("", "a"): 1.0, ("", f"{rank}0"): 1.0, ("", f"{rank}1"): 1.0}


def test_a_process_that_ended_owns_nothing() -> None:
    host = HostRecord(t=2.0, processes=(process(ONE, 10, state="gone"),))
    node = fed(page(ONE, "loaded"), host, gpus(2.0, a=[10]))
    assert now(node, "kvitals_gpu_engine", 2.0) == {}


def test_processes_of_a_target_that_is_not_watched_are_nobodys() -> None:
    host = HostRecord(t=2.0, processes=(process("http://127.0.0.1:9999/metrics", 10),))
    node = fed(page(ONE, "loaded"), host, gpus(2.0, a=[10]))
    assert now(node, "kvitals_gpu_engine", 2.0) == {}


def test_an_engine_that_never_answered_has_its_gpus_all_the_same() -> None:
    host = HostRecord(t=2.0, processes=(process(TWO, 20),))
    node = fed(host, gpus(2.0, a=[20]))
    assert now(node, "kvitals_gpu_engine", 2.0) == {("GPU-a", "127.0.0.1:8001"): 1.0}
