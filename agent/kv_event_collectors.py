"""The collector of KV events: where the engines publish them is found out, and then they are listened to.

events = KvEventSenses(config.kv_events, lambda: tenants)
await events.look(views, ask)        # who publishes where; now and then
records = await events.read(served)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import msgspec

from kvitals.agent.collector import NodeCollector
from kvitals.agent.collectors.boundary import CollectorRun, Name
from kvitals.agent.collectors.kv_events import KvEventsSense
from kvitals.agent.collectors.kv_events_in import KvEventsIn
from kvitals.agent.collectors.kv_events_sources import (
    PublisherReport,
    PublisherSource,
    PublisherTarget,
    Refusal,
    of_flags,
    of_sglang,
    of_vllm,
    resolve,
)
from kvitals.agent.collectors.kv_events_wire import TenantPseudonyms
from kvitals.agent.command_line import Flags
from kvitals.agent.ledger.event import KvEventsRecord
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.logger import Logger
from kvitals.agent.node_context import NodeContext
from kvitals.agent.records import Record
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.workers import Worker, WorkerHungError
from kvitals.config import ConfigError, KvEventsTable
from kvitals.series.slices import Steps

log = Logger()

AGAIN_SECONDS = 60.0
"""How often an engine is asked that said where it publishes: its address may be another after a restart."""

RETRY_SECONDS = 10.0
"""How often one is asked that did not answer, as one that is starting."""

CLOSE_SECONDS = 1.0

READ_DEADLINE = 10.0
"""Seconds until a read of KV events counts as hung."""

NEAR_LIMIT = "{count} batches were refused: the agent is near its memory limit."

VLLM_PATH, SGLANG_PATH = "/kv_event_sources", "/server_info"

Answer = tuple[int, bytes]
"""HTTP status, 0 where there was no answer, and the body."""

Ask = Callable[[str, str], Awaitable[Answer]]
"""Asks a target (by its key) for a path beside its metrics page."""


@dataclass(frozen=True)
class KvTarget:
    """A target as far as it matters here."""

    key: str
    url: str
    is_here: bool  # it runs on this node
    is_loopback: bool  # and its URL's host is this machine
    system: str = ""  # empty: not known
    flags: Flags | None = field(default=None, compare=False)  # None: its command line can not be read


@dataclass
class _Found:
    """What is known of one target's publishers."""

    view: KvTarget
    due: float
    sources: tuple[PublisherSource, ...] = ()
    refusals: tuple[Refusal, ...] = ()


