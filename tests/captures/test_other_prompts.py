"""Traffic that changes to prompts that share nothing: that the hit rate fell is no cause of what it does not slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.app.sources.recording import judge_recording
from kvitals.rules.finding import Triage
from tests.captures.looks import setup_of, truth

FOLDER = Path(__file__).parent / "other_prompts"


def judged(name: str) -> Triage:
    path = FOLDER / f"{name}.kvcap"
    return judge_recording(path, setup_of(path)).document


@pytest.mark.parametrize("name", ["few_slots", "one_of_two"])
def test_a_queue_for_slots_is_not_explained_by_prefill_that_takes_little_time(name: str) -> None:
    """ "Prompts no longer share their beginning" was the verdict, with 15 ms of prefill beside a TTFT of 7 s."""
    document = judged(name)
    assert document.causes[0].code == "SCH01", document.verdict
    [heads] = [cause for cause in document.causes if cause.code == "PFX10"]
    late = {symptom.id for symptom in document.symptoms if symptom.code == "LAT01"}
    assert late and late.isdisjoint(heads.explained)


def test_other_prompts_that_are_in_time_are_no_trouble() -> None:
    document = judged("in_time")
    clients = truth(FOLDER / "in_time.kvcap")["clients"]
    assert clients["ttft_ms"]["p99"] < 2000 and clients["itl_ms"]["p99"] < 200
    assert document.healthy, document.verdict
