"""Figures that contradict themselves: a value printed as the limit it misses, counts that do not add up."""

from __future__ import annotations

import pytest

from kvitals.diagnoser.text import render, render_apart
from kvitals.rules.finding import Coverage
from kvitals.ui.cli.curve import SHARES, percent_short_of


@pytest.mark.parametrize(
    ("value", "limit", "unit", "text"),
    [
        (0.04996, 0.05, "count", "0.04996"),
        (0.89996, 0.9, "ratio", "89.996 %"),
        (1999.6, 2000.0, "count", "1999.6"),
        (0.05, 0.05, "count", "0.05"),
        (0.041, 0.05, "count", "0.04"),
    ],
)
def test_a_value_never_reads_like_a_limit_that_it_is_not(value: float, limit: float, unit: str, text: str) -> None:
    assert render_apart(value, limit, unit) == text
    assert (render_apart(value, limit, unit) == render(limit, unit)) is (value == limit)


def test_what_falls_short_of_ninety_percent_is_not_printed_as_ninety() -> None:
    """0.8956 was 89.5% here and 89.6% in the finding."""
    assert percent_short_of(0.8956, SHARES) == "89.6%"
    assert percent_short_of(0.8999, SHARES) == "89.9%"
    assert percent_short_of(0.9, SHARES) == "90.0%"


def test_outcomes_are_counted_as_judgements_where_they_are_more_than_rules() -> None:
    several = Coverage(rules=183, fired=8, clear=178, not_applicable=77, unknown=66, engines=[])
    assert several.summary.startswith("329 judgements of 183 rules: 8 fired, 178 clear")
    one = Coverage(rules=183, fired=8, clear=100, not_applicable=9, unknown=66, engines=[])
    assert one.summary == "183 rules: 8 fired, 100 clear, 9 not applicable, 66 not checked"


def test_one_token_is_one_token() -> None:
    assert [render(value, "tokens") for value in (0.8, 1.0, 1.004, 2.0)] == [
        "0.8 tokens",
        "1 token",
        "1 token",
        "2 tokens",
    ]
