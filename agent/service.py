"""One node's telemetry: targets, senses and the window that they fill.

`read` does all I/O and yields records in their capture form; `feed` takes records, from `read` or from a
recording, and does none. So a recorded incident takes the path of a live one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvitals.agent import discovery, objectives
from kvitals.agent.collectors import scrape
from kvitals.agent.collectors.boundary import REASONS, CollectorError, CollectorRun, Collectors, Name
from kvitals.agent.collectors.kv_events_in import KvEventsIn
from kvitals.agent.collectors.parts_in import PartsIn
from kvitals.agent.collectors.probe import probe
from kvitals.agent.collectors.scrape import ScrapeSense
from kvitals.agent.discovery import DiscoveryError, Finder
from kvitals.agent.engine_resolver import SeenEngines
from kvitals.agent.exports.otlp import OtlpOut
from kvitals.agent.families import CONFIGURATION, VERSION
from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.ingest_share import OVER_SHARE, IngestShares
from kvitals.agent.kv_event_collectors import KvEventSenses, KvTarget
from kvitals.agent.ledger.event import KvEventsRecord
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.memory_limit import MemoryLimit, limit_of
from kvitals.agent.node_collectors import NodeSenses
from kvitals.agent.process_titles import ProcessRef
from kvitals.agent.records import FactsRecord, GpuRecord, HostRecord, ProbeRecord, Record, ScrapeRecord
from kvitals.agent.request_collectors import RequestSenses
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.request_pipeline import RequestSide
from kvitals.agent.requests.tenant_names import classes_as_listed, tenants_of_one_look
from kvitals.agent.targets import Sources, TargetList, scrape_target
from kvitals.agent.workers import Worker
from kvitals.config import Config, ConfigError, TargetTable
from kvitals.config.hosts import is_loopback
from kvitals.rules.engine_map import load_map, systems
from kvitals.series.recordings import Record as Captured
from kvitals.series.slices import Steps, complete
from kvitals.series.types import Labels
from kvitals.series.window import Window

MAX_SERIES = 200_000
MAX_TARGET_SERIES = 20_000  # within the window, those that ended included
WALK_SECONDS = 60.0
"""How often the processes of the node are walked, to find those of its engines."""
WALK_RETRY_SECONDS = 10.0
WALK_PATIENCE = 2.0
"""How long the host's collector waits for processes that are being searched."""

WALK_DEADLINE, NODE_DEADLINE, PARTS_DEADLINE, LEARN_SECONDS = 20.0, 8.0, 10.0, 10.0
LEARN_LEAST_SECONDS = 0.5  # however late a cycle is
SCRAPE_REQUESTS = 6
"""Seconds until a collector counts as hung, and how many requests of one scrape may each take the target's timeout."""

EXPORTS_SECONDS = 5.0
ENDED = ("gone", "replaced")
NOBODY = ""
"""The source of a record of parts that only says what time it is."""
GPU_EXPORTER = "dcgm"

PARTS = "parts"
PARTS_COLLECTORS = (PARTS, "otlp", "request_logs")
"""What collects parts of requests, and the word for all of it in `Node.collect`."""

NEAR_LIMIT = "{count} batches were refused: the agent is near its memory limit."

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> Captured:
    """A record as a capture keeps it."""
    sense = type(record).__struct_config__.tag
    return Captured(record.t, str(sense), record.target, _encoder.encode(record))


