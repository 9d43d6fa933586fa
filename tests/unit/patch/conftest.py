"""`kvitals patch` runs in this process, and the recordings that it reads are judged once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvitals.ui.cli import patch
from tests.support.recordings import judged_once


@pytest.fixture(autouse=True)
def shared_verdicts() -> Iterator[None]:
    """No test here changes what judges."""
    with judged_once(patch):
        yield
