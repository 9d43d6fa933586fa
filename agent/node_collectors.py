"""The senses of the node itself, beside its targets: its GPUs, its processes and what they run on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kvitals.agent.collectors.gpu import GpuSense
from kvitals.agent.collectors.host import HostSense
from kvitals.agent.process_titles import ProcessRef
from kvitals.agent.records import OK, GpuRecord, HostRecord
from kvitals.agent.workers import Worker
from kvitals.series.window import Window

EngineOf = Callable[[str, str], str]
"""Names the engine of a target (by key) and a rank; the rank "" is the page as a whole."""


class NodeSenses:
    """Reads the node into a window. Each collector reads in a thread of its own; `feed` does no I/O."""

    def __init__(self, window: Window, labels: Mapping[str, str]) -> None:
        self._gpu = GpuSense(window, labels)
        self._host = HostSense(window, labels)
        self._threads = {name: Worker(name) for name in ("gpu", "host")}
        self._owners: dict[int, tuple[str, str]] = {}  # pid -> key and rank of its engine's target

    async def read_host(self, processes: Mapping[str, Sequence[ProcessRef]]) -> HostRecord:
        """Read the node and the `processes` of each target on it. Waits as long as the kernel does."""
        return await self._threads["host"].run(partial(self._host.read, time.time(), processes))

    async def read_gpus(self, *, exporter: bool) -> GpuRecord:
        """Read the GPUs. `exporter`: a DCGM exporter's page is watched, which has more than NVML without privileges."""
        return await self._threads["gpu"].run(partial(self._gpu.read, time.time(), exporter))

    def feed(self, record: HostRecord | GpuRecord, engine_of: EngineOf) -> None:
        """Take a look into the window. The host's, which tells whose the processes are, comes before the GPUs'."""
        if isinstance(record, HostRecord):
            self._owners = {p.pid: (p.target, p.rank) for p in record.processes if p.state == OK}
            self._host.feed(record, engine_of)
            return
        named = {pid: engine_of(target, rank) for pid, (target, rank) in self._owners.items()}
        self._gpu.feed(record, {pid: engine for pid, engine in named.items() if engine})
