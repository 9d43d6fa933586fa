"""Shares of observations within an objective: between which the true one lies, and how they are written."""

from __future__ import annotations

import numpy as np
import pytest

from kvitals.diagnoser.review.words import share, share_range
from kvitals.diagnoser.steps import Counts
from tests.unit.review.stage import engine, seen, week


def bounds(*edges: float) -> tuple[float, float] | None:
    """Of ten first tokens: eight in the first bucket, one in the second, one in the last. The objective is 0.5 s."""
    counts = Counts(np.array([*edges, np.inf]), np.array([[8.0, 9.0, 10.0]]))
    return week(seen((engine("a"),), 1, busy=1.0), latencies={"ttft_p99": {0: counts}}).within["ttft_p99"].bounds


@pytest.mark.parametrize(
    ("edges", "shares"),
    [
        ((0.25, 1.0), (0.8, 0.9)),  # inside of the second bucket
        ((0.5, 1.0), (0.8, 0.8)),
        ((0.25, 0.5), (0.9, 0.9)),
        ((0.75, 1.0), (0.0, 0.8)),
        ((0.1, 0.25), (0.9, 1.0)),  # beyond the last bound
    ],
)
def test_the_true_share_lies_between_those_of_the_buckets_around(
    edges: tuple[float, float], shares: tuple[float, float]
) -> None:
    assert bounds(*edges) == pytest.approx(shares)


def test_without_observations_there_is_no_share() -> None:
    assert week(seen((engine("a"),), 1, busy=1.0)).within["ttft_p99"].bounds is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100 %"), (0.9999, "99.99 %"), (0.995, "99.5 %"), (0.0, "0 %"), (0.0001, "0.01 %"), (0.412, "41 %")],
)
def test_some_of_a_whole_is_never_written_as_none_or_all_of_it(value: float, text: str) -> None:
    assert share(value) == text


def test_a_share_that_is_exact_has_no_range() -> None:
    assert share_range((0.8, 0.9)) == "between 80 % and 90 %"
    assert share_range((0.9, 0.9)) == share_range(None) == ""
