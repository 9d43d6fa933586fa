"""The collector of parts of requests: spans over OTLP, request logs, and parts that others send, such as the tap."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvitals.agent.collector import NodeCollector
from kvitals.agent.collectors.boundary import CollectorRun, Name
from kvitals.agent.collectors.parts_in import PartsIn
from kvitals.agent.collectors.request_log import RequestLogs
from kvitals.agent.exports.otlp_export import OtlpOut
from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.logger import Logger
from kvitals.agent.node_context import NodeContext
from kvitals.agent.records import Record
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.request_pipeline import RequestSide
from kvitals.agent.requests.tenant_names import TenantNames, classes_as_listed, open_tenants
from kvitals.config import Config
from kvitals.series.slices import Steps

if TYPE_CHECKING:
    from kvitals.agent.collectors.otlp import OtlpSense

log = Logger()

PARTS = "parts"
"""What holds back all collectors of parts while parts wait to be ingested."""

PARTS_DEADLINE = 10.0
"""Seconds until a read of parts counts as hung."""

EXPORTS_SECONDS = 5.0
CLOCK_SOURCE = ""
"""The source of a record without parts, which only has the time."""

MAX_SENT = 40_000
"""Parts that were sent and wait for the next look."""


class RequestSenses:
    """Reads what observers of requests say. On one event loop."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] = time.time,
        refuses: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`directory` is where the places of logs are kept; `refuses`: whether there is no room for a kind of data."""
        self._refuses = refuses
        self._directory = directory
        self._clock = clock
        self._config = Config()
        self._tenants: TenantNames | None = None
        self._otlp: OtlpSense | None = None
        self._logs: RequestLogs | None = None
        self._sent: list[PartsRecord] = []
        self._sent_parts = 0

    async def open(self, config: Config) -> list[str]:
        """Listen and follow what the configuration names. Returns what to tell the user. Raises ConfigError."""
        said = self.configure(config)
        if config.otlp is not None and self._tenants is not None:
            from kvitals.agent.collectors.otlp import OtlpSense  # takes memory, so it is loaded where it is used

            self._otlp = OtlpSense(
                config.otlp,
                self._tenants,
                config.tenants.attributes,
                is_full=lambda: self._refuses("otlp"),
                hosts=config.agent.hosts,
            )
            said += await self._otlp.open()
        return said

    def configure(self, config: Config) -> list[str]:
        """Take another configuration: whose requests are, and the logs. What is listened on stays as it is. Returns
        what to tell the user. Raises ConfigError, and then nothing changed."""
        tenants, said = self._tenants, list[str]()
        if tenants is None and (config.otlp is not None or config.request_logs or config.tenants.classes):
            tenants, said = open_tenants(config.tenants)
        if tenants is not None:
            logs = RequestLogs(tenants, self._directory) if self._logs is None else self._logs
            logs.configure(config.request_logs)
            tenants.configure(config.tenants)
            if self._otlp is not None:
                self._otlp.configure(config.tenants.attributes)
            self._tenants, self._logs = tenants, logs
        self._config = config
        return said

    def tenants(self) -> TenantNames:
        """What makes pseudonyms, opened where it is not yet. Raises ConfigError."""
        if self._tenants is None:
            self._tenants, said = open_tenants(self._config.tenants)
            for line in said:
                log.warning("key of pseudonyms", said=line)
        return self._tenants

    @property
    def collectors(self) -> dict[str, Callable[[], Awaitable[Sequence[PartsRecord]]]]:
        """What reads each source of parts that is configured, by the name of its collector."""
        found: dict[str, Callable[[], Awaitable[Sequence[PartsRecord]]]] = {PARTS: self._read_sent}
        if self._otlp is not None:
            found["otlp"] = self._read_otlp
        if self._logs is not None:
            found["request_logs"] = self._logs.read
        return found

    async def _read_otlp(self) -> list[PartsRecord]:
        return self._otlp.read(self._clock()) if self._otlp is not None else []

    async def _read_sent(self) -> list[PartsRecord]:
        sent, self._sent, self._sent_parts = self._sent, [], 0
        return sent

    def take(self, record: PartsRecord) -> bool:
        """Keep parts that were sent for the next look. False where there is no room."""
        if self._refuses("parts") or self._sent_parts + len(record.parts) > MAX_SENT or len(self._sent) >= MAX_SENT:
            return False
        self._sent.append(msgspec.structs.replace(record, t=self._clock()))
        self._sent_parts += len(record.parts)
        return True

    def resolve(self, tenant: str) -> str | None:
        """The name behind a pseudonym, where it was seen here of late."""
        return self._tenants.resolve(tenant) if self._tenants is not None else None

    def class_of(self, tenant: str) -> str:
        """The class of a tenant, by what stands for it; empty where it has none."""
        return self._tenants.class_of(tenant) if self._tenants is not None else ""

    async def close(self) -> None:
        """Let go of ports and files."""
        if self._otlp is not None:
            await self._otlp.close()
        if self._logs is not None:
            self._logs.close()
        self._otlp = self._logs = None


class PartsCollector(NodeCollector[PartsRecord]):
    """Correlates parts of requests, from observers and from recordings, to request records."""

    records = (PartsRecord,)

    def __init__(self, context: NodeContext, observe: Callable[[RequestRecord], None]) -> None:
        """observe: is called with each request record."""
        self._context = context
        self._observe = observe
        self._side: RequestSide | None = None  # made once it is known whether the node is this one or a recorded one
        self._parts_in: PartsIn | None = None
        self._senses: RequestSenses | None = None
        self._otlp_out: OtlpOut | None = None
        self._exports = GaugeRows(context.window, "exports")
        self._exports_at = 0.0  # when it was written how they fare
        self._classes = classes_as_listed(context.config.tenants)

    @property
    def requests(self) -> RequestSide:
        """The request records, and what is counted of them."""
        if self._side is None:
            labels, engines = self._context.labels(), self._context.engines
            top = self._context.config.tenants.top
            self._side = RequestSide(
                self._context.window, labels, engines, engines.waited, top, class_of=self.tenant_class
            )
            self._side.observe = self._observe
            self._parts_in = PartsIn(self._context.window, labels)
        return self._side

    async def open(self, directory: Path) -> list[str]:
        """Listen to observers, and keep the places of logs in a directory. Returns what to show the user. Raises
        ConfigError."""
        self._senses = RequestSenses(directory, refuses=self._context.memory.refuses)
        return await self._senses.open(self._context.config)

    def tenants(self) -> TenantNames:
        """What makes pseudonyms. Raises ConfigError, and RuntimeError where `open` was not called."""
        if self._senses is None:
            raise RuntimeError("no listener for observers of requests: call `open` first")
        return self._senses.tenants()

    def send_traces(self, version: str) -> None:
        """From now on send request records as traces, where the configuration asks for it. version: of kvitals."""
        settings = self._context.config.otlp_out
        if settings is not None:
            self._otlp_out = OtlpOut(settings, self._context.node_labels(), self.requests.objective, version)
            self._otlp_out.open()
            self.requests.send = self._otlp_out.offer

    def configure(self, config: Config) -> None:
        """Use another configuration. Raises ConfigError, and then nothing changed."""
        if self._senses is not None:
            self._senses.configure(config)
        self._classes = classes_as_listed(config.tenants)

    def offer(self, record: PartsRecord) -> bool:
        """Keep parts that were sent for the next cycle. False where there is no room, or observers are not listened
        to."""
        return self._senses is not None and self._senses.take(record)

    def tenant_name(self, tenant: str) -> str | None:
        """The name behind a tenant's pseudonym, while it is remembered. For loopback and the terminal alone."""
        return self._senses.resolve(tenant) if self._senses is not None else None

    def tenant_class(self, tenant: str) -> str:
        """The class of a tenant, by its label; empty where it has none. Only the installation that made a recording can
        resolve its pseudonyms, so there tenants count as they are listed."""
        if self._senses is not None:
            return self._senses.class_of(tenant)
        return self._classes.get(tenant, "")

    @property
    def supported(self) -> bool:
        """Whether observers are listened to."""
        return self._senses is not None

    def reads(self, held: Container[str]) -> dict[Name, CollectorRun]:
        """Every source of parts; while parts are held, only the reads that still go on."""
        runs: dict[Name, CollectorRun] = {}
        for name, read in (self._senses.collectors if self._senses is not None else {}).items():
            if PARTS not in held or self._context.collectors.runs((name, "")):
                runs[name, ""] = CollectorRun(read, PARTS_DEADLINE)
        return runs

    def clock(self, records: Sequence[Record]) -> list[Record]:
        """A record of the time, where a cycle has no parts: time goes on for requests that are open."""
        if self._side is None or any(isinstance(record, PartsRecord) for record in records):
            return []
        return [PartsRecord(t=time.time(), source=CLOCK_SOURCE, parts=())]

    def ingest(self, record: PartsRecord) -> Steps[None]:
        side = self.requests
        if self._parts_in is not None:
            if record.source != CLOCK_SOURCE:
                self._parts_in.feed(record)
            self._parts_in.advance(record.t)
        yield from side.feed_steps(record)

    def advance(self, t: float) -> Steps[None]:
        """Complete the requests that are whole at `t`, and report every few seconds how sending them elsewhere
        fares."""
        if self._otlp_out is not None and not 0 <= t - self._exports_at < EXPORTS_SECONDS:
            self._exports_at = t
            self._exports.write(t, self._otlp_out.status().series(self._context.node_labels()))
        if self._side is not None:
            yield from self._side.advance_steps(t)

    def flush(self, t: float) -> None:
        if self._side is not None:
            self._side.finish(t)

    async def close(self) -> None:
        if self._senses is not None:
            await self._senses.close()
        if self._otlp_out is not None:
            await self._otlp_out.close()
