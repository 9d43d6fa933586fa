"""No sentence of a verdict is false against the numbers of its own document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.sentences import _compared, of_capture
from tests.captures.steadiness import recorded

FEW = recorded()[::12]
"""Of all some; the others are checked by `python -m tests.captures.sentences`."""


@pytest.mark.parametrize("capture", FEW, ids=lambda capture: capture.stem)
def test_sentences_are_true(capture: Path) -> None:
    _, count, wrong = of_capture(capture)
    assert count > 0
    assert wrong == []


def test_a_false_comparison_is_found() -> None:
    assert list(_compared("kv usage p90 is 95 %, not above 90 %")) == ["“is 95 %, not above 90 %” does not hold"]
    assert list(_compared("kv usage p90 is 41 %, not above 90 %")) == []
