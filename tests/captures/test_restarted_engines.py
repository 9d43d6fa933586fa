"""Recordings of a real vLLM that was restarted with one flag changed: what the verdict says is of the new process."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.config import Config
from kvitals.rules.finding import Triage
from kvitals.rules.loader import load

FOLDER = Path(__file__).parent / "changes"
RAISED, LOWERED = "slots_raised", "slots_lowered"
OBJECTIVE = 2.0
"""Seconds to the first token, at p99: the default."""


@cache
def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.truth.json").read_text())
    return found


@cache
def after(name: str, seconds: float) -> Triage:
    """What is said so many seconds after the new process served."""
    setup = Setup(load([]), Config())
    return judge_recording(FOLDER / f"{name}.kvcap", setup, Moments(truth(name)["back"] + seconds)).document


def codes(document: Triage) -> set[str]:
    return {finding.code for finding in (*document.causes, *document.symptoms)}


@pytest.mark.parametrize("seconds", [2, 8, 13, 20, 30, 40])
def test_what_was_true_of_the_former_process_is_not_said_of_the_new_one(seconds: float) -> None:
    """The clients' p99 fell from 4.4 s to 0.56 s. It was above its objective with an unknown cause to the end."""
    assert truth(RAISED)["after"]["ttft_s"]["p99"] < OBJECTIVE < truth(RAISED)["before"]["ttft_s"]["p99"]
    assert not codes(after(RAISED, seconds))


@pytest.mark.parametrize("seconds", [13, 20, 30, 40])
def test_a_process_that_meets_its_objective_is_healthy(seconds: float) -> None:
    document = after(RAISED, seconds)
    assert document.healthy and document.verdict.startswith("No trouble found")


def test_what_is_in_time_is_counted_over_the_new_process_alone() -> None:
    requests = truth(RAISED)["after"]["requests"]
    verdict = after(RAISED, 44).verdict
    seen = int(verdict.removeprefix("No trouble found: ").split()[0])
    assert f"{seen} of {seen} first tokens in time in 40 s" in verdict
    assert seen == pytest.approx(requests * 40 / 45, rel=0.1)


@pytest.mark.parametrize("seconds", [2, 8])
def test_a_few_seconds_rule_nothing_out(seconds: float) -> None:
    document = after(LOWERED, seconds)
    assert document.healthy is None
    assert "engine has restarted and was read for" in document.verdict
    assert document.verdict.endswith("s since then: too short to rule out trouble.")


@pytest.mark.parametrize("seconds", [25, 40, 55])
def test_trouble_of_the_new_process_is_not_hidden_by_the_former_one(seconds: float) -> None:
    """The clients' p99 rose from 1.3 s to 3.7 s. There was no trouble for 25 s, and no symptom for 45 s."""
    assert truth(LOWERED)["before"]["ttft_s"]["p99"] < OBJECTIVE < truth(LOWERED)["after"]["ttft_s"]["p99"]
    document = after(LOWERED, seconds)
    assert document.causes[0].code == "SCH01"
    assert seconds < 40 or "LAT01" in codes(document)


def test_a_finding_is_measured_over_the_time_since_the_restart() -> None:
    document = after(LOWERED, 25)
    windows = {m.window for finding in document.causes if finding.code == "SCH01" for m in finding.measures}
    assert windows - {None} == {20.0}
