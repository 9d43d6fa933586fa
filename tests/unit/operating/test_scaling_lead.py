"""The scaling-signal audit on courses of which it is known what led, and starts of engines."""

from __future__ import annotations

import numpy as np
import pytest

from kvitals.diagnoser.scaling_lead import HORIZON_SECONDS, audit, starts
from kvitals.diagnoser.steps import Counts
from kvitals.series.promql import evaluate_range
from kvitals.series.types import METRIC_NAME, Floats, Labels
from kvitals.series.window import Window

STEP = 20.0
COUNT = 1200
ONSETS = (200, 400, 600, 800, 1000)
LASTS = 10
BOUNDS = np.array([0.5, 1.0, np.inf])
POOL = Labels({"pool": "chat"})
TIMES = 1.7e9 + STEP * np.arange(1, COUNT + 1)


def first_tokens(onsets: tuple[int, ...] = ONSETS) -> Counts:
    """A hundred first tokens a step; while the objective is missed ten of them take longer than 0.5 s."""
    counts = np.tile([100.0, 100.0, 100.0], (COUNT, 1))
    for onset in onsets:
        counts[onset : onset + LASTS, 0] = 90.0
    return Counts(BOUNDS, counts)


def rises(before: int, seed: int = 0) -> Floats:
    """A signal that is up from so many steps before each miss until its end."""
    values = np.random.default_rng(seed).uniform(0, 1, COUNT)
    for onset in ONSETS:
        values[onset - before : onset + LASTS] = 5.0
    return values


def noise(seed: int) -> Floats:
    return np.random.default_rng(seed).uniform(0, 1, COUNT)


def test_what_led_is_found_with_its_lead_and_what_did_not_is_not() -> None:
    signals = {"queue": rises(6), "kv": rises(15), "cpu": noise(1), "gpu": rises(0)}
    found = audit(POOL, TIMES, STEP, first_tokens(), signals, 0.5)
    assert found.missing == ""
    assert found.misses == tuple(float(TIMES[i]) for i in ONSETS)
    leads = {one.signal: one for one in found.leads}
    assert [one.signal for one in found.leads[:2]] == ["kv", "queue"]
    assert (leads["kv"].median, leads["kv"].caught) == (15 * STEP, 5)
    assert (leads["queue"].median, leads["queue"].least) == (6 * STEP, 6 * STEP)
    assert leads["cpu"].median == leads["gpu"].median == 0
    assert set(found.absent) == {"queue_trend", "capacity_waits", "running", "tokens"}


def test_a_signal_that_cries_wolf_is_told_to() -> None:
    wolf = rises(6)
    wolf[100:104] = wolf[700:704] = 4.0
    wolf[np.array([30, 130, 330])] = 4.0  # a single step is none
    found = audit(POOL, TIMES, STEP, first_tokens(), {"queue": wolf, "kv": rises(6)}, 0.5)
    alarms = {one.signal: one.false_alarms for one in found.leads}
    assert alarms["kv"] == 0
    assert alarms["queue"] > 0


def test_no_lead_is_longer_than_the_horizon() -> None:
    found = audit(POOL, TIMES, STEP, first_tokens(), {"queue": rises(35)}, 0.5)
    assert found.leads[0].median == HORIZON_SECONDS


@pytest.mark.parametrize(("onsets", "said"), [((), "0 times, and at least 3"), ((200, 400), "2 times, and at least 3")])
def test_too_few_misses_tell_nothing(onsets: tuple[int, ...], said: str) -> None:
    found = audit(POOL, TIMES, STEP, first_tokens(onsets), {"queue": rises(6)}, 0.5)
    assert found.leads == ()
    assert said in found.missing


def test_a_miss_that_flickers_is_one() -> None:
    counts = first_tokens()
    counts.counts[203, 0] = 100.0
    found = audit(POOL, TIMES, STEP, counts, {"queue": rises(6)}, 0.5)
    assert len(found.misses) == len(ONSETS)


def test_a_start_is_from_the_process_to_its_first_token() -> None:
    window = Window(retention=7200, max_series=10)
    group = window.group("engine")
    engine = {"engine": "a"}
    columns = [
        group.column(Labels({METRIC_NAME: name, **engine}))
        for name in ("kvitals_process_start_time_seconds", "kvitals_ttft_seconds_count")
    ]
    numbers = [column for column in columns if column is not None]
    begun = 1.7e9
    for t in np.arange(0, 600, 5.0).tolist():
        if t < 100:
            group.append(begun + t, numbers, np.array([begun - 5000, 9.0]))  # its start was not seen
        elif t >= 160:  # another process, since 110
            group.append(begun + t, numbers, np.array([begun + 110, 0.0 if t < 250 else 1.0]))
    (found,) = starts(lambda e, a, b, s: evaluate_range(e, window, a, b, s), begun, begun + 600)
    assert found.at == begun + 110
    assert found.load == pytest.approx(50, abs=15)
    assert found.first_token == pytest.approx(90, abs=15)
