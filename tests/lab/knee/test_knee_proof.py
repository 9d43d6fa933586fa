"""The arithmetic that the product's knee is held to."""

from __future__ import annotations

import pytest

from tests.lab.knee.proof import c_max, compared, knee
from tests.lab.knee.sweep import Level

LEVELS = [Level(n, 100, 10.0 * min(n, 8), min(n, 8.0), 0.01, 0.05 * max(n - 7, 1), 1.0) for n in (1, 2, 4, 8, 12, 16)]


def test_an_engine_of_eight_slots_has_its_knee_at_eight() -> None:
    assert knee(LEVELS) == pytest.approx(8)


def test_c_max_is_read_between_the_levels_around_it() -> None:
    assert c_max(LEVELS, 0.15) == pytest.approx(10)
    assert c_max(LEVELS, 1.0) is None
    assert c_max(LEVELS, 0.01) is None


def test_what_is_further_off_than_the_limit_is_not_as_it_should() -> None:
    told = {"value": 10.0, "low": 9.0, "high": 11.0}
    assert compared("knee", told, [9.0, 9.0, 30.0], ()).ok
    assert not compared("knee", told, [8.0, 8.0, 30.0], ()).ok
    assert not compared("knee", None, [8.0], ("why",)).ok
    assert not compared("C_max", told, [8.0, None], ()).ok
