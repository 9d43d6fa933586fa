"""The knee and C_max from what an agent keeps of a queue of which both are known: levels of a minute, uneven rows."""

from __future__ import annotations

import numpy as np
import pytest

from kvitals.diagnoser.operating_point import operating_point
from tests.unit.operating.closed_queue import ALONE, GROWTH, SLOTS, late, run, seen

LEVELS = (1, 2, 4, 6, 8, 12, 16, 20, 24)
LIMIT = 0.25
STEP = 10.0


@pytest.fixture(scope="module")
def c_max() -> float:
    """Clients of which one request in a hundred is late."""
    shares = [late(clients, 400.0, LIMIT) for clients in range(10, 22)]
    return float(np.interp(np.log(0.01), np.log(np.maximum(shares, 1e-5)), range(10, 22)))


@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_of_a_queue_tells_its_knee_and_its_c_max(seed: int, c_max: float) -> None:
    order = np.random.default_rng(seed).permutation(LEVELS).tolist()
    found = operating_point(seen(run(order, 60.0, seed), seed, STEP), {"ttft_p99": LIMIT}, draws=60)
    assert found.knee is not None, found.missing
    knee = SLOTS / (1 + GROWTH * (SLOTS - 1))  # a request takes so much longer where all slots are busy
    assert found.knee.concurrency.value == pytest.approx(knee, rel=0.15)
    assert found.knee.concurrency.low <= knee <= found.knee.concurrency.high
    assert 1 / found.knee.alone == pytest.approx(ALONE / 32, rel=0.1)
    (limit,) = found.limits
    assert limit.concurrency is not None
    assert limit.concurrency.value == pytest.approx(c_max, rel=0.15)
    assert limit.concurrency.low <= c_max <= limit.concurrency.high


def test_levels_that_change_within_steps_are_no_curve() -> None:
    order = np.random.default_rng(1).permutation(LEVELS * 6).tolist()
    found = operating_point(seen(run(order, 10.0, 1), 1, STEP), {"ttft_p99": LIMIT}, draws=20)
    assert found.knee is None
    assert "had a steady load" in found.missing[0]
