"""The running agent: targets, history, API and cycles, until it is asked to stop.

daemon = Daemon(pipeline, load, console, status)
async with daemon.open(urls, ("127.0.0.1", 9477)):   # watches, writes history, serves the API
    await daemon.run(stop)                           # a cycle every interval, until `stop` is set
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from kvitals.agent import garbage, hangups, loop_watch, systemd
from kvitals.agent.health import Health
from kvitals.agent.paths import state_directory
from kvitals.agent.workers import Worker
from kvitals.app.history_recorder import Keeping
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.runtime.api_server import serve
from kvitals.app.runtime.cycle import Cycle
from kvitals.app.runtime.reload import LOOK_SECONDS, Reload
from kvitals.app.runtime.target_search import Search
from kvitals.app.state import StateKeeper, state_file

CLOSE_SECONDS = 2.5
"""For listeners and history, when the agent stops."""


class Daemon:
    """The agent of one node. On one event loop."""

    def __init__(
        self, pipeline: Pipeline, load: Callable[[Path | None], Setup], console: Console, status: Console
    ) -> None:
        """`load` makes a setup of a configuration file; None is the file in the usual places. `console` gets answers,
        `status` progress and warnings."""
        self.pipeline = pipeline
        self._console, self._status = console, status
        self._reload = Reload(pipeline, load, status)
        self.keeping = Keeping(pipeline, status.print) if pipeline.setup.config.history.enabled else None
        """What writes history; None where history is switched off."""
        self._health = Health(lambda: pipeline.setup.config.agent.interval)

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], address: tuple[str, int]) -> AsyncIterator[None]:
        """Watch the URLs, else the configured or discovered targets, write history and serve the API on `address`.
        Everything is closed with this context. Raises ConfigError and UsageError."""
        pipeline = self.pipeline
        for line in await pipeline.node.open(urls, patient=True, requests=state_directory()):
            self._console.print(line, style="dim")
        pipeline.node.parts.send_traces(version("kvitals"))
        if self.keeping is not None:
            self.keeping.start(version("kvitals"))
            if problem := await asyncio.to_thread(self.keeping.resume, time.time()):
                self._status.print(problem)
        closing: asyncio.Future[None] | None = None
        try:
            async with serve(pipeline, address, time.time, lambda: self._reload.status, self.keeping, self._health):
                try:
                    yield
                finally:  # beside the end of the API, so that their waits do not add up
                    closing = asyncio.ensure_future(self._close())
        finally:
            await (closing or self._close())

    async def run(self, stop: asyncio.Event) -> None:
        """Run cycles at the configured interval until `stop` is set, and report to systemd meanwhile."""
        systemd.notify(systemd.READY)
        alive = asyncio.create_task(self._keep_alive(), name="systemd watchdog")
        try:
            await self._cycles(stop)
        finally:
            self._health.ended()
            alive.cancel()
            systemd.notify(systemd.STOPPING)

    async def _cycles(self, stop: asyncio.Event) -> None:
        """Scrape and judge at the configured interval; say when the verdict changes."""
        pipeline = self.pipeline
        state = StateKeeper(state_file(), self._status.print)
        pipeline.judge.memory.update(await asyncio.to_thread(state.open, time.time()))
        hangup = asyncio.Event()
        hangups.handle(asyncio.get_running_loop(), hangup.set, stop.set)
        search = Search(pipeline, self._console)
        cycle = Cycle(pipeline, self._reload, self._console, self.keeping, state, self._health.judged)
        due, started = time.monotonic(), False
        while not stop.is_set():
            begun = time.monotonic()
            await search.follow()
            await cycle.run(stop)
            if stop.is_set():
                break
            self._health.completed()
            if not started:
                started = True
                garbage.keep_short()
                loop_watch.begin()
            # By the clock, so that cycles do not drift; one that is missed is not made up for.
            due = max(due + pipeline.setup.config.agent.interval, begun)
            await self._pause(due, search, stop, hangup)
        search.stop()
        await asyncio.to_thread(state.close)

    async def _pause(self, until: float, search: Search, stop: asyncio.Event, hangup: asyncio.Event) -> None:
        """Wait for the next cycle, with an eye on the configuration."""
        while not stop.is_set():
            asked = hangup.is_set()
            hangup.clear()
            with self.pipeline.node.collectors.guard("configuration"):
                if await self._reload.look(at_once=asked):
                    search.begin(at_once=asked)
            left = until - time.monotonic()
            if left <= 0:
                return
            waiting = [asyncio.ensure_future(event.wait()) for event in (stop, hangup)]
            await asyncio.wait(waiting, timeout=min(left, LOOK_SECONDS), return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    async def _keep_alive(self) -> None:
        """Tell systemd that the agent does its work, twice as often as it asks."""
        expected = systemd.watchdog_seconds()
        while expected is not None:
            if not self._health.halt:
                systemd.notify(systemd.WATCHDOG)
            await asyncio.sleep(expected / 2)

    async def _close(self) -> None:
        """Close listeners and history side by side: what hangs in one keeps the other from nothing."""
        closing = [asyncio.ensure_future(self.pipeline.node.close())]
        if self.keeping is not None:
            closing.append(asyncio.ensure_future(Worker("history").run(self.keeping.close)))
        await asyncio.wait(closing, timeout=CLOSE_SECONDS)
