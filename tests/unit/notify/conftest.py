from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.agent.config import Config
from kvitals.rules.finding import Triage
from kvitals.rules.loader import load
from kvitals.ui.demo import DEMO
from kvitals.ui.pipeline import Setup
from kvitals.ui.recorded import judge_recording


@pytest.fixture(scope="session")
def full_cache() -> Triage:
    """What is said of a recorded engine whose KV cache is full (the recording that ships)."""
    return judge_recording(Path(DEMO), Setup(load(), Config())).document
