"""One cycle of the running agent: collect, ingest, judge, write down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rich.console import Console

from kvitals.agent import loop_watch
from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.records import Record
from kvitals.agent.workers import Worker
from kvitals.app.history_recorder import Keeping
from kvitals.app.pipeline import FAST_SECONDS, Pipeline, read_seconds, watched_span
from kvitals.app.runtime.ingestion import Ingestion
from kvitals.app.runtime.reload import Reload
from kvitals.app.runtime.silent_probes import SilentProbes
from kvitals.app.state import StateKeeper
from kvitals.diagnoser.text import without_figures
from kvitals.series.promql import PromQLError
from kvitals.series.slices import in_slices

PAUSED = 2.5
"""After so many intervals without a row, nobody read in between."""
PATIENCE = 0.8
"""The share of the interval that a cycle waits for its collectors; what comes later is taken by the next one."""


class Cycle:
    """One cycle: collect, ingest, judge, write down. A step that raises is reported as a collector and ends nothing."""

    def __init__(
        self,
        pipeline: Pipeline,
        reload: Reload,
        console: Console,
        keeping: Keeping | None,
        state: StateKeeper,
        judged: Callable[[], None],
    ) -> None:
        """`judged` is called after each verdict."""
        self._pipeline = pipeline
        self._reload = reload
        self._console = console
        self._keeping = keeping
        self._verdict = ""
        self._state = state
        self._ingestion = Ingestion(pipeline.node)
        self._probes = SilentProbes()
        self._judging = Worker("judging")
        self._judged = judged
        own = pipeline.setup.config.labels
        self._labels = {"cluster": own.cluster, "node": own.node}
        self._own_rows = GaugeRows(pipeline.node.window, "agent")

    async def run(self, stop: asyncio.Event) -> None:
        """Where `stop` is set while the collectors are waited for it returns at once, and nothing is ingested."""
        pipeline, guard = self._pipeline, self._pipeline.node.collectors.guard
        pipeline.node.check_memory()
        interval = pipeline.setup.config.agent.interval
        records = await self._collect(PATIENCE * interval, stop)
        if records is None:
            self._probes.cancel()
            return
        async with pipeline.judging:
            await self._ingestion.take([*records, *self._probes.drain()], interval)
            now = time.time()
            with guard("configuration"):
                self._reload.say(now)
            with guard("judging"):
                self._say(await judge(pipeline, now, self._judging))
                self._judged()
                self._probes.start(pipeline.node, pipeline.judgements, now)
            await asyncio.sleep(0)
            watch = loop_watch.current()
            own = pipeline.node.context.memory.series(self._labels) | (
                watch.series(self._labels) if watch is not None else {}
            )
            self._own_rows.write(now, own | self._ingestion.series(self._labels))
            if self._keeping is not None:
                with guard("history"):
                    await in_slices(self._keeping.cycle_steps(now, self._reload.status), self._judging.run)
        with guard("state"):
            await self._judging.run(lambda: self._state.save(pipeline.judge.memory))

    async def _collect(self, patience: float, stop: asyncio.Event) -> list[Record] | None:
        """What the collectors bring; None where `stop` is set before they do."""
        collecting = asyncio.ensure_future(self._pipeline.node.collect(patience, self._ingestion.held))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((collecting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                return collecting.result()
        finally:
            stopping.cancel()
            if collecting.cancel():
                await asyncio.wait((collecting,))  # what it waits for goes on; only the wait ends
        return None

    def _say(self, verdict: str) -> None:
        """Print a verdict that differs from the one before by more than its figures: those differ in each cycle."""
        if (kind := without_figures(verdict)) != self._verdict:
            self._console.print(f"{time.strftime('%H:%M:%S')}  {verdict}")
            self._verdict = kind


async def judge(pipeline: Pipeline, now: float, worker: Worker) -> str:
    """The verdict of this moment; the worker evaluates expressions and judges. A query that cannot be answered, such as
    one during which the machine stood still, leaves the moment out and ends nothing."""
    try:
        window, pause = pipeline.node.window, PAUSED * pipeline.setup.config.agent.interval
        span = watched_span(window.oldest, now, read_seconds(window, now, FAST_SECONDS, pause))
        await in_slices(pipeline.observe_steps(span), worker.run)
        return await worker.run(pipeline.verdict)
    except PromQLError as error:
        return f"Not judged this time: {error}."
