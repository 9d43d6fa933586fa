"""Rates of steps of which the rows are few and not evenly apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from kvitals.app.derived_metrics.operating_families import ask_source
from kvitals.diagnoser.steps import Steps, gather
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

START = 1.7e9
UNEVEN = (0.0, 5.0, 10.0, 14.45, 16.51, 21.4, 26.45, 31.4, 32.5, 38.45, 43.5, 45.4, 50.4)
"""Seconds; a history writes a row every five, and one more when something happens."""


def test_a_constant_rate_is_told_as_it_is_whenever_rows_come() -> None:
    (found,) = steps(UNEVEN, lambda t: 50 * t)
    assert found.requests == pytest.approx(50)
    assert found.residence == pytest.approx(400)
    assert found.latencies["ttft_p99"].counts[:, -1].sum() == pytest.approx(50 * 45.4)


def test_an_engine_that_starts_anew_has_no_rate_in_that_step() -> None:
    (found,) = steps(UNEVEN, lambda t: 50 * t if t < 22 else 10 * (t - 22))
    assert np.isnan(found.requests).tolist() == [False, False, True, False, False]
    assert np.isnan(found.latencies["ttft_p99"].counts).all(axis=1).tolist() == [False, False, True, False, False]
    assert found.requests[3:] == pytest.approx(10)


def test_over_rows_that_are_missing_there_is_no_rate() -> None:
    (found,) = steps([t for t in np.arange(0, 120, 5.0).tolist() if not 30 < t < 90], lambda t: 50 * t)
    assert np.nanmin(found.requests) == np.nanmax(found.requests) == pytest.approx(50)
    known = dict(zip((found.times - START).tolist(), np.isfinite(found.requests).tolist(), strict=True))
    assert known == {10: True, 20: True, 30: True, 40: False, 90: False, 100: True, 110: True}


def steps(times: Iterable[float], done: Callable[[float], float]) -> list[Steps]:
    """Steps of 10 s of an engine that has finished `done(t)` requests, of 8 s each."""
    window = Window(retention=3600.0, max_series=100)
    group = window.group("engine")
    names = [
        {METRIC_NAME: "kvitals_requests_running"}, {METRIC_NAME: "kvitals_requests_finished_total"},
        {METRIC_NAME: "kvitals_e2e_seconds_sum"}, {METRIC_NAME: "kvitals_ttft_seconds_bucket", "le": "+Inf"},
    ]  # fmt: skip
    columns = [column for name in names if (column := group.column(Labels({"engine": "a", **name}))) is not None]
    end = 0.0
    for end in times:
        group.append(START + end, columns, np.array([8.0, done(end), 8 * done(end), done(end)]))
    return gather(ask_source(window), START, START + end + 0.1, 10.0)
