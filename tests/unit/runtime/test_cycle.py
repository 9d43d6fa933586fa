"""A cycle goes on when a moment can not be judged, and ends when the agent is to stop."""

import asyncio
import io
import threading
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from kvitals.agent.records import Record
from kvitals.agent.workers import Worker
from kvitals.app.demo import FOLDER
from kvitals.app.history_recorder import Episodes, Keeping
from kvitals.app.node_changes import NodeChanges
from kvitals.app.pipeline import Pipeline, Setup, read_seconds, watched_span
from kvitals.app.runtime.cycle import Cycle, judge
from kvitals.app.runtime.ingestion import Ingestion
from kvitals.app.runtime.reload import Reload
from kvitals.app.state import StateKeeper
from kvitals.config import Config, HistoryTable, SloTable
from kvitals.diagnoser import evaluator
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.signals import EvaluationSpan, duration
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.series.promql import PromQLError, evaluate, parse
from kvitals.series.recordings import CaptureReader
from kvitals.series.slices import in_slices
from kvitals.series.types import Labels
from kvitals.series.window import Window

WATCHED = SimpleNamespace(window=SimpleNamespace(oldest=0.0, select=lambda matchers, start, end: []))
SETUP = Setup(load(), Config())


async def test_a_query_that_can_not_be_answered_leaves_the_moment_out() -> None:
    """A query's time is by the clock, so a machine that stands still for some seconds makes one fail."""

    def observe(span: EvaluationSpan) -> Iterator[None]:
        yield
        raise PromQLError("the query took too long")

    pipeline = SimpleNamespace(observe_steps=observe, node=WATCHED, setup=SETUP)
    assert await judge(cast(Pipeline, pipeline), 1.0, Worker("judging")) == (
        "Not judged this time: the query took too long."
    )


async def test_a_moment_that_can_be_judged_is() -> None:
    seen: list[EvaluationSpan] = []

    def observe(span: EvaluationSpan) -> Iterator[None]:
        yield
        seen.append(span)

    pipeline = SimpleNamespace(observe_steps=observe, verdict=lambda: "All is well.", node=WATCHED, setup=SETUP)
    assert await judge(cast(Pipeline, pipeline), 2.0, Worker("judging")) == "All is well."
    assert seen == [EvaluationSpan(2.0, 5.0, seen=2.0)]


def test_the_short_window_is_not_longer_than_what_was_watched() -> None:
    """A rate over a minute of which a quarter was seen is a quarter: an agent's first minute showed 72 tokens/s of
    250."""
    watched = {seen: watched_span(1000.0, 1000.0 + seen).fast for seen in (2.0, 15.0, 45.0, 60.0, 5000.0)}
    assert watched == {2.0: 5.0, 15.0: 15.0, 45.0: 45.0, 60.0: 60.0, 5000.0: 60.0}


@pytest.mark.parametrize(("paused_for", "ago", "read"), [(14.0, 50.0, 50.0), (14.0, 20.0, 60.0), (5.0, 57.0, 60.0)])
def test_the_short_window_does_not_begin_in_a_pause(paused_for: float, ago: float, read: float) -> None:
    """A minute after the agent stood still for 14 s, each engine showed 788 tokens/s of 1,000 for some cycles."""
    window, now = Window(7200, 1000), 10_000.0
    group = window.group("engine")
    columns = [
        group.column(Labels({"__name__": name, "engine": "e"})) for name in ("kvitals_target_up", "tokens_total")
    ]
    for at in np.arange(now - 200, now + 1, 5.0):
        if not now - ago - paused_for < at < now - ago:
            group.append(float(at), [one for one in columns if one is not None], [1.0, 1000 * float(at)])
    seconds = read_seconds(window, now, 60.0, 12.5)
    assert seconds == read
    [tokens] = evaluate(parse(f"rate(tokens_total[{duration(seconds)}])"), window, now).values
    assert tokens == pytest.approx(1000, rel=0.05)


async def test_an_agent_that_has_just_started_calls_nothing_healthy() -> None:
    """Its first verdict, on one scrape, was "No trouble found"."""
    pipeline = Pipeline(Setup(load(), Config()), DocumentSource("agent", "a test"))
    verdicts = {}
    with CaptureReader.open(FOLDER / "healthy.kvcap") as reader:
        pipeline.node.expect(reader.header.meta)
        records = list(reader)
    first = records[0].t
    for seconds in (1.0, 5.0, 15.0):
        pipeline.ingest_recorded(record for record in records if first + seconds - 5.0 < record.t <= first + seconds)
        verdicts[seconds] = await judge(pipeline, first + seconds, Worker("judging"))
        assert pipeline.triage().window.seconds == pytest.approx(seconds, abs=1.0)
    assert "too short to rule out trouble" in verdicts[1.0]
    assert verdicts[5.0].startswith("Unknown")
    assert verdicts[15.0].startswith("No trouble found")


