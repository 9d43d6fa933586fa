"""Recordings as they are judged under the defaults, each once in a process: several files of tests ask about one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kvitals.app.pipeline import STEP_SECONDS, Setup
from kvitals.app.sources.recording import RecordingVerdict, judge_recording
from kvitals.config import Config
from kvitals.rules.loader import load

CAPTURES = Path(__file__).parents[1] / "captures"


@cache
def setup() -> Setup:
    """The rules that ship, under the default configuration."""
    return Setup(load(), Config())


@cache
def judged(name: str, step: float = STEP_SECONDS) -> RecordingVerdict:
    """A recording below tests/captures, such as `ledger/thrash`, at its end. step: seconds between judgements.

    What it returns is shared: a test that observes another moment replays the recording for itself.
    """
    return judge_recording(CAPTURES / f"{name}.kvcap", setup(), step=step)
