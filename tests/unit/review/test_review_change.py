"""Why a week is better or worse: the factors add up, and name what was changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.diagnoser.review.change import Totals, explain_change

WEEK = Totals(
    gpu_hours=100.0, busy_hours=60.0, output=1e6, prompt=5e6, computed=2e6, again=0.0, prefill=4e5, decode=6e5
)


def rate(several: list[Totals]) -> float:
    return sum(one.output for one in several) / sum(one.gpu_hours for one in several)


@pytest.mark.parametrize(
    ("factor", "after"),
    [
        ("load", replace(WEEK, gpu_hours=120.0)),
        ("batch", replace(WEEK, busy_hours=50.0, gpu_hours=50.0 / 0.6)),
        # prefill takes as much a token; more tokens are computed because fewer were found
        ("hits", replace(WEEK, computed=4e6, prefill=8e5, gpu_hours=140.0, busy_hours=84.0)),
        ("waste", replace(WEEK, computed=4e6, again=2e6, prefill=8e5, gpu_hours=140.0, busy_hours=84.0)),
        ("mix", replace(WEEK, prompt=1e7, computed=4e6, prefill=8e5, gpu_hours=140.0, busy_hours=84.0)),
        ("prefill", replace(WEEK, prefill=8e5, gpu_hours=140.0, busy_hours=84.0)),
        ("decode", replace(WEEK, decode=1.2e6, gpu_hours=160.0, busy_hours=96.0)),
    ],
)
def test_the_factor_that_changed_is_the_whole_change(factor: str, after: Totals) -> None:
    parts = {name: value for name, value in explain_change([WEEK], [after]).items() if abs(value) > 1e-6}
    assert parts == {factor: pytest.approx(rate([after]) - rate([WEEK]))}


def test_a_pool_that_came_is_a_factor_of_its_own() -> None:
    nothing = Totals(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    slow = replace(WEEK, output=1e5)
    parts = explain_change([WEEK, nothing], [WEEK, slow])
    assert set(parts) == {"pools"}
    assert parts["pools"] == pytest.approx(rate([WEEK, slow]) - rate([WEEK]))


def test_engines_that_tell_no_phases_are_told_by_load_and_speed() -> None:
    bare = replace(WEEK, prefill=0.0, decode=0.0)
    parts = explain_change([bare], [replace(bare, busy_hours=30.0, output=4e5)])
    assert set(parts) == {"load", "busy"}
    assert sum(parts.values()) == pytest.approx(4e3 - 1e4)


_some = st.floats(1.0, 1e8)
_totals = st.builds(
    lambda hours, busy, output, prompt, computed, again, prefill, decode: Totals(
        hours, hours * busy, output, prompt, prompt * computed, prompt * computed * again, prefill, decode
    ),
    st.floats(1.0, 1e5),
    *[st.one_of(st.just(0.0), st.floats(1e-3, 1.0))],
    st.one_of(st.just(0.0), _some),
    st.one_of(st.just(0.0), _some),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.one_of(st.just(0.0), _some),
    st.one_of(st.just(0.0), _some),
)


@given(st.lists(st.tuples(_totals, _totals), min_size=1, max_size=3))
def test_factors_add_up_to_the_change_of_any_weeks(pools: list[tuple[Totals, Totals]]) -> None:
    before, after = ([pair[i] for pair in pools] for i in (0, 1))
    scale = max(rate(before), rate(after), 1e-9)
    assert sum(explain_change(before, after).values()) == pytest.approx(rate(after) - rate(before), abs=1e-6 * scale)
