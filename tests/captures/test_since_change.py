"""Recordings of a real vLLM that was restarted with one flag changed, made by tests/lab/changes.py: whether it is told
that the change worked, did nothing or made it worse, and whether what had been predicted came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.app.history_recorder import Keeping
from kvitals.app.node_changes import NodeChanges, outcome_event
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.since_change import NoChangeError, of_history, of_recording, since_change
from kvitals.config import Config, HistoryTable
from kvitals.rules.finding import DocumentSource, Effect, SinceChange, Triage
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureReader
from kvitals.series.window import Window
from kvitals.ui.cli.main import main
from tests.support.loops import some_of
from tests.unit.history.history_stage import until

FOLDER = Path(__file__).parent / "changes"
NAMES = sorted(file.stem for file in FOLDER.glob("*.kvcap"))


@cache
def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.truth.json").read_text())
    return found


@cache
def told(name: str) -> SinceChange:
    found = since_change(of_recording(FOLDER / f"{name}.kvcap", Setup(load([]), Config()))).document.since_change
    assert found is not None
    return found


def effect(name: str, metric: str) -> Effect:
    return next(one for one in told(name).effects if one.metric == metric)


def test_there_are_recordings() -> None:
    assert NAMES == ["blocks_in_vain", "blocks_raised", "load_changed", "slots_lowered", "slots_raised"]


@pytest.mark.parametrize("name", some_of(NAMES, 2))
def test_the_verdict_is_what_was_done(name: str) -> None:
    assert told(name).verdict == truth(name)["verdict"], told(name).conclusion


@pytest.mark.parametrize("name", NAMES)
def test_the_lever_is_the_one_that_was_pulled(name: str) -> None:
    lever = truth(name)["lever"]
    if lever and told(name).effects:  # without load on both sides nothing is looked at
        assert told(name).levers[:1] == [lever]


@pytest.mark.parametrize("name", NAMES)
def test_the_change_was_when_the_engine_was_started_anew(name: str) -> None:
    said = truth(name)
    assert said["ended"] <= told(name).at <= said["back"] + 5


def test_what_was_predicted_of_slots_came() -> None:
    queue = effect("slots_raised", "queue_mean_seconds")
    assert queue.predicted is not None and queue.predicted.to < queue.after < 0.2 * queue.before


def test_the_agent_writes_down_what_changed() -> None:
    pipeline = Pipeline(Setup(load([]), Config()), DocumentSource("capture", "slots_raised"))
    changes, events = NodeChanges(pipeline, Path("nowhere")), []
    with CaptureReader.open(FOLDER / "slots_raised.kvcap") as reader:
        pipeline.node.expect(reader.header.meta)
        for due in pipeline.replay(reader):
            events += changes.cycle(due)
    assert [(event.kind, event.text) for event in events] == [("config", "engine: slots 2 → 16")]


def test_what_came_of_a_change_is_an_event() -> None:
    event = outcome_event(1.0, told("slots_raised"))
    assert event.kind == "outcome" and event.entity == {"engine": "engine"}
    assert event.text.startswith("engine, slots 2 → 16: “Allow more concurrent requests” worked: ")


def test_what_the_replay_predicted_of_blocks_came() -> None:
    """The hits of the enlarged cache, beside those that a replay of the small one's look-ups said."""
    hits = effect("blocks_raised", "prefix_hit_ratio")
    assert hits.predicted is not None and hits.predicted.from_ < 0.6
    assert hits.after == pytest.approx(hits.predicted.to, abs=0.1)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeping]:
    """An agent that looked on, and its history."""
    config = Config(history=HistoryTable(directory=tmp_path_factory.mktemp("kept"), min_free_bytes=0))
    pipeline = Pipeline(Setup(load([]), config), DocumentSource("agent", "test"))
    keeping = Keeping(pipeline, lambda _: None)
    keeping.start("test")
    with CaptureReader.open(FOLDER / "slots_raised.kvcap") as reader:
        pipeline.node.expect(reader.header.meta)
        for due in pipeline.replay(reader):
            keeping.cycle(due, {})
            until(lambda due=due: keeping._history.status.committed == due, "not written")  # type: ignore[misc]
    yield keeping
    keeping.close()


def at(url: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["triage", "--since-change", url, "--json"])
    return stop.value.code, *capsys.readouterr()


async def test_an_agent_tells_by_its_url_what_its_history_does(
    kept: Keeping, capsys: pytest.CaptureFixture[str]
) -> None:
    app = build_app(
        ApiParts(
            Window(60, 10),
            {},
            findings=lambda: None,
            ready=lambda: True,
            notes=kept.past,
            since_change=kept.since_change,
        )
    )
    async with TestServer(app) as server:
        code, out, err = await asyncio.to_thread(at, str(server.make_url("/")), capsys)
    by_url = msgspec.json.decode(out, type=Triage)
    by_directory = since_change(of_history(kept.past.path, Setup(load([]), Config()), None, None)).document
    assert code == 0 and err == ""  # it worked: nothing is amiss any more
    assert by_url.since_change == by_directory.since_change
    assert by_url.since_change is not None and by_url.since_change.changed == ["slots 2 → 16"]
    assert [f.code for f in by_url.causes] == [f.code for f in by_directory.causes]


async def test_who_has_no_change_to_tell_of_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> bytes:
        raise NoChangeError("history contains no change of an engine's configuration")

    quiet = build_app(ApiParts(Window(60, 10), {}, findings=lambda: None, ready=lambda: True, since_change=none))
    other = build_app(ApiParts(Window(60, 10), {}, findings=lambda: None, ready=lambda: True))
    for app, message in ((quiet, "history contains no change"), (other, "keeps no history")):
        async with TestServer(app) as server:
            code, _, err = await asyncio.to_thread(at, str(server.make_url("/")), capsys)
        assert (code, message in err) == (2, True), err
