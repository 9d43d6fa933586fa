"""The collector of pods that find no node, where the targets are pods."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

from kvitals.agent.collector import NodeCollector
from kvitals.agent.collectors.boundary import CollectorError, CollectorRun, Name
from kvitals.agent.gauge_writer import KeyedRows
from kvitals.agent.kubernetes import KubernetesError, Pods
from kvitals.agent.node_context import NodeContext
from kvitals.agent.records import PendingPodsRecord, Record
from kvitals.agent.series_keys import Key, node_series
from kvitals.config import Kubernetes
from kvitals.series.slices import Steps

LIST_SECONDS = 30.0
"""How often the pods are listed. Each agent does, so a cluster of 100 nodes answers some 3 listings a second."""

LIST_DEADLINE = 60.0
COLLECTOR = "pending_pods"
MAX_POOLS = 200


class PendingPodsCollector(NodeCollector[PendingPodsRecord]):
    """Counts the pods of each pool that are unschedulable. Only with a selector: without it all pods of the cluster
    would be listed."""

    records = (PendingPodsRecord,)

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._rows: KeyedRows[Key] | None = None  # made once it is known whether the node is this one or a recorded one
        self._pods: Pods | None = None
        self._config: Kubernetes | None = None
        self._listed_at = float("-inf")  # monotonic

    @property
    def supported(self) -> bool:
        """Whether the configuration selects pods."""
        config = self._context.config.kubernetes
        return not self._context.is_recorded and config is not None and bool(config.selector)

    def reads(self, held: Container[str]) -> dict[Name, CollectorRun]:
        config = self._context.config.kubernetes
        if config is not self._config:
            self._config, self._pods = config, Pods(config) if config is not None else None
            self._listed_at = float("-inf")
        due = time.monotonic() - self._listed_at >= LIST_SECONDS
        if due or self._context.collectors.runs((COLLECTOR, "")):
            return {(COLLECTOR, ""): CollectorRun(self._read, LIST_DEADLINE)}
        return {}

    async def _read(self) -> Sequence[Record]:
        """Raises CollectorError."""
        self._listed_at = time.monotonic()
        pods = self._pods
        if pods is None:
            return []
        try:
            unschedulable = await pods.unschedulable()
        except KubernetesError as error:
            raise CollectorError("kubernetes", str(error)) from error
        tables = self._context.targets.tables.values()
        pools = tuple(sorted({table.labels.get("pool", "") for table in tables})[:MAX_POOLS])
        return [PendingPodsRecord(t=time.time(), unschedulable=unschedulable, pools=pools)]

    def ingest(self, record: PendingPodsRecord) -> Steps[None]:
        if self._rows is None:
            self._rows = KeyedRows(self._context.window, COLLECTOR, node_series(self._context.labels()))
        counts = dict.fromkeys(record.pools[:MAX_POOLS], 0) | dict(list(record.unschedulable.items())[:MAX_POOLS])
        row: dict[Key, float] = {}
        for pool, count in counts.items():
            row["kvitals_replicas_unschedulable", (("pool", pool),) if pool else ()] = float(max(count, 0))
        self._rows.write(record.t, row)
        yield from ()
