"""Tests that ask for the same verdict share it, and no other does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments
from kvitals.app.sources.recording_reader import span_of
from kvitals.config import Config, SloTable
from kvitals.rules.loader import load
from kvitals.ui.cli import triage
from tests.support.recordings import (
    CAPTURES,
    MAX_KEPT,
    RUN_FOLDER,
    SharedVerdict,
    _shared_verdict,
    end,
    judge,
    judged_once,
)


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


def test_the_document_of_another_process_is_that_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    path, setup = CAPTURES / "requests" / "stages.kvcap", Setup(load(), Config())
    own, other = (_shared_verdict(path, setup, Moments(), 15.0) for _ in range(2))
    assert not isinstance(own, SharedVerdict) and isinstance(other, SharedVerdict)
    assert other.document == own.document
    assert other.pipeline.triage() == own.document
    assert len(list(tmp_path.iterdir())) == 1
    for under, moments in (
        (setup, Moments(start=0.0)),
        (Setup(load(), Config(slo=SloTable(ttft_p99_seconds=0.1))), Moments()),
        (Setup(load(), Config(), {"ttft_p99": "command line"}), Moments()),
    ):
        assert not isinstance(_shared_verdict(path, under, moments, 15.0), SharedVerdict)
    assert len(list(tmp_path.iterdir())) == 4
    shutil.copy(path, tmp_path / "b.kvcap")
    assert not isinstance(_shared_verdict(tmp_path / "b.kvcap", setup, Moments(), 15.0), SharedVerdict)


def test_rules_of_ones_own_share_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    own = Setup(load(), Config())
    del own.knowledge.signals["ttft_p50_seconds"]
    _shared_verdict(CAPTURES / "requests" / "stages.kvcap", own, Moments(), 15.0)
    assert list(tmp_path.iterdir()) == []


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
