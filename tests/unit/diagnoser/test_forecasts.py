"""A lever's forecast is no worse than today: what it says "at least" of is the best that can come of it."""

from __future__ import annotations

from pathlib import Path

from tests.captures.looks import setup
from tests.support.recordings import judge

SCARCE = Path(__file__).parent / "scarce_slots.kvcap"
"""A vLLM 0.32 with two slots, where seldom more than one request waits."""


def test_no_lever_is_said_to_make_worse_what_it_is_for() -> None:
    """Two slots more were to leave at least 0.83 requests waiting, where 0.64 wait."""
    (cause, *_) = judge(SCARCE, setup(1.0, 0.1)).document.causes
    assert cause.code == "SCH01"
    found = [one for lever in cause.levers for one in lever.predicted if one.bound == "at least"]
    assert found and all(one.to <= one.from_ for one in found)
