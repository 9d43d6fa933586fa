"""What the boards are tried on: an agent's windows after replaying recordings, each a cluster of its own.

`looped` is a recorded engine that goes on for most of an hour, for what compares now with before. `gpu` is a recorded
engine beside a recorded page of a DCGM exporter and made-up readings of NVML: there is no recording of an engine on a
GPU yet, and its numbers say nothing but that the panels draw.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvitals.agent.process_titles import ENGINE_CORE
from kvitals.agent.records import (
    GpuProcess,
    GpuReading,
    GpuRecord,
    GpuXid,
    HostRecord,
    NodeSample,
    ProcessSample,
    ScrapeRecord,
    decode,
    encode,
)
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import AgentTable, Config, Seconds
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import HISTOGRAM_PARTS, Knowledge
from kvitals.series.recordings import CaptureReader, Record
from kvitals.series.types import METRIC_NAME, Frame, Matcher, MatchOp
from tests.fleet import loops

ROOT = Path(__file__).parents[2]
RECORDINGS = {
    path.stem: path
    for path in (
        *(ROOT / "app" / "demo" / f"{name}.kvcap" for name in ("healthy", "heavy_tenant", "few_slots", "working_set")),
        *(ROOT / "tests" / "captures" / "ledger" / f"{name}.kvcap" for name in ("thrash", "full")),
        *(ROOT / "tests" / "captures" / "others" / f"{name}.kvcap" for name in ("pd_healthy", "pd_expired")),
        *(
            ROOT / "tests" / "captures" / "others" / f"{name}.kvcap"
            for name in ("sglang_working_set", "dynamo_overload")
        ),
        *(ROOT / "tests" / "captures" / "requests" / f"{name}.kvcap" for name in ("pair", "tenants")),
    )
}
GPU, LOOPED = "gpu", "looped"
_LOOP = ROOT / "tests" / "captures" / "others" / "sglang_healthy.kvcap"
_LOOP_SECONDS, _LOOP_INTERVAL, _LOOP_END = 2700.0, 15.0, 1_795_238_000.0
_DCGM = ROOT / "tests" / "fixtures" / "exposition" / "captured" / "dcgm-exporter-tesla-t4.prom"
_EXPORTER = "http://127.0.0.1:9400/metrics"
_EVERYTHING = (Matcher(METRIC_NAME, MatchOp.RE, "kvitals_.+"),)
_SIGNALS = (Matcher(METRIC_NAME, MatchOp.RE, "kvitals:.+"),)
_OBSERVED_SECONDS = 15.0
"""Between two evaluations of the signals, as recording rules have them."""
_UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
_PID = 4242


@dataclass(frozen=True)
class Replayed:
    """An agent's state after a replay, and the time that it covers. Seconds since the epoch."""

    name: str
    pipeline: Pipeline
    start: float
    end: float

    def frames(self) -> list[Frame]:
        """Every series of its window, with the replay's name as the cluster."""
        return self._frames(self.pipeline.node.window.select(_EVERYTHING, *self._whole))

    def signals(self) -> list[Frame]:
        """The same of the signals, as recording rules write them."""
        return self._frames(self.pipeline.select(_SIGNALS, *self._whole))

    @property
    def _whole(self) -> tuple[float, float]:
        return self.end - 2 * _LOOP_SECONDS, self.end + 60

    def _frames(self, found: Iterable[Frame]) -> list[Frame]:
        return [Frame(f.times, f.values, [labels.with_(cluster=self.name) for labels in f.labels]) for f in found]


def replays(knowledge: Knowledge, names: Collection[str] = ()) -> dict[str, Replayed]:
    """Replays by name, of all where none is named; all take a few seconds."""
    chosen = names or (*RECORDINGS, GPU, LOOPED)
    found = {name: _replay(name, path, knowledge) for name, path in RECORDINGS.items() if name in chosen}
    if GPU in chosen:
        found[GPU] = _replay(GPU, RECORDINGS["heavy_tenant"], knowledge, on_gpu=True)
    if LOOPED in chosen:
        found[LOOPED] = _looped(knowledge)
    return found


