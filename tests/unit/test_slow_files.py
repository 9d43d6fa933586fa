"""The files that `make test` leaves out are there."""

from __future__ import annotations

from pathlib import Path

from tests.support.slow_files import SLOW

TESTS = Path(__file__).parents[1]


def test_slow_files_are_there() -> None:
    assert [name for name in SLOW if not (TESTS / name).is_file()] == []
    assert len(set(SLOW)) == len(SLOW)
