"""Tests that ask for the same verdict share it, and no other does."""

from __future__ import annotations

import shutil
from pathlib import Path

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments, span_of
from kvitals.config import Config, SloTable
from kvitals.rules.loader import load
from kvitals.ui.cli import triage
from tests.support.recordings import CAPTURES, MAX_KEPT, end, judge, judged_once


def test_a_verdict_is_shared_by_equal_questions_alone(tmp_path: Path) -> None:
    path, setup = tmp_path / "a.kvcap", Setup(load(), Config())
    shutil.copy(CAPTURES / "requests" / "stages.kvcap", path)
    verdict = judge(path, setup)
    assert judge(path, Setup(load(), Config())) is verdict
    first, last = span_of(path)
    assert judge(path, setup, Moments((first + last) / 2)) is not verdict
    assert judge(path, Setup(load(), Config(slo=SloTable(ttft_p99_seconds=0.1)))) is not verdict
    assert judge(path, setup) is verdict
    shutil.copy(CAPTURES / "requests" / "pair.kvcap", path)
    assert judge(path, setup).document != verdict.document
    assert MAX_KEPT < 20, "each keeps a pipeline"


def test_an_end_is_shared_by_equal_questions_alone() -> None:
    path = CAPTURES / "requests" / "stages.kvcap"
    read = end(path, Config())
    assert end(path, Config(), {}) is read
    assert end(path, Config(slo=SloTable(ttft_p99_seconds=0.1))) is not read


def test_commands_judge_for_themselves_afterwards() -> None:
    before = triage.judge_recording
    with judged_once(triage):
        assert triage.judge_recording is judge
    assert triage.judge_recording is before