def _looped(knowledge: Knowledge) -> Replayed:
    wanted = frozenset(name + part for name in knowledge.families for part in ("", *HISTOGRAM_PARTS))
    loop = loops.families(_LOOP, wanted, knowledge)
    config = Config(agent=AgentTable(window=Seconds(2 * _LOOP_SECONDS)))
    pipeline = Pipeline(Setup(knowledge, config), DocumentSource("capture", _LOOP.name))
    since = np.arange(0.0, _LOOP_SECONDS, _LOOP_INTERVAL)
    start = _LOOP_END - since[-1]
    group = pipeline.node.window.group("looped")
    columns = [group.column(course.labels) for course in loop.courses]
    assert None not in columns
    values = np.array([course.at(since) for course in loop.courses])
    for i, at in enumerate(start + since):
        group.append(float(at), [column for column in columns if column is not None], values[:, i].tolist())
        pipeline.look(float(at))
    pipeline.observe(_LOOP_END)
    return Replayed(LOOPED, pipeline, _LOOP_END - 300, _LOOP_END)


def _replay(name: str, path: Path, knowledge: Knowledge, *, on_gpu: bool = False) -> Replayed:
    pipeline = Pipeline(Setup(knowledge, Config()), DocumentSource("capture", path.name))
    times: list[float] = []
    observed = -math.inf
    with CaptureReader.open(path) as reader:
        targets = list(reader.header.meta.get("targets", []))
        watched = [*targets, {"url": _EXPORTER, "name": "dcgm"}] if on_gpu else targets
        pipeline.node.expect({**reader.header.meta, "targets": watched})
        records: Iterable[Record] = _with_gpu(reader) if on_gpu else reader
        for t in pipeline.replay(records):
            times.append(t)
            if t - observed >= _OBSERVED_SECONDS:
                pipeline.look(t)
                observed = t
    pipeline.observe(times[-1])
    return Replayed(name, pipeline, times[0], times[-1])


def _with_gpu(records: Iterable[Record]) -> Iterator[Record]:
    """The records of an engine, and with each of its pages a look at its made-up GPU and at the recorded exporter."""
    begun = None
    for record in records:
        yield record
        told = decode(record)
        if isinstance(told, ScrapeRecord):
            begun = told.t if begun is None else begun
            for made in _looks(told.t, told.t - begun, told.target):
                yield encode(made)


def _looks(t: float, since: float, engine: str) -> Iterator[ScrapeRecord | HostRecord | GpuRecord]:
    wave = 0.5 + 0.4 * float(np.sin(since / 10))
    values = {
        "utilization_ratio": 0.97,
        "memory_utilization_ratio": 0.4,
        "memory_used_bytes": 60e9,
        "memory_free_bytes": 19e9,
        "memory_reserved_bytes": 1e9,
        "memory_total_bytes": 80e9,
        "power_watts": 400 + 200 * wave,
        "power_limit_watts": 700.0,
        "energy_joules_total": 500 * since,
        "temperature_celsius": 60.0,
        "memory_temperature_celsius": 70.0,
        "sm_clock_hertz": 1.7e9,
        "sm_clock_max_hertz": 1.98e9,
        "memory_clock_hertz": 2.6e9,
        "memory_clock_max_hertz": 2.6e9,
        "throttle_reasons": 4.0,
        "violation_seconds_total:power": since / 50,
        "violation_seconds_total:thermal": 0.0,
        "ecc_errors_total:corrected": 2.0,
        "ecc_errors_total:uncorrected": 0.0,
        "row_remap_pending": 0.0,
        "row_remap_failure": 0.0,
        "nvlink_rx_bytes": 1e9 * since,
        "nvlink_tx_bytes": 1e9 * since,
        "pcie_rx_bytes_per_second": 2e9,
        "pcie_tx_bytes_per_second": 1e9,
        "sm_active_ratio": wave,
        "tensor_active_ratio": wave / 3,
        "dram_active_ratio": wave / 2,
    }
    process = ProcessSample(
        target=engine, pid=_PID, start_time=1, part=ENGINE_CORE, user=since, resident=2e9, main_running=since / 2
    )
    node = NodeSample(
        cpus=16,
        cpu={"user": 4 * since, "system": since, "idle": 11 * since, "iowait": 0.0, "steal": 0.0},
        memory={"total": 128e9, "available": 64e9},
        pressure={"cpu some": since / 100, "memory full": 0.0},
        filesystems={"/": [1e12, 4e11]},
    )
    yield HostRecord(t=t, clock=since, node=node, processes=(process,))
    gpu = GpuReading(
        gpu=_UUID,
        index=0,
        hardware="NVIDIA H100 80GB HBM3",
        values=values,
        processes=[GpuProcess(pid=_PID, memory=5e10)],
    )
    yield GpuRecord(t=t, driver="made up", gpus=[gpu], xids=[GpuXid(gpu=_UUID, xid=63)] if 30 < since < 31 else [])
    yield ScrapeRecord(t=t, target=_EXPORTER, body=_DCGM.read_bytes(), status=200, content_type="text/plain")
