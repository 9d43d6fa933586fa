"""What a query over history holds in memory: numpy reports its arrays to tracemalloc, so the peaks are exact."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np
import pytest

from kvitals.agent.exports.api import LIMITS
from kvitals.series.history import compact, schema, wal
from kvitals.series.history.federated import FederatedReader
from kvitals.series.history.new_rows import GroupRows, Tick
from kvitals.series.history.reader import HistoryReader
from kvitals.series.promql import PromQLError, evaluate_range
from kvitals.series.promql.grid import QueryBudget
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp
from kvitals.series.window import Window
from tests.unit.history.history_stage import START, Live, Play, labels

NAMED = (Matcher(METRIC_NAME, MatchOp.EQ, "m"),)
STEP, ROWS = 5.0, 720
QUERY_BYTES = 60_000_000
"""Of one query, by docs/limits.md."""


def history(
    path: Path, parts: int, series: int, *, rows: int = ROWS, churn: bool = False, sealed: bool = True
) -> float:
    """A history of `parts` generations of `rows` rows, whose values all change; with churn each has series of its own.
    Returns its end."""
    connection = schema.open_for_writing(path)
    log, sealer = wal.Log(connection), compact.Sealer(connection)
    rng = np.random.default_rng(1)
    t = START
    for part in range(parts):
        some = [labels("m", n=f"{part if churn else 0}-{n}") for n in range(series)]
        times = t + STEP * np.arange(rows)
        log.write(Tick(float(times[-1]), [GroupRows("g", times, rng.random((rows, series)), some)]))
        if sealed:
            log = wal.Log(connection)
            t = float(times[-1]) + STEP
            log.write(Tick(t, [GroupRows("other", np.array([t]), np.ones((1, 1)), [labels("o")])]))
            while sealer.step(log.generation):
                pass
            log = wal.Log(connection)
        t = float(times[-1]) + STEP
    connection.close()
    return t


def peak(work: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "log"])
def test_a_selection_is_in_memory_about_once(sealed: bool, tmp_path: Path) -> None:
    parts, series = 16, 200
    end = history(tmp_path / "history.db", parts, series, sealed=sealed)
    reader = HistoryReader(tmp_path / "history.db")
    frames = []
    cells = parts * ROWS * series
    took = peak(lambda: frames.extend(reader.select(NAMED, START, end)))
    assert sum(frame.values.size for frame in frames) == cells
    assert took < 8 * cells * (1.6 if sealed else 3.0)


@pytest.mark.parametrize("query", ["m", "sum(rate(m[5m]))", "changes(m[1h])", "stddev_over_time(m[1h])"])
def test_a_query_at_the_limit_stays_within_its_memory(query: str, tmp_path: Path) -> None:
    end = history(tmp_path / "history.db", 16, 200)
    window = Window(600.0, 1000)
    budget = QueryBudget(LIMITS.samples, LIMITS.series, inf)
    joined = FederatedReader(Live(window), HistoryReader(tmp_path / "history.db"), budget)
    assert peak(lambda: evaluate_range(query, joined, START, end, 600.0, limits=LIMITS)) < QUERY_BYTES


def test_a_query_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    end = history(tmp_path / "history.db", 20, 200)
    budget = QueryBudget(LIMITS.samples, LIMITS.series, inf)
    joined = FederatedReader(Live(Window(600.0, 1000)), HistoryReader(tmp_path / "history.db"), budget)

    def ask() -> None:
        with pytest.raises(PromQLError, match="select fewer series or a shorter range"):
            joined.select(NAMED, START, end)

    assert peak(ask) < 8_000_000


def test_selections_of_one_query_share_its_limit(tmp_path: Path) -> None:
    end = history(tmp_path / "history.db", 2, 100)
    budget = QueryBudget(int(2.5 * 2 * ROWS * 100), LIMITS.series, inf)
    joined = FederatedReader(Live(Window(600.0, 1000)), HistoryReader(tmp_path / "history.db"), budget)
    assert joined.select(NAMED, START, end) and joined.select(NAMED, START, end)
    with pytest.raises(PromQLError):
        joined.select(NAMED, START, end)


def test_series_that_come_and_go_are_counted_by_the_frame_that_they_make(tmp_path: Path) -> None:
    """40 times 500 series of 10 rows are 200,000 samples, and a frame of 8 million cells."""
    end = history(tmp_path / "history.db", 40, 500, rows=10, churn=True)
    reader = HistoryReader(tmp_path / "history.db")

    def ask() -> None:
        with pytest.raises(PromQLError, match="too many samples"):
            reader.select(NAMED, START, end, LIMITS.samples)

    reader.labels(NAMED, -inf, inf)  # label sets are remembered
    assert peak(ask) < 10_000_000


def test_the_log_is_refused_while_it_is_read(tmp_path: Path) -> None:
    """Its changes took a hundred bytes each before they were counted."""
    end = history(tmp_path / "history.db", 16, 200, sealed=False)
    reader = HistoryReader(tmp_path / "history.db")

    def ask() -> None:
        with pytest.raises(PromQLError, match="too many samples"):
            reader.select(NAMED, START, end, 500_000)

    assert peak(ask) < 25_000_000


def test_labels_of_a_time_range_are_read_tick_by_tick(tmp_path: Path) -> None:
    end = history(tmp_path / "history.db", 16, 200, sealed=False)
    reader = HistoryReader(tmp_path / "history.db")
    found = []
    assert peak(lambda: found.append(reader.labels(NAMED, START, end))) < 25_000_000
    assert len(found[0]) == 200


def test_reading_ends_at_the_deadline(tmp_path: Path) -> None:
    end = history(tmp_path / "history.db", 3, 10)
    reader = HistoryReader(tmp_path / "history.db")
    budget = QueryBudget(LIMITS.samples, LIMITS.series, time.monotonic() - 1)
    with pytest.raises(PromQLError, match="too long"):
        reader.select(NAMED, START, end, check=lambda: budget.take(0))


@pytest.mark.parametrize("function", ["rate", "changes", "resets", "avg_over_time", "last_over_time", "deriv"])
def test_some_series_at_a_time_give_what_all_of_them_give(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(3, [window := Window(1e6, 1000)])
    for row in range(120):
        play.row(START + row * 5.0)
    query, end = f"{function}(wait_bucket[2m])", START + 600.0
    whole = evaluate_range(query, window, START, end, 31.0)
    monkeypatch.setattr("kvitals.series.promql.windows.PART_CELLS", 250)
    parts = evaluate_range(query, window, START, end, 31.0)
    assert [series.labels for series in whole] == [series.labels for series in parts]
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one.times, other.times)
        assert np.allclose(one.values, other.values, rtol=1e-9, equal_nan=True)
