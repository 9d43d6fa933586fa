"""The collector of engine logs: start phases, capacities and events of the targets that name a log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvitals.agent.collector import NodeCollector
from kvitals.agent.collectors.boundary import CollectorError, CollectorRun, Name
from kvitals.agent.collectors.engine_log import EngineLog, EngineLogParser, open_log, read_log
from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.node_context import NodeContext
from kvitals.agent.records import EngineLogRecord, Record
from kvitals.agent.workers import Worker
from kvitals.rules.engine_log_map import LOG_EVENTS, LOG_PHASES, LOG_VALUES
from kvitals.series.slices import Steps
from kvitals.series.types import METRIC_NAME, Labels

MAX_LOGS = 64
"""Logs that are followed; further targets' logs are not read."""

LOG_DEADLINE = 8.0
"""Seconds until a read of a log counts as hung."""

CLOSE_SECONDS = 2.0
COLLECTOR = "engine_log"
COMPILATIONS = "kvitals_compilations_total"
EVENTS = "kvitals_engine_log_events_total"
STARTUP = "kvitals_startup_seconds"
VALUES = {
    "kv_cache_tokens": "kvitals_engine_log_kv_cache_tokens",
    "max_concurrency": "kvitals_engine_log_max_concurrency",
    "expert_balance": "kvitals_expert_balance_ratio",
}


@dataclass
class _Followed:
    """A log that is read, in a thread of its own."""

    where: str
    thread: Worker
    parser: EngineLogParser = field(default_factory=EngineLogParser)
    log: EngineLog | None = None

    def read(self, key: str, t: float) -> EngineLogRecord:
        """Blocking. Raises CollectorError."""
        try:
            if self.log is None:
                self.log = open_log(self.where)
            return read_log(self.log, self.parser, key, t)
        except (OSError, ValueError) as error:
            raise CollectorError("files", f"{self.where}: cannot be read: {error}") from error

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None


@dataclass
class _Stated:
    """What a target's log has stated so far."""

    startup: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    events: dict[str, float] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)  # events that have a sample; the first is 0, so that it can rise

    def add(self, record: EngineLogRecord) -> None:
        if record.restarted:
            self.startup, self.values = {}, {}
        if record.startup:
            self.startup = {phase: record.startup[phase] for phase in record.startup.keys() & LOG_PHASES}
        self.values |= {name: record.values[name] for name in record.values.keys() & LOG_VALUES}
        for event in record.events.keys() & LOG_EVENTS:
            self.events[event] = self.events.get(event, 0.0) + max(record.events[event], 0)

    def series(self, around: dict[str, str]) -> dict[Labels, float]:
        """The families of an engine whose labels are given."""
        row = {Labels({**around, METRIC_NAME: STARTUP, "phase": name}): v for name, v in self.startup.items()}
        row |= {Labels({**around, METRIC_NAME: VALUES[name]}): value for name, value in self.values.items()}
        for event, count in self.events.items():
            labels = {METRIC_NAME: COMPILATIONS} if event == "compilation" else {METRIC_NAME: EVENTS, "event": event}
            row[Labels({**around, **labels})] = count if event in self.begun else 0.0
        self.begun = set(self.events)
        return row


def _group(key: str) -> str:
    """The window's group of series for a target's log."""
    return f"engine log {key}"


class EngineLogCollector(NodeCollector[EngineLogRecord]):
    """Follows the logs that targets name."""

    records = (EngineLogRecord,)

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._followed: dict[str, _Followed] = {}  # by the target's key
        self._stated: dict[str, _Stated] = {}
        self._rows: dict[str, GaugeRows] = {}

    @property
    def supported(self) -> bool:
        """Whether a target of this node names a log, or did so in the last cycle."""
        return not self._context.is_recorded and bool(self._logs() or self._followed)

    def reads(self, held: Container[str]) -> dict[Name, CollectorRun]:
        """One read for each log; a log that a target no longer names is closed."""
        logs = self._logs()
        for key in [key for key, one in self._followed.items() if logs.get(key) != one.where]:
            self._close(key)
        for key, where in logs.items():
            self._followed.setdefault(key, _Followed(where, Worker(COLLECTOR)))
        return {(COLLECTOR, key): CollectorRun(partial(self._read, key), LOG_DEADLINE) for key in logs}

    def _logs(self) -> dict[str, str]:
        """Key -> log of the targets that name one, the first `MAX_LOGS` of them."""
        logs = {key: table.log for key, table in self._context.targets.tables.items() if table.log}
        return dict(list(logs.items())[:MAX_LOGS])

    async def _read(self, key: str) -> Sequence[Record]:
        followed = self._followed[key]
        return [await followed.thread.run(partial(followed.read, key, time.time()))]

    def ingest(self, record: EngineLogRecord) -> Steps[None]:
        key = record.target
        if key in self._context.targets.tables:
            stated = self._stated.setdefault(key, _Stated())
            stated.add(record)
            rows = self._rows.setdefault(key, GaugeRows(self._context.window, _group(key)))
            rows.write(record.t, stated.series(self._context.scraper.engine_labels(key, "")))
        yield from ()

    def forget(self, key: str) -> None:
        self._close(key)
        self._stated.pop(key, None)
        if self._rows.pop(key, None) is not None:
            self._context.window.drop_group(_group(key))

    def _close(self, key: str) -> None:
        """Let the log go, in the thread that may still read it."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.thread.post(followed.close)

    async def close(self) -> None:
        ends = [one.thread.run(one.close, CLOSE_SECONDS) for one in self._followed.values()]
        await asyncio.gather(*ends, return_exceptions=True)  # a log whose file system hangs is left
        self._followed = {}
