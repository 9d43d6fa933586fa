"""Requests at a time: from residence or from gauges, and in which steps that was one load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvitals.diagnoser.load import by_residence, littles_gap, loads, steady
from kvitals.diagnoser.steps import Steps
from kvitals.series.types import Floats, Labels

SIZE = 20


def steps(gauges: Sequence[float], residence: float, seconds: float = 20.0, told: float = 1.0) -> Steps:
    """An engine that says how many it has, each of which stays for `residence` seconds; `told` times that is told."""
    running = np.array(gauges)
    requests = np.full(len(running), float(running.mean()) / residence)
    none: Floats = np.zeros(len(running))
    times = 1e9 + seconds * np.arange(1, len(running) + 1)
    engine = Labels({"engine": "a"})
    return Steps(engine, seconds, times, running, none, none, requests, told * requests * residence, {}, none + 1)


DRAWS = [4.0, 12.0] * 10
"""What gauges make of 8 requests at a time that live for less than a row."""


def test_short_requests_are_told_by_their_residence_and_long_ones_by_gauges() -> None:
    assert loads(steps(DRAWS, residence=0.2)) == pytest.approx(np.full(SIZE, 8.0))
    assert loads(steps(DRAWS, residence=30.0)).tolist() == DRAWS


@pytest.mark.parametrize("told", [2.0, 0.5])
def test_residence_that_is_another_quantity_is_not_taken(told: float) -> None:
    off = steps(DRAWS, residence=0.2, told=told)
    assert littles_gap(off) == pytest.approx(told - 1)
    assert not by_residence(off)
    assert loads(off).tolist() == DRAWS


def test_of_few_requests_residence_is_not_taken() -> None:
    assert not by_residence(steps([8.0, 8.0], residence=4.0))


def test_a_step_between_two_loads_is_none_of_them_and_those_beside_it_neither() -> None:
    known = steps([8.0] * SIZE, residence=0.2)
    load = np.array([2.0] * 8 + [9.0] + [24.0] * 11)
    assert np.flatnonzero(~steady(load, known)).tolist() == [7, 8, 9]


def test_what_chance_explains_is_steady() -> None:
    long = steps([8.0] * SIZE, residence=30.0)
    load = 8 + np.random.default_rng(1).normal(0, 1.5, SIZE)
    assert steady(load, long).all()
    short = steps([8.0] * SIZE, residence=0.05)
    assert not steady(load, short).all()


def test_across_a_gap_nothing_is_compared() -> None:
    known = steps([8.0] * SIZE, residence=0.2)
    later = Steps(**{**vars(known), "times": known.times + np.where(np.arange(SIZE) >= 10, 3600.0, 0.0)})
    load = np.array([2.0] * 10 + [24.0] * 10)
    assert steady(load, later).all()
    assert not steady(load, known)[9:11].any()
