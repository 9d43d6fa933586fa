"""Puts a scenario on: starts its engines, plays its phases, and keeps the truth about them.

    async with Stage(load_scenario("few_slots")) as stage:
        await stage.play("baseline", seconds=10)
        async with stage.playing("incident"):
            ...                                   # the load is on; diagnose stage.urls
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

from .engines import Engine, Engines
from .load import Load
from .metrics import Watch
from .scenario import PhaseName, Scenario
from .traffic import InfiniteCache

TRUTH_VERSION = 1
CHECK_EVERY_S = 1.0


@dataclass
class Played:
    """A phase that was played: the load it was under, and each engine's own numbers over it."""

    name: PhaseName
    load: Load
    signatures: dict[str, dict[str, Any]]


class Stage:
    """The engines of one scenario. With `lab`, they share that fork server; else the stage has its own."""

    def __init__(self, scenario: Scenario, lab: Engines | None = None) -> None:
        self.scenario = scenario
        self.engines: list[Engine] = []
        self.played: list[Played] = []
        self._shared_lab = lab
        self._lab: Engines | None = None
        self._cache = InfiniteCache(scenario.block_size)
        self._cleanup = contextlib.AsyncExitStack()
        self._draining: list[asyncio.Task[None]] = []

    @property
    def urls(self) -> list[str]:
        return [engine.url for engine in self.engines]

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as undo:
            lab = self._shared_lab
            if lab is None:
                lab = await undo.enter_async_context(Engines())
            self._lab = lab
            for name in self.scenario.engines:
                self.engines.append(await lab.start(name, **self.scenario.flags))
                undo.push_async_callback(lab.stop, name)
            undo.push_async_callback(self._end_drains)
            await self._warm_up()
            self._cleanup = undo.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._cleanup.aclose()

    async def play(self, phase: PhaseName, seconds: float) -> Played:
        """Play a phase for this long; an engine that dies ends it at once."""
        async with self.playing(phase) as played:
            await self._watch_over_engines(seconds)
        return played

    @contextlib.asynccontextmanager
    async def playing(self, phase: PhaseName) -> AsyncIterator[Played]:
        """The load of a phase, for as long as the block lasts. Requests on their way are let finish."""
        seed = f"{phase}-{len(self.played)}"
        load = Load(self.urls, self.scenario.load(phase), cache=self._cache, seed=seed)
        played = Played(phase, load, {})
        async with contextlib.AsyncExitStack() as watching:
            watches = {engine.name: await watching.enter_async_context(Watch(engine.url)) for engine in self.engines}
            await load.start()
            self.played.append(played)
            try:
                yield played
            finally:
                load.stop_sending()
                self._draining.append(asyncio.create_task(load.drain()))
        played.signatures = {name: watch.signature() for name, watch in watches.items()}

    async def settle(self) -> None:
        """Wait until the requests of past phases have ended."""
        await asyncio.gather(*self._draining)

    def truth(self) -> dict[str, Any]:
        """Everything there is to know, for a file beside a recording."""
        scenario = self.scenario
        return {
            "version": TRUTH_VERSION,
            "scenario": scenario.name,
            "wrong": scenario.wrong,
            "expect": list(scenario.expect),
            "slo": asdict(scenario.slo),
            "flags": dict(scenario.flags),
            "block_size": scenario.block_size,
            "engines": [{"name": engine.name, "url": engine.url} for engine in self.engines],
            "phases": [{"name": p.name, **p.load.truth(), "engines": p.signatures} for p in self.played],
        }

    async def _warm_up(self) -> None:
        """First requests are slow and first sights of a prompt are misses: have both before the baseline."""
        for url in self.urls:
            async with Load([url], (), cache=self._cache, seed="warm") as load:
                await load.warm(self.scenario.baseline)

    async def _end_drains(self) -> None:
        for drain in self._draining:
            drain.cancel()
        for played in self.played:
            await played.load.drain(0.0)

    async def _watch_over_engines(self, seconds: float) -> None:
        assert self._lab is not None, "the stage was not entered"
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await self._lab.check()
            await asyncio.sleep(min(left, CHECK_EVERY_S))
