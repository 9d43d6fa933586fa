"""The arithmetic of the load at which too many are late."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.diagnoser.c_max import MIN_OBSERVATIONS, alike, crossing, in_time, isotonic_fit
from kvitals.diagnoser.steps import Counts

LOADS = np.array([4.0, 8.0, 12.0, 16.0, 24.0])
TOTAL = np.full(5, 500.0)


def test_what_was_in_time_is_exact_at_a_bound_and_linear_inside_of_a_bucket() -> None:
    of = Counts(np.array([0.1, 0.25, 0.5, np.inf]), np.array([[10.0, 20.0, 60.0, 80.0]]))
    assert [in_time(of, s)[0] for s in (0.05, 0.1, 0.25, 0.3, 0.5, 7.0)] == pytest.approx([5, 10, 20, 28, 60, 60])


def test_one_bad_step_at_a_low_load_does_not_end_it_there() -> None:
    found = crossing(LOADS, np.array([0, 6, 0, 0, 200.0]), TOTAL, 0.01)
    assert found is not None
    assert (found.below, found.above) == (16, 24)
    assert 16 < found.at < 24


def test_it_is_where_the_share_is_what_is_allowed() -> None:
    found = crossing(LOADS, np.array([0, 1, 2, 5, 50.0]), TOTAL, 0.01)
    assert found is not None
    assert found.at == pytest.approx(16, abs=0.5)


@pytest.mark.parametrize("late", [[0, 0, 0, 1, 2], [20, 30, 40, 50, 60]])
def test_where_it_always_or_never_holds_there_is_none(late: list[float]) -> None:
    assert crossing(LOADS, np.array(late, dtype=np.float64), TOTAL, 0.01) is None


@given(st.lists(st.integers(0, 100), min_size=2, max_size=12), st.floats(0.001, 0.3))
def test_it_lies_between_the_loads_beside_it_and_a_group_without_requests_changes_nothing(
    late: list[int], allowed: float
) -> None:
    load, total = np.arange(1.0, len(late) + 1), np.full(len(late), 100.0)
    found = crossing(load, np.array(late, dtype=np.float64), total, allowed)
    if found is not None:
        assert found.below <= found.at <= found.above
        assert found.above == found.below + 1
        empty = crossing(np.append(load, 99.0), np.append(late, 0.0), np.append(total, 0.0), allowed)
        assert empty == found


@given(st.lists(st.tuples(st.floats(0.5, 100), st.integers(0, 300)), max_size=60))
def test_each_group_has_enough_and_groups_rise(steps: list[tuple[float, int]]) -> None:
    load = np.array([n for n, _ in steps], dtype=np.float64)
    observations = np.array([k for _, k in steps], dtype=np.float64)
    number, count = alike(load, observations)
    if observations.sum() < MIN_OBSERVATIONS:
        assert count == 0
    for i in range(count):
        assert observations[number == i].sum() >= MIN_OBSERVATIONS
        assert i == 0 or load[number == i].min() >= load[number == i - 1].max()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_rising_never_falls_and_keeps_the_mean(values: list[float]) -> None:
    level = isotonic_fit(np.array(values), np.ones(len(values)))
    assert (np.diff(level) >= -1e-9).all()
    assert level.mean() == pytest.approx(np.mean(values))


def test_what_is_not_known_is_as_the_one_before() -> None:
    assert isotonic_fit(np.array([math.nan, 1.0, math.nan, 3.0]), np.ones(4)).tolist() == pytest.approx([0, 1, 1, 3])
