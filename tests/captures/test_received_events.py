"""Received KV events override the flag: nobody is advised to enable what arrives."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import RecordingVerdict, judge_recording
from kvitals.config import Config
from kvitals.diagnoser.inspect import inspect
from kvitals.rules.loader import load

THRASH = Path(__file__).parent / "ledger/thrash.kvcap"


@cache
def judged() -> RecordingVerdict:
    return judge_recording(THRASH, Setup(load(), Config()), step=15.0)


def test_the_note_on_flags_does_not_name_kv_events() -> None:
    notes = [note for note in judged().document.notes if note.code == "TEL10"]
    lines = [line.labels for note in notes for evidence in note.evidence for line in evidence.lines]
    assert {"fact": "kv_events"} not in lines


def test_check_shows_them_switched_on_and_the_cascade_journey_served() -> None:
    pipeline = judged().pipeline
    assert pipeline.span is not None
    (target,) = inspect(pipeline.judge, pipeline.span, pipeline.source).targets
    (events,) = [switch for switch in target.switches if "--kv-events-config" in switch.flag]
    assert events.on is True
    (cascade,) = [score for score in target.scores if score.journey == "cascade"]
    assert not [lack for lack in cascade.lacks if "block by block" in lack.what]
