"""Where the GPU time went: the parts are what they should be, and add up to all of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.diagnoser.review.gpu_time import PARTS, ledger
from tests.unit.review.stage import HOUR, engine, seen

A, B = engine("a"), engine("b")


def test_busy_time_is_shared_out_by_what_requests_did() -> None:
    one = seen(
        (A,), 1, busy=0.5, gpus=4.0, prefill=100.0, decode=300.0, looked_up=1000.0, hit=200.0, refaulted=200.0,
        refaulted_below=0.0, output=900.0, drafted=200.0, accepted=100.0, finished=90.0, first_tokens=100.0,
        aborted=10.0, running=0.0,
    )  # fmt: skip
    parts = {name: float(part.sum()) for name, part in ledger(one, 1.0).parts.items()}
    assert parts["idle"] == pytest.approx(2.0)
    assert parts["aborted"] == pytest.approx(2.0 * 0.1)
    assert parts["reprefill"] == pytest.approx(1.8 * 0.25 * 0.25)  # 200 of 800 tokens had been there before
    assert parts["prefill"] == pytest.approx(1.8 * 0.25 * 0.75)
    assert parts["drafts"] == pytest.approx(1.8 * 0.75 * 0.1)  # 100 of 1000 positions
    assert parts["unattributed"] == 0.0
    assert sum(parts.values()) == pytest.approx(4.0)


def test_what_nobody_tells_is_not_idle() -> None:
    parts = ledger(seen((A,), 2), 1.0).parts
    assert float(parts["unattributed"].sum()) == 2.0
    assert float(parts["idle"].sum()) == 0.0


def test_time_that_nobody_saw_is_not_counted() -> None:
    one = seen((A,), 2, seen=np.array([[HOUR], [HOUR / 4]]), busy=0.0)
    assert float(ledger(one, 1.0).gpu_hours.sum()) == 1.25


def test_gpus_are_as_told_else_as_told_at_another_time_else_assumed() -> None:
    one = seen((A, B), 2, gpus=np.array([[2.0, np.nan], [np.nan, np.nan]]))
    found = ledger(one, 8.0)
    assert found.gpu_hours.tolist() == [[2.0, 8.0], [2.0, 8.0]]
    assert found.assumed.tolist() == [False, True]


def test_requests_that_vllm_does_not_count_as_aborted_are_those_that_began_and_did_not_end() -> None:
    one = seen((A,), 1, busy=1.0, prefill=1.0, decode=1.0, first_tokens=100.0, finished=70.0, running=10.0)
    assert float(ledger(one, 1.0).parts["aborted"].sum()) == pytest.approx(0.2)


def test_requests_that_still_run_are_no_disconnects() -> None:
    """At the end of a short range 1.1 % of the GPU time was "for clients that disconnected": the mean of the running
    requests of a step is less than what ran at its end, and preempted requests wait."""
    one = seen((A,), 1, busy=1.0, prefill=1.0, decode=1.0, first_tokens=1000.0, finished=970.0, running=30.0)
    assert float(ledger(one, 1.0).parts["aborted"].sum()) == 0.0
    waits = seen(
        (A,), 1, busy=1.0, prefill=1.0, decode=1.0, first_tokens=1000.0, finished=970.0, running=10.0, waiting=500.0,
        preempted=20.0,
    )  # fmt: skip
    assert float(ledger(waits, 1.0).parts["aborted"].sum()) == 0.0
    left = seen((A,), 1, busy=1.0, prefill=1.0, decode=1.0, first_tokens=1000.0, finished=870.0, running=30.0,
                waiting=500.0)  # fmt: skip
    assert float(ledger(left, 1.0).parts["aborted"].sum()) == pytest.approx(0.1)


_share = st.floats(0.0, 1.0)
_size = st.one_of(st.just(float("nan")), st.floats(0.0, 1e9))


@given(st.lists(st.tuples(_share, *[_size] * 9), min_size=1, max_size=4))
def test_parts_add_up_whatever_is_told(rows: list[tuple[float, ...]]) -> None:
    names = ("busy", "prefill", "decode", "looked_up", "hit", "refaulted", "drafted", "accepted", "output", "finished")
    data = {name: np.array([[row[i]] for row in rows]) for i, name in enumerate(names)}
    found = ledger(seen((A,), len(rows), **data), 3.0)
    assert set(found.parts) == set(PARTS)
    total = sum(found.parts.values())
    assert np.allclose(total, found.gpu_hours)
    assert all((part >= -1e-9).all() for part in found.parts.values())
