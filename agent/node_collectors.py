"""The collectors of the node itself, beside its targets: its GPUs, its processes and what they run on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Container, Mapping, Sequence
from functools import partial

from kvitals.agent.collector import NodeCollector
from kvitals.agent.collectors.boundary import CollectorRun, Name
from kvitals.agent.collectors.gpu import GpuSense
from kvitals.agent.collectors.host import HostSense
from kvitals.agent.discovery import Finder
from kvitals.agent.node_context import NodeContext
from kvitals.agent.records import OK, GpuRecord, HostRecord, Record
from kvitals.agent.workers import Worker
from kvitals.series.slices import Steps

WALK_SECONDS = 60.0
"""How often the processes of the node are searched for those of its engines."""
WALK_RETRY_SECONDS = 10.0
WALK_PATIENCE = 2.0
"""How long the host's collector waits for processes that are being searched."""

WALK_DEADLINE, NODE_DEADLINE = 20.0, 8.0
"""Seconds until a search, and a read of the host or the GPUs, counts as hung."""

ENDED = ("gone", "replaced")
GPU_EXPORTER = "dcgm"


class HostCollector(NodeCollector[HostRecord]):
    """Reads the node and the processes of its engines, in a thread of its own."""

    records = (HostRecord,)

    def __init__(self, context: NodeContext, finder: Finder, search: Worker) -> None:
        """search: the thread that searches processes."""
        self._context = context
        self._finder = finder
        self._search = search
        self._host: HostSense | None = None  # made once it is known whether the node is this one or a recorded one
        self._thread = Worker("host")
        self._owners: dict[int, tuple[str, str]] = {}  # pid -> key and rank of its engine's target
        self._walk_at = 0.0  # when processes are searched again
        self._walk_begun = float("-inf")
        self._walked = asyncio.Event()  # set while no search is under way
        self._walked.set()

    @property
    def supported(self) -> bool:
        """Whether a target runs on this node."""
        return bool(self._context.targets.here)

    def reads(self, held: Container[str]) -> dict[Name, CollectorRun]:
        """The search for processes, where it is due, and the host."""
        runs: dict[Name, CollectorRun] = {}
        here = self._context.targets.here
        if time.monotonic() >= self._walk_at or here.keys() - self._context.targets.processes.keys():
            runs["processes", ""] = CollectorRun(partial(self._walk, here), WALK_DEADLINE)
        runs["host", ""] = CollectorRun(self._read, NODE_DEADLINE)
        return runs

    def search_again(self) -> None:
        """Search the processes in the next cycle: an engine was started."""
        self._walk_at = 0.0

    async def _walk(self, here: Mapping[str, str]) -> Sequence[Record]:
        """Search the node's processes for those of the engines. here: key -> URL of each target."""
        targets = self._context.targets
        self._walk_begun = time.monotonic()
        self._walk_at = self._walk_begun + WALK_SECONDS
        self._walked.clear()
        try:
            processes, targets.addresses = await self._search.run(
                lambda: (self._finder.families(here.values()), self._finder.addresses())
            )
        except BaseException:
            targets.processes |= dict.fromkeys(here.keys() - targets.processes.keys(), ())
            self._walk_at = time.monotonic() + WALK_RETRY_SECONDS
            raise
        finally:
            self._walked.set()
        targets.processes = {key: processes[url] for key, url in here.items() if key in targets.tables}
        return ()

    async def _read(self) -> Sequence[Record]:
        """Read the node, once the processes are known; a search for them that hangs is not waited for."""
        patience = self._walk_begun + WALK_PATIENCE - time.monotonic()
        if patience > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._walked.wait(), patience)
        if self._host is None:
            self._host = HostSense(self._context.window, self._context.node_labels())
        host = await self._thread.run(partial(self._host.read, time.time(), self._context.targets.processes))
        if any(process.state in ENDED for process in host.processes):
            self.search_again()  # the engine was restarted, or changed its workers
        return [host]

    def ingest(self, record: HostRecord) -> Steps[None]:
        engine_of = self._context.scraper.engine_of
        self._context.engines.found({p.pid: engine_of(p.target, p.rank) for p in record.processes})
        self._owners = {p.pid: (p.target, p.rank) for p in record.processes if p.state == OK}
        if self._host is None:
            self._host = HostSense(self._context.window, {})  # of a recording
        self._host.feed(record, engine_of)
        yield from ()

    def owners(self) -> dict[int, str]:
        """The engine of each process of an engine, by process id, as of the last record."""
        engine_of = self._context.scraper.engine_of
        engines = {pid: engine_of(target, rank) for pid, (target, rank) in self._owners.items()}
        return {pid: engine for pid, engine in engines.items() if engine}


class GpuCollector(NodeCollector[GpuRecord]):
    """Reads the GPUs, in a thread of its own. A host record, which has the owners of processes, comes before."""

    records = (GpuRecord,)

    def __init__(self, context: NodeContext, host: HostCollector) -> None:
        self._context = context
        self._host = host
        self._gpu: GpuSense | None = None  # made once it is known whether the node is this one or a recorded one
        self._thread = Worker("gpu")

    @property
    def supported(self) -> bool:
        """Whether a target runs on this node."""
        return bool(self._context.targets.here)

    def reads(self, held: Container[str]) -> dict[Name, CollectorRun]:
        return {("gpu", ""): CollectorRun(self._read, NODE_DEADLINE)}

    async def _read(self) -> Sequence[Record]:
        """Read the GPUs; where a DCGM exporter's page is watched, only what it does not have without privileges."""
        if self._gpu is None:
            self._gpu = GpuSense(self._context.window, self._context.node_labels())
        exporter = any(self._context.system(key) == GPU_EXPORTER for key in self._context.targets.here)
        return [await self._thread.run(partial(self._gpu.read, time.time(), exporter))]

    def ingest(self, record: GpuRecord) -> Steps[None]:
        if self._gpu is None:
            self._gpu = GpuSense(self._context.window, {})  # of a recording
        self._gpu.feed(record, self._host.owners())
        yield from ()
