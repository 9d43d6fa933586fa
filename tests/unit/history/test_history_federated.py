"""PromQL over a short window and its history says what it says over one long window."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from kvitals.series.history.federated import FederatedReader
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.wal import GENERATION_TICKS
from kvitals.series.promql import Vector, evaluate, evaluate_range
from kvitals.series.types import Labels
from kvitals.series.window import Window
from tests.unit.history.history_stage import START, STEP, Live, Play, Synchronous, labels

QUERIES = [
    "requests_total",
    "seldom",
    "usage + running",
    "rate(requests_total[1m])",
    "sum by (engine) (increase(wait_bucket[10m]))",
    "histogram_quantile(0.9, sum by (engine, le) (rate(wait_bucket[5m])))",
    "max_over_time(running[3m])",
    "avg_over_time(usage[10m])",
    "count_over_time(seldom[7m])",
    "resets(requests_total[30m])",
    'changes({engine="e1", __name__=~"runn.+"}[5m])',
    "timestamp(running) - time()",
    "max_over_time(rate(requests_total[1m])[20m:1m])",
    "absent(seldom)",
    "count({__name__=~'.+'})",
]


def approx(a: float, b: float) -> bool:
    return bool(np.isclose(a, b, rtol=1e-9, atol=0, equal_nan=True)) or a == b


def told(result: Vector | float) -> dict[Labels, float]:
    return dict(result) if isinstance(result, Vector) else {Labels(): result}


@pytest.mark.parametrize(("ticks", "retention"), [(7, 600.0), (60, 120.0), (GENERATION_TICKS, 120.0)])
def test_no_seam(ticks: int, retention: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what is asked for lies in the log, in sealed chunks, in the window, or in two or three of them."""
    rng = random.Random(ticks)
    monkeypatch.setattr("kvitals.series.history.wal.GENERATION_TICKS", ticks)
    long, short = Window(1e6, 10_000), Window(retention, 10_000)
    play = Play(ticks, [long, short])
    writer = Synchronous(tmp_path / "history.db", lambda: short)
    reader = HistoryReader(tmp_path / "history.db")
    joined = FederatedReader(Live(short), reader)
    rows, asked = 360, 0
    for row in range(rows):
        t = START + row * STEP
        play.row(t)
        writer.tick(t + 0.1)
        if rng.random() < 0.01:
            writer.restart()
        if rng.random() < 0.06:
            at = rng.uniform(START, t) if rng.random() < 0.7 else t
            for query in QUERIES:
                a, b = told(evaluate(query, long, at)), told(evaluate(query, joined, at))
                assert a.keys() == b.keys(), (query, at - START, t - START)
                assert all(approx(a[labels], b[labels]) for labels in a), (query, at)
            asked += 1
    assert asked > 12
    assert short.whole_since > START + 60
    end = START + rows * STEP
    for query in QUERIES:
        one, other = (evaluate_range(query, source, START, end, 31.0) for source in (long, joined))
        assert [s.labels for s in one] == [s.labels for s in other], query
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a.times, b.times), (query, a.labels)
            assert np.allclose(a.values, b.values, rtol=1e-9, atol=0, equal_nan=True), query


def test_a_window_that_is_whole_is_not_looked_up(tmp_path: Path) -> None:
    window = Window(600.0, 100)
    Play(1, [window]).row(START)
    joined = FederatedReader(Live(window), HistoryReader(tmp_path / "nothing.db"))
    assert len(told(evaluate("running", joined, START + 1, lookback=1))) == 3


def test_a_series_that_ended_where_the_window_begins_has_ended(tmp_path: Path) -> None:
    window, long = Window(1e6, 100), Window(1e6, 100)
    writer = Synchronous(tmp_path / "history.db", lambda: long)
    for one in (window, long):
        one.group("g").column(labels("up", engine="a"))
        one.group("g").column(labels("up", engine="b"))
    ended = START + 10 * STEP
    for row in range(20):
        t = START + row * STEP
        for one, columns in ((long, [1, 2] if t < ended else [1]), (window, [1])):
            if t == ended:
                long.group("g").end([2])
            if one is long or t >= ended:
                one.group("g").append(t, columns, [1.0] * len(columns))
        writer.tick(t)
    assert window.whole_since == ended
    joined = FederatedReader(Live(window), HistoryReader(tmp_path / "history.db"))
    for at, there in ((ended - 1, 1), (ended, 0), (ended + 1, 0), (ended + 2 * STEP, 0)):
        assert len(told(evaluate('up{engine="b"}', joined, at))) == there
        assert len(told(evaluate("up", joined, at))) == there + 1
