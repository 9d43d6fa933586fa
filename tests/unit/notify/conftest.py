from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.app.demo import DEMO
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import judge_recording
from kvitals.config import Config
from kvitals.rules.finding import Triage
from kvitals.rules.loader import load


@pytest.fixture(scope="session")
def full_cache() -> Triage:
    """What is said of a recorded engine whose KV cache is full (the recording that ships)."""
    return judge_recording(Path(DEMO), Setup(load(), Config())).document
