"""Puts a scenario on: starts its servers, plays its phases, and keeps the truth about them.

    async with Stage(load_scenario("few_slots")) as stage:
        await stage.play("baseline", seconds=10)
        async with stage.playing("incident"):
            ...                                   # the load is on; diagnose stage.servers
    stage.truth()

Phases follow one another without a pause: the requests of one may still be on their way in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Self

from .engines import Engines
from .load import Load, Sample, summary
from .measures import Value, signature
from .metrics import Watch
from .scenario import PhaseName, Scenario
from .systems import ON_FORK_SERVER, Server, Site, site_of
from .traffic import InfiniteCache

TRUTH_VERSION = 1
CHECK_EVERY_S = 1.0
BEFORE_DEATH_S = 3.0


@dataclass
class Played:
    """A phase that was played: the load it was under, and each server's own numbers over it."""

    name: PhaseName
    load: Load
    signatures: dict[str, dict[str, Any]]


class Stage:
    """The servers of one scenario. With `lab`, engines share that fork server; else the stage has its own."""

    def __init__(self, scenario: Scenario, lab: Engines | None = None) -> None:
        self.scenario = scenario
        self.played: list[Played] = []
        self._shared_lab = lab
        self._site: Site | None = None
        self._counts: dict[str, Watch] = {}
        self._warmed: list[Sample] = []
        self._cache = InfiniteCache(scenario.block_size)
        self._cleanup = contextlib.AsyncExitStack()
        self._draining: list[asyncio.Task[None]] = []

    @property
    def site(self) -> Site:
        assert self._site is not None, "the stage was not entered"
        return self._site

    @property
    def servers(self) -> tuple[Server, ...]:
        """What the product looks at."""
        return self.site.watched

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as undo:
            lab = self._shared_lab
            if lab is None and self.scenario.system in ON_FORK_SERVER:
                lab = await undo.enter_async_context(Engines())
            self._site = await undo.enter_async_context(site_of(self.scenario, lab))
            for server in self.servers:
                watch = Watch(server.url, polling=False)
                self._counts[server.name] = await undo.enter_async_context(watch)
            undo.push_async_callback(self._end_drains)
            await self._warm_up()
            self._cleanup = undo.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._cleanup.aclose()

    async def play(self, phase: PhaseName, seconds: float) -> Played:
        """Play a phase for this long; a server that dies by itself ends it at once."""
        async with self.playing(phase) as played:
            await self._watch_over_servers(seconds)
        return played

    @contextlib.asynccontextmanager
    async def playing(self, phase: PhaseName) -> AsyncIterator[Played]:
        """The load of a phase, for as long as the block lasts. Requests on their way are let finish."""
        seed = f"{phase}-{len(self.played)}"
        load = Load(self.site.doors, self.scenario.load(phase), cache=self._cache, seed=seed)
        played = Played(phase, load, {})
        async with contextlib.AsyncExitStack() as watching:
            watches = {server.name: await watching.enter_async_context(Watch(server.url)) for server in self.servers}
            await load.start()
            self.played.append(played)
            try:
                await self._let_die(phase)
                yield played
            finally:
                load.stop_sending()
                self._draining.append(asyncio.create_task(load.drain()))
        played.signatures = {server.name: signature(watches[server.name], server.dialect) for server in self.servers}

    async def settle(self) -> None:
        """Wait until the requests of past phases have ended, and read what the servers counted."""
        await asyncio.gather(*self._draining)
        for watch in self._counts.values():
            await watch.look()

    def truth(self) -> dict[str, Any]:
        """Everything there is to know, for a file beside a recording."""
        scenario = self.scenario
        return {
            "version": TRUTH_VERSION,
            "scenario": scenario.name,
            "wrong": scenario.wrong,
            "expect": list(scenario.expect),
            "slo": asdict(scenario.slo),
            "system": scenario.system,
            "flags": dict(scenario.flags),
            "block_size": scenario.block_size,
            "engines": [{"name": server.name, "url": server.url, "role": server.role} for server in self.servers],
            "phases": [{"name": p.name, **p.load.truth(), "engines": p.signatures} for p in self.played],
            "compared": self._compared(),
        }

    def _compared(self) -> dict[str, Any]:
        """What clients did in all, warming up included, beside what each server counted; None: it does not say."""
        samples = [*self._warmed, *(sample for played in self.played for sample in played.load.samples)]
        done = summary(samples)
        clients = {
            "requests": done["requests"],
            "errors": done["requests"] - done["status"].get("ok", 0),
            "prompt_tokens": done["prompt_tokens"],
            "cached_tokens": done["shared_tokens"],
        }
        servers: dict[str, dict[str, Value] | None] = {}
        for server in self.servers:
            watch = self._counts[server.name]
            counted = None if watch.lost else signature(watch, server.dialect)
            servers[server.name] = counted and {key: counted.get(key) for key in clients}
        return {"clients": clients, "servers": servers}

    async def _warm_up(self) -> None:
        """First requests are slow and first sights of a prompt are misses: have both before the baseline."""
        for door in self.site.doors:
            async with Load([door], (), cache=self._cache, seed="warm") as load:
                await load.warm(self.scenario.baseline)
            self._warmed += load.samples

    async def _let_die(self, phase: PhaseName) -> None:
        """Kill what is to die in this phase, when requests of the phase are under way."""
        if phase == "incident" and self.scenario.dies:
            await asyncio.sleep(BEFORE_DEATH_S)
            await self.site.kill(self.scenario.dies)

    async def _end_drains(self) -> None:
        for drain in self._draining:
            drain.cancel()
        for played in self.played:
            await played.load.drain(0.0)

    async def _watch_over_servers(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await self.site.check()
            await asyncio.sleep(min(left, CHECK_EVERY_S))