class KvEventSenses:
    """On one event loop. The sense, with its thread, is made when the first publisher is found."""

    def __init__(
        self,
        config: KvEventsTable,
        names: Callable[[], TenantPseudonyms],
        *,
        binds: bool = True,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """names: opens what makes pseudonyms; asked once, when it is needed. binds: whether engines may be listened to
        that connect to whoever binds their endpoint, of whom there can be one. is_full: whether the process is near its
        memory limit."""
        self._config = config
        self._binds = binds
        self._names = names
        self._is_full = is_full
        self._found: dict[str, _Found] = {}
        self._heard: tuple[tuple[PublisherSource, ...], tuple[tuple[str, Refusal], ...]] = ((), ())
        self._sense: KvEventsSense | None = None
        self._open_at = 0.0
        self._thread = Worker("kv_events")

    @property
    def unheard(self) -> frozenset[str]:
        """Targets of which nothing came yet though they are listened to, by key."""
        return self._sense.unheard if self._sense is not None else frozenset()

    def configure(self, config: KvEventsTable) -> None:
        """Take another configuration; it counts from the next look on."""
        if config != self._config:
            self._config = config
            self._found.clear()

    def restarted(self, key: str) -> None:
        """A target was restarted, or its flags are known now: it is asked again with the next look."""
        if key in self._found:
            self._found[key].due = 0.0

    async def look(self, views: Sequence[KvTarget], ask: Ask) -> None:
        """Find out where these targets publish, for those that it is time for, and listen there."""
        now = time.monotonic()
        views = [view for view in views if self._config.enabled and (view.is_here or self._named(view))]
        keys = {view.key for view in views}
        self._found = {key: found for key, found in self._found.items() if key in keys}
        due = [v for v in views if v.key not in self._found or self._is_due(self._found[v.key], v, now)]
        for found in await asyncio.gather(*(self._ask(view, ask, now) for view in due)):
            self._found[found.view.key] = found
        sources = tuple(s for found in self._found.values() for s in found.sources if self._binds or not s.bind)
        refusals = tuple((key, refusal) for key, found in self._found.items() for refusal in found.refusals)
        if (sources, refusals) != self._heard and await self._open(now) and self._sense is not None:
            self._heard = sources, refusals
            self._sense.listen_to(sources, refusals)

    async def read(self, served: Mapping[str, float]) -> list[KvEventsRecord]:
        """What came since the last look. served: prompt tokens of each target so far, by its key."""
        if self._sense is None:
            return []
        return await self._thread.run(partial(self._sense.read, time.time(), served))

    async def close(self) -> None:
        """Let go of all addresses."""
        if self._sense is not None:
            with contextlib.suppress(WorkerHungError):
                await self._thread.run(self._sense.close, CLOSE_SECONDS)
            self._sense = None

    async def _open(self, now: float) -> bool:
        """Whether the sense is there; it is made where it is not."""
        if self._sense is None and now >= self._open_at:
            self._open_at = now + AGAIN_SECONDS
            try:
                self._sense = await self._thread.run(lambda: KvEventsSense(self._names(), self._is_full))
            except ConfigError as error:
                log.warning("the agent does not listen to KV events", error=str(error))
        return self._sense is not None

    def _is_due(self, found: _Found, view: KvTarget, now: float) -> bool:
        return now >= found.due or (found.view != view)

    def _named(self, view: KvTarget) -> bool:
        return any(source.target == view.url for source in self._config.source)

    async def _ask(self, view: KvTarget, ask: Ask, now: float) -> _Found:
        place = PublisherTarget(
            view.key, urlsplit(view.url).hostname or "", view.is_loopback, frozenset(self._config.hosts)
        )
        told = self._configured(view)
        if told:
            sources, refusals = resolve(told, self._opened(place, told), trusted=True)
            return _Found(view, now + AGAIN_SECONDS, tuple(sources), tuple(refusals))
        told, answered = await self._of_endpoints(view, ask)
        trusted = False
        if not told and view.flags is not None:
            told, trusted = of_flags(view.system, view.flags), True
        before = self._found.get(view.key)
        if not told and not answered and before is not None and before.view.url == view.url:
            before.due = now + RETRY_SECONDS  # it is down, and is listened to where it was
            return before
        sources, refusals = resolve(told, place, trusted=trusted)
        return _Found(view, now + (AGAIN_SECONDS if answered else RETRY_SECONDS), tuple(sources), tuple(refusals))

    def _configured(self, view: KvTarget) -> tuple[PublisherReport, ...]:
        """The publishers that the configuration names for a target."""
        own = [source for source in self._config.source if source.target == view.url]
        return tuple(
            PublisherReport(
                rank, source.endpoint, source.replay, source.topic, None if source.bind is None else not source.bind
            )
            for rank, source in enumerate(own)
        )

    def _opened(self, place: PublisherTarget, told: Sequence[PublisherReport]) -> PublisherTarget:
        """The hosts that a configuration names may be reached."""
        hosts = {
            urlsplit(address).hostname for one in told for address in (one.endpoint, one.replay) if "://" in address
        }
        allowed = place.allowed | {host for host in hosts if host}
        return PublisherTarget(place.target, place.host, place.is_here, frozenset(allowed))

    async def _of_endpoints(self, view: KvTarget, ask: Ask) -> tuple[tuple[PublisherReport, ...], bool]:
        """What an engine's own endpoints tell, and whether it answered at all."""
        answered = False
        paths = ((VLLM_PATH, of_vllm, "vllm"), (SGLANG_PATH, of_sglang, "sglang"))
        for path, read, system in paths:
            if view.system not in ("", system):
                continue
            status, body = await ask(view.key, path)
            answered |= status != 0
            told = read(body) if status == 200 else ()
            if told:
                return told, True
        return (), answered


class KvEventsCollector(NodeCollector[KvEventsRecord]):
    """Listens to KV events, and keeps the ledger of the blocks that engines report."""

    records = (KvEventsRecord,)

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._scraper = context.scraper
        self._senses: KvEventSenses | None = None
        self._events_in = KvEventsIn(context.window)
        self.ledger: LedgerSide | None = None
        """What is known of engines' blocks; None while no engine reported any."""

    def open(self, names: Callable[[], TenantPseudonyms], *, binds: bool = True) -> None:
        """Listen from the next cycle on. Parameters as of `KvEventSenses`."""
        config, is_full = self._context.config.kv_events, self._context.memory.is_full_now
        self._senses = KvEventSenses(config, names, binds=binds, is_full=is_full)

    def configure(self, config: KvEventsTable) -> None:
        """Use another configuration."""
        if self._senses is not None:
            self._senses.configure(config)

    def identified(self, key: str) -> None:
        """The process of a target is known from now on: where it publishes is asked again."""
        if self._senses is not None:
            self._senses.restarted(key)

    @property
    def supported(self) -> bool:
        """Whether KV events are listened to."""
        return self._senses is not None

    def reads(self, held: Container[str]) -> dict[Name, CollectorRun]:
        return {("kv_events", ""): CollectorRun(self._read, READ_DEADLINE)}

    async def _read(self) -> list[Record]:
        if self._senses is None:
            return []
        await self._senses.look([self._view(key) for key in self._context.targets.tables], self._scraper.ask)
        now = time.time()
        served = {key: self._context.engines.prompt_tokens(key, now) for key in self._senses.unheard}
        records = await self._senses.read(served)
        return self.within_memory(records) if self._context.memory.refusing else [*records]

    def within_memory(self, records: Sequence[KvEventsRecord]) -> list[Record]:
        """The records without their batches, which are counted as refused."""
        if batches := sum(len(record.batches) for record in records):
            self._context.memory.refuses("kv_events", batches)
        return [without_batches(record, NEAR_LIMIT) for record in records]

    def _view(self, key: str) -> KvTarget:
        targets = self._context.targets
        server, is_own = targets.servers.get(key), targets.is_own(key)
        system = server.system if server is not None else self._context.system(key)
        flags = server.flags if server is not None else None
        return KvTarget(key, targets.tables[key].url, targets.is_here(key) or is_own, is_own, system, flags)

    def ingest(self, record: KvEventsRecord) -> Steps[None]:
        if record.target not in self._scraper.keys:
            return
        self._events_in.feed(record, self._scraper.engine_labels(record.target, record.rank))
        if self.ledger is None:
            if not record.batches:
                return
            context = self._context
            self.ledger = LedgerSide(
                context.window, context.labels(), context.engines.labels, context.config.tenants.top
            )
        engine = self._scraper.engine_of(record.target, record.rank)
        yield from self.ledger.feed_steps(record, engine, self._context.system(record.target))

    def request(self, record: RequestRecord) -> None:
        """Join a request record to the ledger."""
        if self.ledger is not None:
            self.ledger.request(record)

    def expect_requests(self, record: PartsRecord) -> None:
        """Parts of requests were ingested, so request records are expected."""
        if self.ledger is not None and record.parts:
            self.ledger.heard(record.t)

    def advance(self, t: float) -> Steps[None]:
        if self.ledger is not None:
            yield from self.ledger.advance_steps(t)

    def flush(self, t: float) -> None:
        if self.ledger is not None:
            self.ledger.flush(t)

    def forget(self, key: str) -> None:
        self._events_in.gone(key)
        if self.ledger is not None:
            self.ledger.gone(key)

    async def close(self) -> None:
        if self._senses is not None:
            await self._senses.close()


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
