"""Fairness indices: worked examples, edges, and the published figures of a real schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.kvcache.fairness import Service, gini, jain, long_tail_share, max_min, service_difference

VTC = Path(__file__).parents[2] / "fixtures" / "vtc"
SHARES = st.lists(st.floats(0, 1e300), min_size=1, max_size=30).filter(any)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 1, 1, 1], (1.0, 0.0, 1.0)),
        ([4, 0, 0, 0], (0.25, 0.75, 0.0)),
        ([1, 3], (0.8, 0.25, 1 / 3)),
        ([7], (1.0, 0.0, 1.0)),
        ([], (None, None, None)),
        ([0, 0], (None, None, None)),
    ],
)
def test_indices(values: list[float], expected: tuple[float | None, ...]) -> None:
    assert (jain(values), gini(values), max_min(values)) == pytest.approx(expected)


@given(SHARES)
def test_indices_stay_in_their_range(values: list[float]) -> None:
    found = jain(values), gini(values), max_min(values)
    assert all(x is not None for x in found)
    n = len(values)
    assert 1 / n - 1e-9 <= (found[0] or 0) <= 1 + 1e-9
    assert 0 <= (found[1] or 0) <= (n - 1) / n + 1e-9
    assert 0 <= (found[2] or 0) <= 1


@pytest.mark.parametrize("index", [jain, gini, max_min])
@pytest.mark.parametrize("values", [[1, -1], [1, float("nan")], [1, float("inf")], [[1]]])
def test_what_is_no_share_is_refused(index: object, values: list[float]) -> None:
    with pytest.raises(ValueError, match="one number per tenant"):
        index(values)  # type: ignore[operator]


def test_long_tail_share() -> None:
    assert long_tail_share([0.1, 0.5, 0.9, 0.0], [0.9, 0.9, 0.9, 0.0]) == pytest.approx(1 / 3)
    assert long_tail_share([0.45], [0.9]) == 0.0
    assert long_tail_share([0.0], [0.0]) is None
    assert long_tail_share([], []) is None
    with pytest.raises(ValueError, match="must each have one number per tenant"):
        long_tail_share([1.0], [1.0, 1.0])


def test_who_asks_for_less_is_not_treated_unfairly() -> None:
    """Two clients, one window of 10 s: 0 gets 100, 1 gets 20 and asked for 20, or for 100."""
    zero = np.zeros(2)
    modest = Service(np.array([0, 1]), zero, zero, np.full(2, 10.0), np.array([100.0, 20.0]))
    assert service_difference(modest, [5.0], 10.0) == pytest.approx([0.0])
    starved = Service(
        np.array([0, 1, 1]),
        np.zeros(3),
        np.array([0.0, 0.0, 100.0]),
        np.array([10.0, 10.0, 110.0]),
        np.array([100.0, 20, 80]),
    )
    assert service_difference(starved, [5.0], 10.0) == pytest.approx([8.0])


def test_service_without_requests_or_of_no_length() -> None:
    nothing = Service(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0))
    assert service_difference(nothing, [1.0], 10.0).tolist() == [0.0]
    at_once = Service(np.array([0, 1]), np.zeros(2), np.ones(2), np.ones(2), np.array([50.0, 20.0]))
    assert service_difference(at_once, [1.0], 10.0) == pytest.approx([0.0])
    with pytest.raises(ValueError, match="window"):
        service_difference(nothing, [1.0], 0.0)


@pytest.mark.parametrize(("schedule", "most", "mean"), [("fcfs", 759.97, 433.53), ("vtc", 368.40, 251.66)])
def test_service_difference_of_real_schedules(schedule: str, most: float, mean: float) -> None:
    """27 clients, 600 s: 19 instants every 28.5 s after 30 s of warm-up, windows of 60 s, cost input + 2 x output."""
    client, arrived, began, ended, cost = np.loadtxt(VTC / f"{schedule}.csv", delimiter=",", skiprows=1).T
    service = Service(client.astype(np.int64), arrived, began, ended, cost)
    found = service_difference(service, [30 + 28.5 * k for k in range(1, 20)], 60.0)
    assert found.max() == pytest.approx(most, abs=0.005)
    assert found.mean() == pytest.approx(mean, abs=0.005)
