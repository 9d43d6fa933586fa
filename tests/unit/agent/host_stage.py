"""A host sense with its window, and records as it makes them."""

from __future__ import annotations

from collections.abc import Sequence

from kvitals.agent.collectors.host import HostSense
from kvitals.agent.exports.metrics_page import newest
from kvitals.agent.records import CgroupSample, HostRecord, ProcessSample
from kvitals.series.window import Window

LABELS = {"cluster": "c", "node": "n"}


def engine(key: str, rank: str) -> str:
    return f"{key}/{rank or 0}"


class Watched:
    """A sense with its window, and what is in it now."""

    def __init__(self) -> None:
        self.window = Window(600, 20_000)
        self.sense = HostSense(self.window, LABELS)

    def feed(self, record: HostRecord) -> None:
        self.sense.feed(record, engine)
        self.now = record.t

    def values(self) -> dict[str, float]:
        """`family{other labels}` -> value."""
        found = {}
        for labels, value in newest(self.window, self.now, 60):
            assert labels["cluster"] == "c" and labels["node"] == "n"
            rest = {k: v for k, v in labels.items() if k not in ("__name__", "cluster", "node")}
            inner = ",".join(f"{k}={v}" for k, v in sorted(rest.items()))
            found[f"{labels.name}{{{inner}}}"] = value
        return found


def record(t: float, *processes: ProcessSample, levels: Sequence[CgroupSample] = (), **more: object) -> HostRecord:
    return HostRecord(t=t, clock=t, processes=processes, cgroups=tuple(levels), **more)  # type: ignore[arg-type]


def process(pid: int = 7, part: str = "worker", **more: object) -> ProcessSample:
    values = {"target": "a", "start_time": 1, "cgroups": ("/pod/box",), "cpus_allowed": 8, **more}
    return ProcessSample(pid=pid, part=part, **values)  # type: ignore[arg-type]
