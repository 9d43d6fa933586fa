"""Recorded incidents of systems other than one vLLM (SGLang, a pair over NIXL, Dynamo), and one more of it."""

from functools import cache
from pathlib import Path

import pytest

from kvitals.app.sources.recording import Moments, RecordingVerdict, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Triage
from tests.captures.looks import cold_look, setup_of, truth
from tests.support.loops import some_of

FILES = sorted((Path(__file__).parent / "others").glob("*.kvcap"))
INCIDENTS = [path for path in FILES if not path.stem.endswith("_healthy")]


def name(path: Path) -> str:
    return path.stem


@cache
def at_the_end(path: Path) -> RecordingVerdict:
    return judge_recording(path, setup_of(path))


def first_cause(document: Triage) -> str:
    return document.causes[0].code if document.causes else "nothing"


def expected(path: Path) -> list[str]:
    return truth(path)["expect"] or ["nothing"]


IN_TIME_AT_THE_END = {"sglang_working_set"}
"""No first token of the last twelve seconds is late, so the cause is a note there."""


def test_each_system_has_an_incident_and_a_healthy_run() -> None:
    for system in ("sglang", "pd", "dynamo"):
        has = {bool(truth(path)["expect"]) for path in FILES if truth(path)["system"] == system}
        assert has == {True, False}, system


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_first_cause_is_the_right_one(path: Path) -> None:
    at_end = at_the_end(path)
    assert at_end.document.coverage.warnings == []
    assert first_cause(at_end.document) in expected(path), at_end.document.verdict
    # Dynamo's mocker does not say enough to be called healthy, and is not called ill.
    assert (at_end.document.healthy is False) is bool(truth(path)["expect"]), at_end.document.verdict


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_cold_look_of_twelve_seconds_says_the_same(path: Path) -> None:
    _, last = span_of(path)
    document = cold_look(path, setup_of(path), last).triage()
    if path.stem in IN_TIME_AT_THE_END:
        assert (first_cause(document), document.healthy) == ("nothing", True), document.verdict
        assert set(expected(path)) <= {note.code for note in document.notes}
    else:
        assert first_cause(document) in expected(path), document.verdict


@pytest.mark.parametrize("path", some_of(INCIDENTS, 2, ids=name))
def test_before_the_incident_there_is_nothing_to_find(path: Path) -> None:
    begun = truth(path)["phases"][1]["start"]
    document = judge_recording(path, setup_of(path), Moments(at=begun - 1, start=begun - 16)).document
    assert first_cause(document) == "nothing", document.verdict


@pytest.mark.parametrize("path", FILES, ids=name)
def test_servers_counted_what_the_clients_did(path: Path) -> None:
    """The recordings are of real work: some server counted each prompt token that the clients sent."""
    compared = truth(path)["compared"]
    if truth(path)["scenario"] == "pd_dead_prefill":
        assert compared["servers"]["prefill"] is None
        return
    sent = compared["clients"]["prompt_tokens"]
    assert sent > 0
    assert sent in [numbers["prompt_tokens"] for numbers in compared["servers"].values()]
