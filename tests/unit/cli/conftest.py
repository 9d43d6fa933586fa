"""Commands run in this process, and may judge a recording once for all tests that ask for the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvitals.app import cache, comparison, request_sources
from kvitals.app.load import recorded_incident
from kvitals.app.sources import fleet_source
from kvitals.ui.cli import check, patch, replay, triage
from tests.support.recordings import judged_once


@pytest.fixture
def shared_verdicts() -> Iterator[None]:
    """For tests of what a command prints; not for those that change what judges."""
    with judged_once(cache, check, comparison, fleet_source, patch, recorded_incident, replay, request_sources, triage):
        yield
