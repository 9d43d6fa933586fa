"""Recorded incidents of real engines: each must get its right first cause, and keep it."""

import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from kvitals.app.demo import HEAVY_TENANT, incidents
from kvitals.app.pipeline import Pipeline
from kvitals.app.sources.recording import RecordingVerdict, judge_recording, judged_before, with_window
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.series.recordings import CaptureReader
from tests.captures.looks import cold_look, setup_of, truth

FILES = incidents()
IDS = [path.stem for path in FILES]
SETTLED_SECONDS = 20.0  # at the end of a recording, in which its verdict must stand still


@cache
def replayed(path: Path) -> tuple[list[Triage], RecordingVerdict]:
    """What was said while the verdict must stand still, and at the end: one replay for both."""
    first, last = span_of(path)
    pipeline = Pipeline(with_window(setup_of(path), last - first), DocumentSource("capture", path.name))
    with CaptureReader.open(path) as reader:
        pipeline.node.expect(reader.header.meta)
        moments = judged_before(last, pipeline, reader)
        settled = [pipeline.triage() for at in moments if at >= last - SETTLED_SECONDS]
        assert reader.damage is None
    pipeline.flush(last)
    pipeline.observe_last_regime(first, last)
    return settled, RecordingVerdict(pipeline, pipeline.triage())


def at_the_end(path: Path) -> RecordingVerdict:
    return replayed(path)[1]


def codes(document: Triage) -> list[str]:
    return [cause.code for cause in document.causes]


def right(document: Triage, expect: list[str]) -> bool:
    found = codes(document)
    return found[:1] == [] if not expect else bool(found) and found[0] in expect


def test_the_six_situations_are_there() -> None:
    assert {truth(path)["scenario"] for path in FILES} >= {
        "healthy", "heavy_tenant", "caching_off", "few_slots", "working_set", "unique_prompts",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_the_first_cause_is_the_right_one(path: Path) -> None:
    judged = at_the_end(path)
    assert judged.document.coverage.warnings == []
    assert right(judged.document, truth(path)["expect"]), (codes(judged.document), judged.document.verdict)
    assert judged.document.healthy is (not truth(path)["expect"])


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_cold_look_of_twelve_seconds_says_the_same(path: Path) -> None:
    _, last = span_of(path)
    document = cold_look(path, setup_of(path), last).triage()
    assert right(document, truth(path)["expect"]), (codes(document), document.verdict)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_the_verdict_stands_still_once_the_incident_has_settled(path: Path) -> None:
    settled, judged = replayed(path)
    assert len(settled) >= 3
    assert {tuple(codes(d)[:1]) for d in settled} == {tuple(codes(judged.document)[:1])}


def test_the_end_is_what_is_said_of_the_file() -> None:
    assert judge_recording(HEAVY_TENANT, setup_of(HEAVY_TENANT)).document == at_the_end(HEAVY_TENANT).document


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_finding_carries_its_proof_and_a_way_out(path: Path) -> None:
    for cause in at_the_end(path).document.causes:
        assert cause.evidence and all(e.lines for e in cause.evidence if e.text != "unknown")
        assert "unknown" not in cause.conclusion
        assert cause.levers or cause.explained_by
        for lever in cause.levers:
            assert lever.setting is None or lever.setting.flag.startswith("-")


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_the_document_survives_json(path: Path) -> None:
    document = at_the_end(path).document
    assert msgspec.json.decode(msgspec.json.encode(document), type=Triage) == document


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_symptom_has_its_explanation(path: Path) -> None:
    document = at_the_end(path).document
    explained = {code for cause in document.causes for code in cause.explains}
    assert {s.code for s in document.symptoms if s.severity != "info"} <= explained


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_what_is_ruled_out_is_by_a_number(path: Path) -> None:
    """Save what is switched off, which has none."""
    for ruled_out in at_the_end(path).document.ruled_out:
        assert re.search(r"\d| on is no$|^covered by [A-Z]{3}\d\d$", ruled_out.because), ruled_out


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_client_and_engine_agree_about_the_tail(path: Path) -> None:
    """What the load driver measured at its end is what the signal says, within the histogram's resolution."""
    incident = truth(path)["phases"][-1]
    judged = at_the_end(path)
    known = judged.pipeline.judge.signals.known["ttft_p50_seconds"].values
    measured = incident["ttft_s"]["p50"]
    assert list(known.values()) == [pytest.approx(measured, rel=0.6, abs=0.05)]
