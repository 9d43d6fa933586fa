"""Kleene logic: missing data decides nothing that it should not decide."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.diagnoser.kleene import Values, decide, truths
from kvitals.rules.condition import Comparison, parse_condition
from kvitals.series.types import Labels

ENTITY = Labels({"engine": "e"})
OTHER = Labels({"engine": "of which nothing is known"})
TRUTH = {"t": 2.0, "f": 0.0, "u": None}
MEANS = {"t": True, "f": False, "u": None}


def verdict(text: str, known: dict[str, float | None]) -> bool | None:
    def side(comparison: Comparison) -> tuple[Values, Values]:
        value = known[str(comparison.left)]
        return ({} if value is None else {ENTITY: value}), 1.0

    condition, both = parse_condition(text), [ENTITY, OTHER]
    found = [decide(condition, entity, side).truth for entity in both]
    assert truths(condition, both, side) == found
    assert truths(condition, both[:1], side) == found[:1]
    return found[0]


@pytest.mark.parametrize(("a", "b"), list(itertools.product("tfu", repeat=2)))
def test_truth_tables(a: str, b: str) -> None:
    known = {"a": TRUTH[a], "b": TRUTH[b]}
    left, right = MEANS[a], MEANS[b]
    both = False if left is False or right is False else (None if left is None or right is None else True)
    either = True if left or right else (False if left is False and right is False else None)
    not_right = None if right is None else not right
    neither = False if left is False or not_right is False else (None if left is None or not_right is None else True)
    assert verdict("a > 1 and b > 1", known) is both
    assert verdict("a > 1 or b > 1", known) is either
    assert verdict("a > 1 unless b > 1", known) is neither


@given(st.lists(st.sampled_from("tfu"), min_size=3, max_size=3))
def test_filling_in_a_missing_value_never_overturns_a_decision(values: list[str]) -> None:
    text = "a > 1 and b > 1 or c > 1 unless a > 1"
    known = dict(zip("abc", (TRUTH[v] for v in values), strict=True))
    decided = verdict(text, known)
    if decided is not None:
        for fill in itertools.product((0.0, 2.0), repeat=3):
            filled = {n: v if v is not None else f for (n, v), f in zip(known.items(), fill, strict=True)}
            assert verdict(text, filled) is decided


def test_nan_is_unknown() -> None:
    assert verdict("a > 1", {"a": float("nan")}) is None


@pytest.mark.parametrize("text", ["a", "a + b", "rate(a[1m])", "a > 1 and b"])
def test_a_condition_is_made_of_comparisons(text: str) -> None:
    with pytest.raises(Exception, match="is not a comparison"):
        parse_condition(text)