def decode(captured: Captured) -> Record | None:
    """A record of a capture; None for one of a sense that this version does not know, or that is damaged."""
    try:
        record = _decoder.decode(captured.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.t == captured.t else None


class _Recorded(msgspec.Struct):
    """A target in a recording's header."""

    url: str
    name: str = ""
    labels: dict[str, str] = {}
    prefixes: dict[str, str] = {}


class Node:
    """What is watched on one node. `slo_sources`: objective -> where it was set, for those not from the file."""

    def __init__(self, config: Config, slo_sources: Mapping[str, str] | None = None) -> None:
        self.config = config
        self.window = Window(config.agent.window, MAX_SERIES, MAX_TARGET_SERIES)
        self._slo_sources = dict(slo_sources or {})
        self.memory = MemoryLimit(limit_of(config.agent.memory_limit))
        self._sense = ScrapeSense(self.window, refuses=self.memory.refuses)
        self._finder = Finder({system: load_map(system) for system in systems()})
        self.collectors = Collectors(self.window, self._node_labels())
        self._shares = IngestShares()
        self._discovery = Worker("processes")
        self._sources = Sources(config, self._finder, collectors=self.collectors)
        self._targets: dict[str, TargetTable] = {}  # by key
        self._scraped: dict[str, scrape.ScrapeTarget] = {}
        self._refused: dict[str, str] = {}  # URL of a target that can not be watched -> why
        self._pending: list[Record] = []  # facts to hand out with the next read
        self._senses: NodeSenses | None = None  # once it is known whether the node is this one or a recorded one
        self._processes: dict[str, tuple[ProcessRef, ...]] = {}  # of the targets on this node, by key
        self._walk_at = 0.0  # when processes are looked for again
        self._walk_begun = float("-inf")
        self._walked = asyncio.Event()  # set while no walk is under way
        self._walked.set()
        self._requests: RequestSide | None = None  # once some part came, which tells whether the node is this one
        self._request_senses: RequestSenses | None = None
        self._parts_in: PartsIn | None = None
        self._otlp_out: OtlpOut | None = None
        self._kv_events: KvEventSenses | None = None
        self._kv_events_in = KvEventsIn(self.window)
        self._ledger: LedgerSide | None = None  # once some engine said what it stored
        self._addresses: frozenset[str] = frozenset()  # of this machine
        self._behind: dict[str, discovery.DiscoveredTarget] = {}  # the processes of targets on this node, by key
        self._flags_wanted: dict[str, str] = {}  # targets whose flags are to be read, by key -> version
        self._exports = GaugeRows(self.window, "exports")
        self._exports_at = 0.0  # when it was said how they fare
        self._is_recorded = False
        self._engines = SeenEngines(self.window)
        self._listed = classes_as_listed(config.tenants)

    @property
    def targets(self) -> list[str]:
        """The URLs that are watched."""
        return [target.url for target in self._targets.values()]

    @property
    def sources_failing(self) -> tuple[str, ...]:
        """The sources of targets that could not be read at the last look."""
        return self._sources.failing

    @property
    def requests(self) -> RequestSide:
        """What is known of requests."""
        if self._requests is None:
            labels = self._recorded_labels() if self._is_recorded else self._node_labels()
            top = self.config.tenants.top
            self._requests = RequestSide(
                self.window, labels, self._engines, self._engines.waited, top, class_of=self.tenant_class
            )
            self._requests.observe = self._tell_ledger
            self._parts_in = PartsIn(self.window, labels)
        return self._requests

    @property
    def ledger(self) -> LedgerSide | None:
        """What is known of engines' blocks; None while no engine told any."""
        return self._ledger

    def send_traces(self, version: str) -> None:
        """From now on send records of requests as traces, where the configuration says so. `version`: of kvitals."""
        settings = self.config.otlp_out
        if settings is not None:
            self._otlp_out = OtlpOut(settings, self._node_labels(), self.requests.objective, version)
            self._otlp_out.open()
            self.requests.send = self._otlp_out.offer

    def take_parts(self, record: PartsRecord) -> bool:
        """Keep parts that somebody sent for the next `read`. False where there is no room, or nobody listens."""
        return self._request_senses is not None and self._request_senses.take(record)

    def tenant_name(self, tenant: str) -> str | None:
        """The name behind a tenant's pseudonym, while it is remembered. For loopback and the terminal alone."""
        return self._request_senses.resolve(tenant) if self._request_senses is not None else None

    def tenant_class(self, tenant: str) -> str:
        """The class of a tenant, by what stands for it; empty where it has none. Whose names stand behind a recording's
        pseudonyms only the installation that made it can tell, so there they count as they are listed."""
        if self._request_senses is not None:
            return self._request_senses.class_of(tenant)
        return self._listed.get(tenant, "")

    @property
    def meta(self) -> dict[str, Any]:
        """What a recording must know of the targets besides their records."""
        told = [
            {"url": t.url, "name": t.name, "labels": t.labels, "prefixes": self._scraped[key].prefixes}
            for key, t in self._targets.items()
        ]
        return {"targets": told}

    async def open(
        self,
        urls: Sequence[str] = (),
        *,
        patient: bool = False,
        requests: Path | None = None,
        once: bool = False,
    ) -> list[str]:
        """Watch the URLs, else the configured targets, else the engines on this node. Returns what to tell the user.

        patient: targets may come later. requests: listen to what is said of requests and to KV events, too, and keep
        the places of logs in this directory. once: for one look, listen to the KV events of engines that several may
        listen to, and leave nothing behind. Raises ConfigError where there is nothing to watch, unless it is patient
        and a source is configured that may have targets later, and where a configured target can not be watched.
        """
        self._sources = Sources(self.config, self._finder, urls, self.collectors)
        patient = patient and self._sources.may_grow
        for target in self.config.targets:
            self._check(target)
        said = await self.refresh(at_once=True, fresh=True)
        if not self._targets and not patient:
            raise ConfigError(
                "no engine found on this node. Name one: kvitals triage http://HOST:PORT, or [[target]] in kvitals.toml"
                + "".join(f"\n{line}" for line in said)
            )
        if requests is not None:
            self._request_senses = RequestSenses(requests, refuses=self.memory.refuses)
            said += await self._request_senses.open(self.config)
            self._kv_events = KvEventSenses(self.config.kv_events, self._request_senses.tenants)
        elif once:
            tenants = partial(tenants_of_one_look, self.config.tenants)
            self._kv_events = KvEventSenses(self.config.kv_events, tenants, binds=False)
        return said if self._targets else [*said, "no targets yet; they are watched when they come"]

    async def refresh(self, *, at_once: bool = False, fresh: bool = False) -> list[str]:
        """Look for targets and watch those that there are. See `look` and `adapt`."""
        return await self.adapt(await self.look(at_once), fresh=fresh)

    async def look(self, at_once: bool = False) -> TargetList:
        """Ask the sources for their targets; what is watched stays as it is. at_once: targets files that changed just
        now are read."""
        return await self._sources.look(at_once)

    async def adapt(self, look: TargetList, *, fresh: bool = False) -> list[str]:
        """Watch the targets of a look and no others: those that their source no longer names are forgotten. An engine
        that was found among the processes and went away stays, as one that is down.

        fresh: there was nothing before, so what appears is nothing to speak of. Returns what to tell the user.
        """
        if look.config is not self.config:
            return []  # it was begun before the configuration changed
        said = list(look.said)
        wanted = {target.url: target for target in look.targets}
        for key, target in list(self._targets.items()):
            if target.url not in wanted:
                self._forget(key)
                said.append(f"{target.url}: no longer named, forgotten")
        self._refused = {url: why for url, why in self._refused.items() if url in wanted}
        keys = {target.url: key for key, target in self._targets.items()}
        for target in look.targets:
            try:
                said += self._take(target, keys.get(target.url), fresh)
                self._refused.pop(target.url, None)
            except ConfigError as error:
                if self._refused.get(target.url) != str(error):
                    said.append(f"not watched: {error}")
                self._refused[target.url] = str(error)
        return [*said, *await self._learn(LEARN_SECONDS)]

    async def files_changed(self) -> bool:
        """Whether targets files name other targets than at the last look, so that it is time for another."""
        return await self._sources.files_changed()

    def reconfigure(self, config: Config, slo_sources: Mapping[str, str] | None = None) -> None:
        """Take another configuration; its targets are watched from the next refresh on. What was given to others when
        this node was made (the window, the labels of the node) stays. Raises ConfigError, and then nothing changed."""
        agent = msgspec.structs.replace(config.agent, window=self.config.agent.window)
        config = msgspec.structs.replace(config, agent=agent, labels=self.config.labels)
        for target in config.targets:
            self._check(target, config)
        if self._request_senses is not None:
            self._request_senses.configure(config)
        if self._kv_events is not None:
            self._kv_events.configure(config.kv_events)
        self.config = config
        self._listed = classes_as_listed(config.tenants)
        self._slo_sources = dict(slo_sources or {})
        self._sources.configure(config)

    async def close(self) -> None:
        self.collectors.cancel()
        await self._sense.close()
        if self._request_senses is not None:
            await self._request_senses.close()
        if self._kv_events is not None:
            await self._kv_events.close()
        if self._otlp_out is not None:
            await self._otlp_out.close()

    def expect(self, meta: Mapping[str, Any]) -> None:
        """Watch the targets of a recording, as its header names them. Raises ConfigError.

        A recording comes from anywhere, so only address, name, labels and prefixes are taken from it: no token file.
        """
        self._is_recorded = True
        try:
            for found in msgspec.convert(meta.get("targets", []), list[_Recorded]):
                target = TargetTable(url=found.url, name=found.name, labels=found.labels, prefixes=found.prefixes)
                self._add(target, self._recorded_labels())
        except ValueError as error:
            raise ConfigError(f"the recording names a target that can not be one: {error}") from error

    async def read(self) -> list[Captured]:
        """Run every collector once, all at the same time, and return their records as a capture keeps them."""
        return [encode(record) for record in await self.collect()]

    def check_memory(self) -> None:
        """Refuse new data near the memory limit, and take it again below. For the agent, which runs for weeks: a replay
        or a single triage reads what it was given."""
        self.memory.check()
        self.window.takes_new_series = not self.memory.refusing

    async def collect(self, patience: float | None = None, held: Container[str] = ()) -> list[Record]:
        """Run every collector, all at the same time, each with a deadline. Raises nothing that a collector raises.

        patience: seconds that are waited; the records of a collector that takes longer come with a later call. held:
        keys of targets that are not scraped now, and `PARTS` where no parts of requests are collected, because what
        came from them is not ingested yet.
        """
        begun = time.monotonic()
        found = await self.collectors.gather(self._due(self._runs(), held), patience)
        left = LEARN_SECONDS if patience is None else patience - (time.monotonic() - begun)
        await self._learn(min(max(left, LEARN_LEAST_SECONDS), LEARN_SECONDS))
        for key in self._scraped:
            if self._shares.is_over(key, self.config.agent.interval):
                self.collectors.failed(("scrape", key), CollectorError(OVER_SHARE, REASONS[OVER_SHARE]))
        if self._requests is not None and not any(isinstance(record, PartsRecord) for record in found):
            found.append(PartsRecord(t=time.time(), source=NOBODY, parts=()))  # time goes on for what is open
        records, self._pending = [*self._pending, *found], []
        self.collectors.write(time.time())
        return records

    def ingested(self, key: str, seconds: float) -> None:
        """A page of a target took `seconds` of CPU time to ingest."""
        if key in self._scraped:
            self._shares.ingested(key, seconds)
            self.collectors.ingested(("scrape", key), seconds)

    def _due(self, runs: Mapping[Name, CollectorRun], held: Container[str]) -> dict[Name, CollectorRun]:
        """The collectors that are run now, those that still run among them: their records are taken."""
        due: dict[Name, CollectorRun] = {}
        for (collector, key), run in runs.items():
            if not self.collectors.runs((collector, key)):
                if collector == "scrape":
                    if key in held or not self._shares.is_due(key, self.config.agent.interval):
                        continue
                    self._shares.scraped(key)
                elif collector in PARTS_COLLECTORS and PARTS in held:
                    continue
            due[collector, key] = run
        return due

    def _runs(self) -> dict[Name, CollectorRun]:
        """What every collector does in this cycle."""
        runs = {
            ("scrape", key): CollectorRun(partial(self._read, key), SCRAPE_REQUESTS * one.timeout)
            for key, one in self._scraped.items()
        }
        here = {key: target.url for key, target in self._targets.items() if self._is_here(key)}
        if here:
            if time.monotonic() >= self._walk_at or here.keys() - self._processes.keys():
                runs["processes", ""] = CollectorRun(partial(self._walk, here), WALK_DEADLINE)
            runs["host", ""] = CollectorRun(self._read_host, NODE_DEADLINE)
            runs["gpu", ""] = CollectorRun(self._read_gpus, NODE_DEADLINE)
        if self._request_senses is not None:
            for name, read in self._request_senses.collectors.items():
                runs[name, ""] = CollectorRun(read, PARTS_DEADLINE)
        if self._kv_events is not None:
            runs["kv_events", ""] = CollectorRun(self._read_kv_events, PARTS_DEADLINE)
        return runs

    async def probe(self) -> list[Captured]:
        """Send each target a one-token request."""
        keys = [(key, self._model(key)) for key in self._targets]
        return [encode(r) for r in await asyncio.gather(*(probe(k, _root(k), m) for k, m in keys if m))]

    def feed(self, captured: Captured) -> None:
        """Take one record into the window."""
        record = decode(captured)
        if record is not None:
            self.ingest(record)

    def ingest(self, record: Record) -> None:
        """Take one record, as `collect` gives it, into the window."""
        complete(self.ingest_steps(record))

    def ingest_steps(self, record: Record) -> Steps[None]:
        """The same in steps, one record after another: pages are parsed in a thread, floods taken in slices."""
        self._say_exports(record.t)
        if isinstance(record, PartsRecord):
            yield from self._feed_parts(record)
            return
        yield from self.advance_steps(record.t)
        if isinstance(record, HostRecord | GpuRecord):
            if isinstance(record, HostRecord):
                self._engines.found({p.pid: self._engine_of(p.target, p.rank) for p in record.processes})
            if self._senses is None:
                self._senses = NodeSenses(self.window, {})  # of a recording
            self._senses.feed(record, self._engine_of)
            return
        if record.target not in self._sense.keys:
            return
        if isinstance(record, ProbeRecord):
            self._say_probe(record)
            return
        if isinstance(record, ScrapeRecord):
            self._say_objectives(record.target)
        if isinstance(record, KvEventsRecord):
            self._kv_events_in.feed(record, self._engine_labels(record.target, record.rank))
            yield from self._feed_ledger(record)
            return
        yield from self._sense.feed_steps(record)
        if isinstance(record, ScrapeRecord):
            self._name_engines(record.target)

    def flush(self, t: float) -> None:
        """A recording ends at `t`, seconds since the epoch: settle what waits for more, and write it down."""
        if self._requests is not None:
            self._requests.finish(t)
        if self._ledger is not None:
            self._ledger.flush(t)

    def advance_steps(self, t: float) -> Steps[None]:
        """It is `t`, seconds since the epoch: give out the requests that are whole, in steps. Each record does so."""
        if self._requests is not None:
            yield from self._requests.advance_steps(t)
        if self._ledger is not None:
            yield from self._ledger.advance_steps(t)

    def complaints(self) -> list[str]:
        """For each target whose last scrape failed: its URL, why, and what to do."""
        last = {t.url: self._sense.translator(key).status.last for key, t in self._targets.items()}
        return [f"{url}: {outcome.message}" for url, outcome in last.items() if not outcome.ok]

    @property
    def unreachable(self) -> bool:
        """Whether the last scrape of every target met no server at all."""
        last = [self._sense.translator(key).status.last.reason for key in self._targets]
        return bool(last) and all(reason in scrape.UNREACHABLE for reason in last)

    def _own_labels(self, target: TargetTable) -> dict[str, str]:
        """The labels that everything of this node carries; an engine elsewhere is not of this node."""
        here = is_loopback(urlsplit(target.url).hostname or "")
        labels = {"cluster": self.config.labels.cluster, "node": self.config.labels.node if here else ""}
        return {name: value for name, value in labels.items() if value}

    def _check(self, target: TargetTable, config: Config | None = None) -> None:
        """Raises ConfigError where a target can not be watched."""
        made = scrape_target(target, {}, config or self.config)
        try:
            scrape.check(made)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{target.url}: {error}") from error

    def _take(self, target: TargetTable, key: str | None, fresh: bool) -> list[str]:
        """Watch a target, which may be watched already under `key`, perhaps in another way. Raises ConfigError."""
        known = self._targets.get(key or "")
        if key is not None and known is not None:
            made = scrape_target(target, self._own_labels(target), self.config)
            before = self._scraped[key]
            if known == target and before == made:
                return []
            if _is_same(before, made):
                self._sense.renew(key, made)
                self._targets[key], self._scraped[key] = target, made
                if known.facts != target.facts:
                    self._say_configured(key)
                return []
            self._forget(key)
        key = self._add(target, self._own_labels(target))
        told = f"{target.url}: {'changed' if known else 'new'}, watched from now on"
        self._wants_flags(key, "")
        return [] if fresh else [told]

    def _add(self, target: TargetTable, own: Mapping[str, str]) -> str:
        """Watch a target; returns its key. Raises ConfigError."""
        made = scrape_target(target, own, self.config)
        try:
            key = self._sense.add(made)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{target.url}: {error}") from error
        self._targets[key], self._scraped[key] = target, made
        return key

    def _forget(self, key: str) -> None:
        self._sense.remove(key)
        self._engines.gone(key)
        self._kv_events_in.gone(key)
        if self._ledger is not None:
            self._ledger.gone(key)
        self.collectors.forget(key)
        self._shares.forget(key)
        self._processes.pop(key, None)
        self._behind.pop(key, None)
        self._flags_wanted.pop(key, None)
        del self._targets[key], self._scraped[key]

    async def _read(self, key: str) -> list[Record]:
        records: list[Record] = [*await self._sense.read(key)]
        version = next(
            (r.info.get("version") for r in records if isinstance(r, FactsRecord) and r.source == VERSION), ""
        )
        if version:
            self._wants_flags(key, version)
        return records

    async def _walk(self, here: Mapping[str, str]) -> Sequence[Record]:
        """Search the node's processes for those of the engines. here: key -> URL of each target."""
        self._walk_begun = time.monotonic()
        self._walk_at = self._walk_begun + WALK_SECONDS
        self._walked.clear()
        try:
            found, self._addresses = await self._discovery.run(
                lambda: (self._finder.families(here.values()), self._finder.addresses())
            )
        except BaseException:
            self._processes |= dict.fromkeys(here.keys() - self._processes.keys(), ())
            self._walk_at = time.monotonic() + WALK_RETRY_SECONDS
            raise
        finally:
            self._walked.set()
        self._processes = {key: found[url] for key, url in here.items() if key in self._targets}
        return ()

    async def _read_host(self) -> Sequence[Record]:
        """Read the node, once the processes are known; a search for them that hangs is not waited for."""
        patience = self._walk_begun + WALK_PATIENCE - time.monotonic()
        if patience > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._walked.wait(), patience)
        host = await self._node_senses().read_host(self._processes)
        if any(process.state in ENDED for process in host.processes):
            self._walk_at = 0.0  # some ended: the engine was restarted, or changed its workers
        return [host]

    async def _read_gpus(self) -> Sequence[Record]:
        readings = (self._sense.translator(key).reading for key in self._targets if self._is_here(key))
        systems = {reading.system.system for reading in readings if reading is not None}
        return [await self._node_senses().read_gpus(exporter=GPU_EXPORTER in systems)]

    def _node_senses(self) -> NodeSenses:
        if self._senses is None:
            self._senses = NodeSenses(self.window, self._node_labels())
        return self._senses

    async def _read_kv_events(self) -> list[Record]:
        if self._kv_events is None:
            return []
        await self._kv_events.look([self._view(key) for key in self._targets], self._sense.ask)
        served = {key: self._engines.prompt_tokens(key, time.time()) for key in self._kv_events.unheard}
        records = await self._kv_events.read(served)
        return self._refuse_batches(records) if self.memory.refusing else [*records]

    def _refuse_batches(self, records: Sequence[KvEventsRecord]) -> list[Record]:
        """The records without their batches, which are counted."""
        if batches := sum(len(record.batches) for record in records):
            self.memory.refuses("kv_events", batches)
        return [without_batches(record, NEAR_LIMIT) for record in records]

    def _view(self, key: str) -> KvTarget:
        """A target as the sense of KV events wants to know it."""
        url, process = self._targets[key].url, self._behind.get(key)
        host, reading = urlsplit(url).hostname or "", self._sense.translator(key).reading
        system = process.system if process is not None else reading.system.system if reading is not None else ""
        flags = process.flags if process is not None else None
        is_own = is_loopback(host) or host in self._addresses
        return KvTarget(key, url, self._is_here(key) or is_own, is_own, system, flags)

    def _feed_ledger(self, record: KvEventsRecord) -> Steps[None]:
        if self._ledger is None:
            if not record.batches:
                return
            labels = self._recorded_labels() if self._is_recorded else self._node_labels()
            self._ledger = LedgerSide(self.window, labels, self._engines.labels, self.config.tenants.top)
        reading = self._sense.translator(record.target).reading
        system = reading.system.system if reading is not None else ""
        yield from self._ledger.feed_steps(record, self._engine_of(record.target, record.rank), system)

    def _tell_ledger(self, record: RequestRecord) -> None:
        if self._ledger is not None:
            self._ledger.request(record)

    def _feed_parts(self, record: PartsRecord) -> Steps[None]:
        side = self.requests
        if self._parts_in is not None:
            if record.source != NOBODY:
                self._parts_in.feed(record)
            self._parts_in.advance(record.t)
        yield from side.feed_steps(record)
        yield from side.advance_steps(record.t)
        if self._ledger is not None:
            if record.parts:
                self._ledger.heard(record.t)
            yield from self._ledger.advance_steps(record.t)

    def _say_exports(self, t: float) -> None:
        """How sending elsewhere fares, every few seconds."""
        if self._otlp_out is not None and not 0 <= t - self._exports_at < EXPORTS_SECONDS:
            self._exports_at = t
            self._exports.write(t, self._otlp_out.status().series(self._node_labels()))

    def _name_engines(self, key: str) -> None:
        """How observers of requests may call the engines of a target."""
        target, translator = self._targets[key], self._sense.translator(key)
        identity, strings = translator.identity, translator.strings()
        engines = {
            engine: (identity.labels, strings.get(engine, {}).get("role", "")) for engine in translator.status.engines
        }
        self._engines.named(key, target.url, self._engine_of(key, ""), engines)

    def _is_here(self, key: str) -> bool:
        return self._scraped[key].labels.get("node") == self.config.labels.node

    def _engine_labels(self, key: str, rank: str) -> dict[str, str]:
        """The labels of series about one rank of a target."""
        return {**self._sense.translator(key).identity.labels, "engine": self._engine_of(key, rank)}

    def _node_labels(self) -> dict[str, str]:
        labels = {"cluster": self.config.labels.cluster, "node": self.config.labels.node}
        return {name: value for name, value in labels.items() if value}

    def _recorded_labels(self) -> dict[str, str]:
        """The configured labels for what a recording holds. The name of this machine says nothing of a recorded one."""
        labels = self._node_labels()
        return {name: value for name, value in labels.items() if name != "node" or value != socket.gethostname()}

    def _engine_of(self, key: str, rank: str) -> str:
        """The `engine` label of a target's rank; empty for a target that is not watched."""
        if key not in self._sense.keys:
            return ""
        translator = self._sense.translator(key)
        reading = translator.reading
        if reading is None:
            return translator.status.engines[0]
        return reading.engine(rank or (reading.ranks[0] if len(reading.ranks) == 1 else None), translator.identity)

    def _wants_flags(self, key: str, version: str) -> None:
        """A target is new, or its engine was restarted: what neither page nor endpoints report is read again."""
        self._walk_at = 0.0
        self._flags_wanted[key] = version
        if self._targets[key].facts:
            self._say_configured(key)

    async def _learn(self, deadline: float) -> list[str]:
        """Read the flags of all targets that wait for it from the command lines of their processes, in one search of
        the node's processes. deadline: seconds; one that takes longer is begun again with the next cycle.

        Returns what to show the user.
        """
        wanted, self._flags_wanted = self._flags_wanted, {}
        targets = {key: self._targets[key] for key in wanted}
        if not targets:
            return []
        urls = {target.url for target in targets.values()}
        try:
            found = await self._discovery.run(partial(self._finder.behind, urls), deadline)
        except Exception as error:  # /proc hangs, or the process has no file descriptor left
            self._flags_wanted = {key: wanted[key] for key in targets if key in self._targets} | self._flags_wanted
            self.collectors.failed(("processes", ""), error)
            return [f"flags of {len(urls)} targets not read: {type(error).__name__} {error}"]
        said: list[str] = []
        for key, target in targets.items():
            process = found[target.url]
            if isinstance(process, DiscoveryError):
                said.append(f"{target.url}: flags not read: {process}")
            elif self._targets.get(key) is target:  # it was not forgotten meanwhile
                self._take_flags(key, process, wanted[key])
        return said

    def _take_flags(self, key: str, process: discovery.DiscoveredTarget, version: str) -> None:
        """Keep the process behind a target, and hand its flags out as facts with the next records."""
        self._behind[key] = process
        if self._kv_events is not None:
            self._kv_events.restarted(key)
        facts, info = process.learn(version)
        self._pending.append(FactsRecord(t=time.time(), target=key, source=discovery.SOURCE, facts=facts, info=info))

    def _say_configured(self, key: str) -> None:
        facts = self._targets[key].facts
        self._pending.append(FactsRecord(t=time.time(), target=key, source=CONFIGURATION, facts=facts))

    def _model(self, key: str) -> str:
        reading = self._sense.translator(key).reading
        return next(iter(reading.models.values()), "") if reading else ""

    def _say_objectives(self, key: str) -> None:
        """The objectives of a target's engines, as families beside theirs. Until its page was read nobody knows the
        model, so what is said for a model counts from the second page on."""
        translator, own = self._sense.translator(key), self._targets[key].slo
        series: dict[Labels, float] = {}
        for engine, strings in translator.strings().items():
            if strings.get("kind") == "exporter":
                continue
            model, role = strings.get("model", ""), strings.get("role", "")
            for said in objectives.of_engine(self.config, own, model, role, self._slo_sources):
                labels = {"slo": said.name, "source": said.source} | ({"class": said.class_} if said.class_ else {})
                series[translator.identity.series("kvitals_slo_seconds", engine, **labels)] = said.seconds
        translator.status.say("objectives", series)

    def _say_probe(self, record: ProbeRecord) -> None:
        translator = self._sense.translator(record.target)
        said = {}
        for engine in translator.status.engines:
            said[translator.identity.series("kvitals_probe_success", engine)] = float(record.answered)
            said[translator.identity.series("kvitals_probe_seconds", engine)] = record.seconds
        translator.status.say("probe", said)


def without_batches(record: KvEventsRecord, message: str) -> KvEventsRecord:
    """A record whose batches are refused: a hole, as if they were lost on the way. message: why, with {count}."""
    refused = len(record.batches)
    if not refused:
        return record
    return msgspec.structs.replace(
        record,
        batches=(),
        lost=max(record.lost, 0) + refused,
        state="partial",
        reason="lost",
        message=message.format(count=refused),
    )


def _is_same(one: scrape.ScrapeTarget, other: scrape.ScrapeTarget) -> bool:
    """Whether two ways to scrape an engine give the same series, so that they go on."""
    return (one.url, one.name, one.labels, one.prefixes) == (other.url, other.name, other.labels, other.prefixes)


def _root(key: str) -> str:
    parts = urlsplit(key)
    return f"{parts.scheme}://{parts.netloc}"
