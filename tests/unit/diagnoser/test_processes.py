"""Since when the process of an engine is seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvitals.diagnoser.processes import process_begins, window_since
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.loader import load
from kvitals.series.promql import Expr, Series
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

ENGINE = Labels({"engine": "e"})
STARTS = "kvitals_process_start_time_seconds"


def begins(**values: Sequence[float]) -> float | None:
    """When the process began by the course of these metrics, a value a second from 100 on."""

    def course(expr: Expr, step: float) -> list[Series]:
        assert step == 1.0
        found = next((of for name, of in values.items() if f"kvitals_{name}" in str(expr)), None)
        return [] if found is None else [Series(ENGINE, np.arange(100.0, 100.0 + len(found)), np.array(found))]

    return process_begins([ENGINE], course, 0.5).get(ENGINE)


@pytest.mark.parametrize(
    ("values", "begin"),
    [
        ({"process_start_time": [7.0, 7.0, 9.0, 9.0]}, 102.0),
        ({"process_start_time": [7.0, 8.0, 9.0, 9.0]}, 102.0),
        ({"process_start_time": [9.0, 9.0, 7.0]}, 102.0),
        ({"process_start_time": [9.0, 9.0]}, None),
        ({"generation_tokens": [50.0, 60.0, 3.0, 9.0]}, 102.0),
        ({"generation_tokens": [50.0, 60.0]}, None),
        ({"process_start_time": [9.0, 9.0, 9.0], "generation_tokens": [50.0, 60.0, 3.0]}, None),
        ({"runtime_uptime": [50.0, 51.0, 1.0]}, 102.0),
        ({}, None),
    ],
)
def test_a_process_begins_with_the_last_change_that_shows_one(
    values: dict[str, Sequence[float]], begin: float | None
) -> None:
    assert begins(**values) == begin


@pytest.mark.parametrize(
    ("seconds", "length"), [(0, 0.0), (4.9, 0.0), (5, 5.0), (19, 15.0), (20, 20.0), (59.9, 55.0), (60, None)]
)
def test_the_longest_window_that_fits_is_taken(seconds: float, length: float | None) -> None:
    assert window_since(seconds, 60.0) == length


def test_a_restart_is_seen_although_an_old_one_leaves_the_slow_window_at_that_moment() -> None:
    """Of ten restarts in a quarter of an hour one was missed: the count of them had not risen. The first seconds of the
    new process were "354 of 354 first tokens in time in 60 s"."""
    knowledge, window = load([]), Window(2000.0, 1000)
    group = window.group("page")
    new = 1000.0
    for at in range(0, 1011):
        start = 10.0 + (at >= new - 900.0) * 90.0 + (at >= new) * 900.0
        row = {
            ENGINE.with_(**{METRIC_NAME: "kvitals_target_up"}): 1.0,
            ENGINE.with_(**{METRIC_NAME: STARTS}): start,
            ENGINE.with_(**{METRIC_NAME: "kvitals_ttft_seconds_count"}): float(at if at < new else at - new),
        }
        group.append(float(at), [group.column(one) for one in row], list(row.values()))
    signals = Signals(knowledge, window)
    signals.observe(EvaluationSpan(1007.0))
    assert signals.begins == {ENGINE: new}
    assert signals.known["ttft_requests"].values[ENGINE] == pytest.approx(5.0, abs=1.0)
