"""What the committed timestamp has shown is there after SIGKILL, to the bit; a reader meanwhile sees no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.history import killed


@pytest.mark.system
def test_no_tick_that_was_shown_is_lost(tmp_path: Path) -> None:
    shown, lost = killed(tmp_path, kills=10, longest=0.5)
    assert shown >= 10
    assert lost == 0
