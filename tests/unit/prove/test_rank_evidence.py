"""The sequential test, by simulation: no false alarm however often it is read, and power where there is an effect."""

import math
from itertools import permutations

import numpy as np
import pytest

from kvitals.diagnoser.rank_evidence import (
    RatioInterval,
    block_factor,
    block_means,
    evidence_limit,
    evidence_of_decrease,
    evidence_of_increase,
    ratio_interval,
)
from tests.unit.prove.blocks import correlated_blocks

ALPHA = 0.05
RUNS = 300
BEFORE, AFTER = 12, 24


def sequence(before: list[float], after: list[float], alpha: float) -> list[RatioInterval]:
    """The confidence sequence as a reader sees it, block by block."""
    found: list[RatioInterval] = []
    for k in range(1, len(after) + 1):
        interval = ratio_interval(before, after[:k], alpha)
        assert interval is not None
        found.append(interval.meet(found[-1] if found else None))
    return found


def test_evidence_is_an_expectation_of_one_over_all_orders() -> None:
    """Over all orders of two values before and three after, the mean e-value is 1: exactly, not by simulation."""
    orders = list(permutations([1.0, 2.0, 3.0, 4.0, 5.0]))
    for evidence in (evidence_of_increase, evidence_of_decrease):
        assert math.isclose(sum(evidence(o[:2], o[2:]) for o in orders) / len(orders), 1.0, rel_tol=1e-9)


def test_evidence_of_a_next_block_is_one_on_average_whatever_was_seen() -> None:
    """The martingale: given the order so far, the next rank does not change evidence on average."""
    before, after = [1.0, 3.0, 5.0], [2.0, 4.0, 6.0]
    now = evidence_of_increase(before, after)
    next_ranks = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5]
    assert math.isclose(np.mean([evidence_of_increase(before, [*after, v]) for v in next_ranks]), now, rel_tol=1e-9)


def test_equal_values_are_no_evidence() -> None:
    assert evidence_of_increase([1.0] * 12, [1.0] * 12) < 1
    assert evidence_of_decrease([1.0] * 12, [1.0] * 12) < 1


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_without_an_effect_hardly_anyone_who_peeks_sees_one(correlation: float) -> None:
    """A/A, read after each block, with blocks that depend on one another: the false alarms stay below alpha."""
    false = 0
    for seed in range(RUNS):
        values = correlated_blocks(seed, 4 * (BEFORE + AFTER), correlation, 0.2)
        factor = block_factor(values[: 2 * BEFORE].tolist())
        if factor is None:
            continue  # undecided
        before = block_means(values[: 2 * BEFORE].tolist(), factor)
        after = block_means(values[2 * BEFORE : 2 * BEFORE + AFTER * factor].tolist(), factor)
        both = (evidence_of_increase, evidence_of_decrease)
        peeks = [evidence(before, after[:k]) for k in range(1, len(after) + 1) for evidence in both]
        false += max(peeks) >= evidence_limit(ALPHA)  # as the interval leaves out 1
    assert false / RUNS <= ALPHA


def test_a_real_effect_is_seen_soon_and_lies_in_the_interval() -> None:
    soon, inside = 0, 0
    for seed in range(50):
        values = correlated_blocks(seed, BEFORE + AFTER, 0.0, 0.2)
        found = sequence(values[:BEFORE].tolist(), (0.6 * values[BEFORE:]).tolist(), ALPHA)
        soon += any(one.high < 0.95 for one in found[:10])
        inside += found[-1].low <= 0.6 <= found[-1].high
    assert soon >= 45
    assert inside >= 47


def test_an_effect_that_is_none_of_ours_is_never_an_improvement() -> None:
    """Values that became larger are never shown to be smaller."""
    for seed in range(20):
        values = correlated_blocks(seed, BEFORE + AFTER, 0.3, 0.2)
        found = sequence(values[:BEFORE].tolist(), (1.5 * values[BEFORE:]).tolist(), ALPHA)
        assert all(one.high >= 1 for one in found)


def test_values_that_became_zero_have_an_interval() -> None:
    interval = ratio_interval([float(i) for i in range(1, 13)], [0.0] * 12, ALPHA)
    assert interval is not None and (interval.low, interval.high) == (0.0, 0.0)


def test_constant_values_give_the_ratio_exactly() -> None:
    interval = ratio_interval([2.0] * 12, [1.0] * 12, ALPHA)
    assert interval == RatioInterval(0.5, 0.5, 0.5)


def test_one_outlier_is_one_block() -> None:
    values = correlated_blocks(1, BEFORE + 8, 0.0, 0.1)
    after = [*values[BEFORE:-1].tolist(), 1000.0]
    interval = ratio_interval(values[:BEFORE].tolist(), after, ALPHA)
    assert interval is not None and interval.high < 1.6


@pytest.mark.parametrize(("before", "after"), [([], [1.0]), ([1.0] * 12, []), ([0.0] * 12, [1.0]), ([1.0] * 3, [1.0])])
def test_no_ratio_where_there_is_none(before: list[float], after: list[float]) -> None:
    assert ratio_interval(before, after, ALPHA) is None


def test_blocks_are_joined_until_they_are_independent() -> None:
    assert block_factor(correlated_blocks(3, 48, 0.0, 0.2).tolist()) == 1
    factors = [block_factor(correlated_blocks(seed, 48, 0.6, 0.2).tolist()) for seed in range(50)]
    assert sum(factor in (2, 4, None) for factor in factors) >= 40
    assert block_factor(np.linspace(1, 2, 48).tolist()) is None  # a trend