class Collecting:
    """A cycle whose collectors take as long as they are let; `ingested` has what it came to ingest."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), False
        self.ingested: list[Sequence[Record]] = []
        self.pipeline = Pipeline(Setup(load(), Config()), DocumentSource("agent", "a test"))
        console, state = Console(quiet=True), StateKeeper(folder / "state", print)
        reload = Reload(self.pipeline, lambda _: Setup(load(), Config()), console)
        self.cycle = Cycle(self.pipeline, reload, console, None, state, lambda: None)
        monkeypatch.setattr(self.pipeline.node, "collect", self._collect)
        monkeypatch.setattr(Ingestion, "take", self._take)

    async def _collect(self, patience: float | None = None, held: Container[str] = ()) -> list[Record]:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return []

    async def _take(self, records: Sequence[Record], interval: float) -> None:
        self.ingested.append(records)


async def test_a_stop_during_the_collection_ends_the_cycle_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, stop = Collecting(tmp_path, monkeypatch), asyncio.Event()
    running = asyncio.create_task(stage.cycle.run(stop))
    await asyncio.wait_for(stage.begun.wait(), 5)
    asked = time.monotonic()
    stop.set()
    await asyncio.wait_for(running, 5)
    assert time.monotonic() - asked < 1
    assert stage.cancelled and stage.ingested == []


async def test_a_cycle_that_is_not_stopped_ingests_what_was_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Collecting(tmp_path, monkeypatch)
    stage.go.set()
    await asyncio.wait_for(stage.cycle.run(asyncio.Event()), 20)
    assert stage.ingested == [[]] and not stage.cancelled


async def test_a_cycle_that_is_cancelled_cancels_the_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Collecting(tmp_path, monkeypatch)
    running = asyncio.create_task(stage.cycle.run(asyncio.Event()))
    await asyncio.wait_for(stage.begun.wait(), 5)
    running.cancel()
    await asyncio.wait({running}, timeout=5)
    assert running.cancelled() and stage.cancelled


def test_the_log_has_a_verdict_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each 2 s: "62 of 62 first tokens in time", "66 of 66 ..."."""
    stage, told = Collecting(tmp_path, monkeypatch), Console(file=io.StringIO(), width=200)
    stage.cycle._console = told
    for verdict in ("No trouble found: 62 of 62.", "No trouble found: 66 of 66.", "Slots are full.", "Slots are full."):
        stage.cycle._say(verdict)
    assert [line[10:] for line in told.file.getvalue().splitlines()] == [  # type: ignore[attr-defined]
        "No trouble found: 62 of 62.",
        "Slots are full.",
    ]


async def test_nothing_that_grows_with_engines_is_worked_out_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document of 250 engines, made on the loop when the configuration was loaded again, took 0.4 s of it."""
    threads: dict[str, set[str]] = {}

    def followed(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def follow(*arguments: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, follow)

    for owner, name in (
        (Pipeline, "_triage"),
        (Pipeline, "verdict"),
        (Judge, "_judge_rules"),
        (Judge, "_promoted"),
        (evaluator, "late_engines"),
        (Episodes, "changed"),
        (NodeChanges, "cycle"),
        (StateKeeper, "save"),
    ):
        followed(owner, name)
    config = Config(history=HistoryTable(directory=tmp_path, min_free_bytes=0), slo=SloTable(ttft_p99_seconds=0.5))
    pipeline = Pipeline(Setup(load(), config), DocumentSource("capture", "a test"))
    with CaptureReader.open(FOLDER / "few_slots.kvcap") as reader:
        pipeline.node.expect(reader.header.meta)
        records = list(reader)
    for record in records:
        pipeline.node.ingest_recorded(record)
    worker, last = Worker("judging"), records[-1].t
    for at in (last - 1.0, last):
        await judge(pipeline, at, worker)
    keeping = Keeping(pipeline, print)
    await in_slices(keeping.cycle_steps(last, {}), worker.run)
    collecting = Collecting(tmp_path, monkeypatch)
    collecting.go.set()
    await collecting.cycle.run(asyncio.Event())
    reload = Reload(pipeline, lambda _: Setup(load(), config), Console(quiet=True))
    assert await reload.look(at_once=True)
    main = threading.current_thread().name
    assert {name for name, seen in threads.items() if main in seen} == set()
    assert len(threads) == 8
