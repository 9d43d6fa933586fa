"""No sentence of a verdict is false against the numbers of its own document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.sentences import _compared, _parts, of_capture
from tests.captures.steadiness import recorded
from tests.support.loops import some_of

FEW = recorded()[::12]
"""Of all some; the others are checked by `python -m tests.captures.sentences`."""


@pytest.mark.parametrize("capture", some_of(FEW, 3, ids=lambda capture: capture.stem))
def test_sentences_are_true(capture: Path) -> None:
    _, count, wrong = of_capture(capture)
    assert count > 0
    assert wrong == []


def test_a_false_comparison_is_found() -> None:
    assert list(_compared("kv usage p90 is 95 %, not above 90 %")) == ["“is 95 %, not above 90 %” does not hold"]
    assert list(_compared("kv usage p90 is 41 %, not above 90 %")) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ttft mean is 1.2 s, below 900 ms", ["“is 1.2 s, below 900 ms” does not hold"]),
        ("ttft mean is 200 ms, below 1 s", []),
        (
            "prompt tokens mean is 64 tokens, above 81.9 tokens",
            ["“is 64 tokens, above 81.9 tokens” does not hold"],
        ),
        ("prefill tokens p50 is 99 tokens, not above 8 * decode (128 tokens)", []),
    ],
)
def test_units_and_calculated_limits_are_compared(text: str, wrong: list[str]) -> None:
    assert list(_compared(text)) == wrong


def test_a_part_that_is_more_than_the_whole_is_found() -> None:
    assert list(_parts("12 of 10 first tokens")) == ["“12 of 10” is more than all"]
    assert list(_parts("9 of the 10 engines")) == []
