from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import Config
from rules.finding import Triage
from rules.loader import load
from ui.demo import DEMO
from ui.pipeline import Setup
from ui.recorded import judge_recording


@pytest.fixture(scope="session")
def full_cache() -> Triage:
    """What is said of a recorded engine whose KV cache is full (the recording that ships)."""
    return judge_recording(Path(DEMO), Setup(load(), Config())).document
