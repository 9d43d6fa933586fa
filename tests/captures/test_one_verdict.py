"""One verdict per recording and moment, whichever surface tells it: triage, replay and the page's timeline."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments, judge_recording, verdicts
from kvitals.app.sources.recording_reader import span_of
from kvitals.config import Config
from kvitals.rules.finding import Triage
from kvitals.rules.loader import load
from kvitals.ui.web.sources.recording import Recording

FOLDER = Path(__file__).parent
NAMES = [
    "incidents/uneven-1",
    "incidents/kv_full_and_unique_heads-1",
]


@cache
def setup() -> Setup:
    return Setup(load(), Config())


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.kvcap"


def said(document: Triage) -> dict[str, object]:
    """What a document says, without the evidence over time and what is predicted of levers."""
    findings = [*document.causes, *document.symptoms, *document.telemetry, *document.notes]
    return {
        "verdict": document.verdict,
        "healthy": document.healthy,
        "window": document.window,
        "findings": [(f.code, f.entity.title, f.conclusion, f.confidence, f.since) for f in findings],
        "unknown": [(f.code, f.reason) for f in document.unknown],
    }


def differing(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """The parts of two documents that differ; whole documents take a test long to compare."""
    return [key for key in one if one[key] != other[key]]


@cache
def course(name: str) -> list[tuple[float, dict[str, object]]]:
    return [(at, said(document)) for at, document in verdicts(path_of(name), setup())]


@pytest.mark.parametrize("name", NAMES)
def test_the_last_verdict_of_replay_is_that_of_triage(name: str) -> None:
    at, document = course(name)[-1]
    assert at == span_of(path_of(name))[1]
    assert differing(document, said(judge_recording(path_of(name), setup()).document)) == []
    assert document["healthy"] is False


@pytest.mark.parametrize("name", NAMES[:1])
def test_a_verdict_of_replay_is_that_of_triage_at_its_moment(name: str) -> None:
    for at, document in course(name)[4:5]:
        assert differing(document, said(judge_recording(path_of(name), setup(), Moments(at=at)).document)) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_timeline_shows_the_verdicts_of_replay(name: str) -> None:
    source = Recording(path_of(name), name, setup())
    assert source._done.wait(600)
    extent = source.extent()
    shown = [one for one in source.past(extent.start, extent.end).happened if one.kind == "verdict"]
    for at, document in course(name):
        (told,) = {one.title for one in shown if one.start <= at and (at < (one.end or at) or one is shown[-1])}
        assert told == document["verdict"]
    assert shown[-1].title == source.findings(None).verdict


def test_a_cause_does_not_vanish_when_there_is_history() -> None:
    """At 90 s a recording has history and `for` applies: what fired just before goes on while it is true."""
    path = FOLDER.parents[1] / "app" / "demo" / "heavy_tenant.kvcap"
    first, _ = span_of(path)
    for seconds in (85, 90, 95):
        document = judge_recording(path, setup(), Moments(at=first + seconds)).document
        assert document.healthy is False
        assert document.causes[0].code == "KVC01"
