"""No lever that is in force, impossible, contradictory or beside the point was offered on recorded incidents."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.captures.levers_offered import of_capture
from tests.captures.steadiness import recorded

FEW = [*recorded()[:6:2], *recorded()[6::7]]
"""Of all some; the others are checked by `python -m tests.captures.levers_offered`."""


offered = cache(of_capture)


@pytest.mark.parametrize("capture", FEW, ids=lambda capture: capture.stem)
def test_what_was_offered_could_be(capture: Path) -> None:
    _, _, wrong = offered(capture)
    assert wrong == []


def test_something_was_offered() -> None:
    counts = {capture.stem: offered(capture)[1] for capture in FEW[:3]}
    assert counts.pop("healthy") == 0
    assert len(counts) == 2 and min(counts.values()) >= 3
