"""The files that begin first are there."""

from __future__ import annotations

from pathlib import Path

from tests.support.long_files import LONG

TESTS = Path(__file__).parents[1]


def test_files_that_begin_first_are_there() -> None:
    assert [name for name in LONG if not (TESTS / name).is_file()] == []
    assert len(set(LONG)) == len(LONG)
