"""The recorded incidents under tighter objectives: what narrows a symptom down says what the recording's engine did."""

from functools import cache
from pathlib import Path

import pytest

from kvitals.app.demo import incidents
from kvitals.app.sources.recording import judge_recording
from kvitals.rules.finding import Finding, Triage
from tests.captures.looks import setup
from tests.support.loops import some_of

FILES = {path.stem: path for path in (*incidents(), *Path(__file__).with_name("others").glob("*.kvcap"))}


@cache
def judged(name: str, ttft: float, itl: float) -> Triage:
    return judge_recording(FILES[name], setup(ttft, itl)).document


def open_in(document: Triage) -> dict[str, Finding]:
    return {f.code: f for f in (*document.causes, *document.symptoms, *document.notes)}


@pytest.mark.parametrize("name", ["caching_off", "unique_prompts", "working_set"])
def test_prompts_that_are_computed_beside_answers_make_the_gaps_and_come_after_what_makes_them_computed(
    name: str,
) -> None:
    document = judged(name, ttft=0.1, itl=0.03)
    first, *others = document.causes
    assert first.code in ("PFX02", "PFX10", "KVC06")
    assert [cause.code for cause in others] == ["LAT08"]
    assert first.code in others[0].explained_by


@pytest.mark.parametrize("name", ["unique_prompts", "working_set"])
def test_both_objectives_breach_by_prefill(name: str) -> None:
    assert "LAT09" in open_in(judged(name, ttft=0.1, itl=0.03))


@pytest.mark.parametrize("name", some_of(["unique_prompts", "caching_off", "sglang_working_set", "working_set"], 2))
def test_first_tokens_are_late_without_load(name: str) -> None:
    found = open_in(judged(name, ttft=0.1, itl=0.5))
    assert "LAT06" in found
    assert not {"LAT07", "LAT08", "SCH09", "GRD04"} & found.keys()


@pytest.mark.parametrize("name", ["few_slots", "heavy_tenant", "dynamo_overload"])
def test_where_requests_queue_load_is_no_stranger(name: str) -> None:
    found = open_in(judged(name, ttft=0.1, itl=0.5))
    assert not {"LAT06", "LAT07", "LAT08", "LAT09", "SCH09"} & found.keys()


@pytest.mark.parametrize("name", ["few_slots", "dynamo_overload"])
def test_a_queue_for_slots_hits_everyone(name: str) -> None:
    assert "LAT04" in open_in(judged(name, ttft=0.1, itl=0.5))


@pytest.mark.parametrize("name", some_of(["healthy", "sglang_healthy", "pd_healthy", "dynamo_healthy"], 2))
def test_objectives_that_no_engine_can_keep_name_no_cause(name: str) -> None:
    document = judged(name, ttft=0.02, itl=0.01)
    assert document.causes == []
