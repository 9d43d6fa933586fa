from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.rules.finding import Triage
from tests.support.recordings import judge, setup


@pytest.fixture(scope="session")
def full_cache() -> Triage:
    """What is said of a recorded engine whose KV cache is full (the recording that ships)."""
    return judge(Path(HEAVY_TENANT), setup()).document
