"""KV events of the engines on this node: where they are published is found out, and then they are listened to.

events = KvEventSenses(config.kv_events, lambda: tenants)
await events.look(views, ask)        # who publishes where; now and then
records = await events.read(served)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import structlog

from kvitals.agent.collectors.kv_events import KvEventsSense
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
from kvitals.agent.workers import Worker, WorkerHungError
from kvitals.config import ConfigError, KvEventsTable

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 60.0
"""How often an engine is asked that said where it publishes: its address may be another after a restart."""

RETRY_SECONDS = 10.0
"""How often one is asked that did not answer, as one that is starting."""

CLOSE_SECONDS = 1.0

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

    def __init__(self, config: KvEventsTable, names: Callable[[], TenantPseudonyms], *, binds: bool = True) -> None:
        """names: opens what makes pseudonyms; asked once, when it is needed. binds: whether engines may be listened to
        that connect to whoever binds their endpoint, of whom there can be one."""
        self._config = config
        self._binds = binds
        self._names = names
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
                self._sense = await self._thread.run(lambda: KvEventsSense(self._names()))
            except ConfigError as error:
                log.warning("KV events are not listened to", error=str(error))
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
