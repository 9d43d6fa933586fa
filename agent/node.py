"""One node's telemetry: its collectors, the targets that they watch and the window that they fill.

    node = Node(config)
    await node.open(["http://127.0.0.1:8000"])
    for record in await node.collect():      # I/O, all collectors at the same time
        node.ingest(record)                  # none, so a recorded incident takes the path of a live one

What the node collects is its registry, a table of collectors by the records that they make.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvitals.agent.collector import NodeCollector
from kvitals.agent.collectors.probe import probe
from kvitals.agent.discovery import Finder
from kvitals.agent.engine_log_collector import EngineLogCollector
from kvitals.agent.kv_event_collectors import KvEventsCollector
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.node_collectors import GpuCollector, HostCollector
from kvitals.agent.node_context import NodeContext
from kvitals.agent.page_collector import PageCollector
from kvitals.agent.pending_pods_collector import PendingPodsCollector
from kvitals.agent.records import ProbeRecord, Record, decode, encode
from kvitals.agent.request_collectors import PartsCollector
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.request_pipeline import RequestSide
from kvitals.agent.requests.tenant_names import tenants_of_one_look
from kvitals.agent.target_facts import FactsReader
from kvitals.agent.target_sources import Sources, TargetList
from kvitals.agent.workers import Worker
from kvitals.config import Config, ConfigError
from kvitals.rules.engine_map import load_map, systems
from kvitals.series.recordings import Record as Recorded
from kvitals.series.slices import Steps, complete

LEARN_SECONDS = 10.0
LEARN_LEAST_SECONDS = 0.5  # however late a cycle is


class Node:
    """What is watched on one node."""

    def __init__(self, config: Config, slo_sources: Mapping[str, str] | None = None) -> None:
        """slo_sources: objective -> where it was set, for those not from the file."""
        self.context = NodeContext(config, slo_sources)
        self.window = self.context.window
        self.collectors = self.context.collectors
        """How each collector fares."""
        self.watched = self.context.targets
        self._finder = Finder({system: load_map(system) for system in systems()})
        self.sources = Sources(config, self._finder, collectors=self.collectors)
        search = Worker("processes")
        self.pages = PageCollector(self.context, self._restarted)
        self.host = HostCollector(self.context, self._finder, search)
        self.gpus = GpuCollector(self.context, self.host)
        self.kv_events = KvEventsCollector(self.context)
        self.parts = PartsCollector(self.context, self.kv_events.request)
        self.engine_logs = EngineLogCollector(self.context)
        self.registry: tuple[NodeCollector[Any], ...] = (
            self.pages,
            self.host,
            self.gpus,
            self.parts,
            self.kv_events,
            self.engine_logs,
            PendingPodsCollector(self.context),
        )
        """All collectors, in the order in which their records are ingested and time advances."""
        self._by_record: dict[type[Record], NodeCollector[Any]] = {
            kind: collector for collector in self.registry for kind in collector.records
        }
        self._facts = FactsReader(self.context, self._finder, search, self.kv_events.identified)

    @property
    def config(self) -> Config:
        """The configuration now."""
        return self.context.config

    @property
    def targets(self) -> list[str]:
        """The URLs that are watched."""
        return self.watched.urls

    @property
    def requests(self) -> RequestSide:
        """The request records, and what is counted of them."""
        return self.parts.requests

    @property
    def ledger(self) -> LedgerSide | None:
        """What is known of engines' blocks; None while no engine reported any."""
        return self.kv_events.ledger

    async def open(
        self,
        urls: Sequence[str] = (),
        *,
        patient: bool = False,
        requests: Path | None = None,
        once: bool = False,
    ) -> list[str]:
        """Watch the URLs, else the configured targets, else the engines on this node. Returns what to show the user.

        patient: targets may come later. requests: listen to observers of requests and to KV events, too, and keep the
        places of logs in this directory. once: for one cycle, listen to the KV events of engines that several may
        listen to, and leave nothing behind. Raises ConfigError where there is nothing to watch, unless it is patient
        and a source is configured that may have targets later, and where a configured target cannot be watched.
        """
        self.sources = Sources(self.config, self._finder, urls, self.collectors)
        patient = patient and self.sources.may_grow
        for target in self.config.targets:
            self.watched.check(target, self.config)
        notes = await self.refresh(at_once=True, first=True)
        if not self.targets and not patient:
            raise ConfigError(
                "no engine found on this node. Name one: kvitals triage http://HOST:PORT, or [[target]] in kvitals.toml"
                + "".join(f"\n{line}" for line in notes)
            )
        if requests is not None:
            notes += await self.parts.open(requests)
            self.kv_events.open(self.parts.tenants)
        elif once:
            self.kv_events.open(partial(tenants_of_one_look, self.config.tenants), binds=False)
        return notes if self.targets else [*notes, "no targets yet; the agent watches them when they appear"]

    async def refresh(self, *, at_once: bool = False, first: bool = False) -> list[str]:
        """Ask the sources for their targets and watch those that there are. See `Sources.look` and `adapt`."""
        return await self.adapt(await self.sources.look(at_once), first=first)

    async def adapt(self, wanted: TargetList, *, first: bool = False) -> list[str]:
        """Watch the targets of a list and no others: those that their source no longer names are forgotten. An engine
        that was discovered among the processes and went away stays, as one that is down.

        first: there was nothing before, so no note names new targets. Returns what to show the user.
        """
        if wanted.config is not self.config:
            return []  # it was begun before the configuration changed
        changes = self.watched.adapt(wanted, first=first)
        for key in changes.forgotten:
            self._facts.forget(key)
            for collector in self.registry:
                collector.forget(key)
        for key in changes.added:
            self._restarted(key, "")
        for key in changes.reconfigured:
            self._facts.configured(key)
        return [*changes.notes, *await self._facts.learn(LEARN_SECONDS)]

    def reconfigure(self, config: Config, slo_sources: Mapping[str, str] | None = None) -> None:
        """Use another configuration; its targets are watched from the next refresh on. What was given to others when
        this node was made (the window, the labels of the node) stays. Raises ConfigError, and then nothing changed."""
        agent = msgspec.structs.replace(config.agent, window=self.config.agent.window)
        config = msgspec.structs.replace(config, agent=agent, labels=self.config.labels)
        for target in config.targets:
            self.watched.check(target, config)
        self.parts.configure(config)
        self.kv_events.configure(config.kv_events)
        self.context.config = config
        self.context.slo_sources = dict(slo_sources or {})
        self.sources.configure(config)

    async def close(self) -> None:
        """Release connections, ports and files, of all collectors at the same time: what one waits for delays no other.

        Raises what the first of them raises, once all are closed."""
        self.collectors.cancel()
        ends = await asyncio.gather(*(one.close() for one in self.registry), return_exceptions=True)
        for error in (end for end in ends if isinstance(end, BaseException)):
            raise error

    def expect(self, meta: Mapping[str, Any]) -> None:
        """Watch the targets of a recording, as its header names them. Raises ConfigError."""
        self.context.is_recorded = True
        self.watched.expect(meta, self.config, self.context.labels())

    async def read(self) -> list[Recorded]:
        """Run every collector once, all at the same time, and return their records as a recording keeps them."""
        return [encode(record) for record in await self.collect()]

    def check_memory(self) -> None:
        """Refuse new data near the memory limit, and accept it again below. For the agent, which runs for weeks: a
        replay or a single triage reads what it was given."""
        memory, scraper = self.context.memory, self.context.scraper
        memory.check()
        self.window.takes_new_series = not memory.refusing
        targets = len(scraper.keys)
        series, pages, bodies = memory.shares(targets, self.config.agent.memory_limit is not None)
        self.window.share(series)
        self.window.balance()
        scraper.page_shares.divide(pages, targets)
        scraper.body_shares.divide(bodies, targets)
        memory.refused |= {
            kind: count
            for kind, count in (
                ("rows_of_targets", self.window.dropped_rows),
                ("series_of_targets", self.window.label_shares.refused),
                ("pages_of_targets", scraper.page_shares.refused + scraper.body_shares.refused),
            )
            if count
        }

    async def collect(self, patience: float | None = None, held: Container[str] = ()) -> list[Record]:
        """Run every collector, all at the same time, each with a deadline. Raises nothing that a collector raises.

        patience: seconds that are waited; the records of a collector that takes longer come with a later call. held:
        keys of targets that are not scraped now, and `PARTS` where no parts of requests are collected, because what
        came from them is not ingested yet.
        """
        begun = time.monotonic()
        runs = {
            name: run
            for collector in self.registry
            if collector.supported
            for name, run in collector.reads(held).items()
        }
        records = await self.collectors.gather(runs, patience)
        left = LEARN_SECONDS if patience is None else patience - (time.monotonic() - begun)
        await self._facts.learn(min(max(left, LEARN_LEAST_SECONDS), LEARN_SECONDS))
        self.pages.report_shares()
        records += self.parts.clock(records)
        self.collectors.write(time.time())
        return [*self._facts.drain(), *records]

    async def probe(self, engines: Container[str] | None = None) -> list[ProbeRecord]:
        """Send each target a one-token request, or those alone whose page has one of these engines. Takes up to
        `PROBE_TIMEOUT_SECONDS`."""
        keys = [key for key in self.watched.tables if engines is None or self.pages.serves_any(key, engines)]
        models = [(key, self.pages.model(key)) for key in keys]
        return list(await asyncio.gather(*(probe(k, _root(k), m) for k, m in models if m)))

    def ingest_recorded(self, recorded: Recorded) -> None:
        """Ingest one record of a recording."""
        record = decode(recorded)
        if record is not None:
            self.ingest(record)

    def ingest(self, record: Record) -> None:
        """Put one record, as `collect` gives it, into the window."""
        complete(self.ingest_steps(record))

    def ingest_steps(self, record: Record) -> Steps[None]:
        """The same in steps, one record after another: pages are parsed in a thread, floods ingested in slices."""
        collector = self._by_record[type(record)]
        if isinstance(record, PartsRecord):  # parts count before the requests of their time are complete
            yield from collector.ingest(record)
            self.kv_events.expect_requests(record)
            yield from self.advance_steps(record.t)
        else:
            yield from self.advance_steps(record.t)
            yield from collector.ingest(record)

    def advance_steps(self, t: float) -> Steps[None]:
        """It is `t`, seconds since the epoch: settle what is complete, in steps. Each record does so."""
        for collector in self.registry:
            yield from collector.advance(t)

    def flush(self, t: float) -> None:
        """A recording ends at `t`, seconds since the epoch: settle what waits for more, and write it down."""
        for collector in self.registry:
            collector.flush(t)

    def _restarted(self, key: str, version: str) -> None:
        """A target is new, or its engine was restarted."""
        self.host.search_again()
        self._facts.want(key, version)


def _root(key: str) -> str:
    parts = urlsplit(key)
    return f"{parts.scheme}://{parts.netloc}"
