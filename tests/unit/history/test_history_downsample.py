"""A row a minute: counters still add up, extremes and gaps stay, and averages are near."""

from __future__ import annotations

import numpy as np
import pytest

from kvitals.series.history import blocks
from kvitals.series.history.downsample import STEP_MS, visible
from kvitals.series.history.reader import HistoryReader
from kvitals.series.promql import Vector, evaluate
from kvitals.series.types import Labels
from kvitals.series.window import Window
from tests.unit.history.history_stage import START, STEP, Play, Synchronous

HOURS = 3
END = START + HOURS * 3600


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Window, HistoryReader, Synchronous]:
    path = tmp_path_factory.mktemp("thin") / "history.db"
    long = Window(1e6, 10_000)
    play, writer = Play(5, [long]), Synchronous(path, lambda: long)
    for row in range(round(HOURS * 3600 / STEP)):
        t = START + row * STEP
        play.row(t)
        writer.tick(t + 0.1)
    writer.log._is_over = True  # the last hour is over too
    play.row(END + 3600.0)
    writer.tick(END + 3600.5)
    writer.thin(END + 48 * 3600)
    return long, HistoryReader(path), writer


def told(result: Vector | float) -> dict[Labels, float]:
    assert isinstance(result, Vector)
    return dict(result)


def test_it_is_a_row_a_minute(thinned: tuple[Window, HistoryReader, Synchronous]) -> None:
    _, reader, writer = thinned
    found = blocks.where(writer.connection, "end_ms < ?", (round(END * 1000) + 1,))
    assert {one.step for one in found} == {STEP_MS}
    assert len(found) == 3  # one for each group, of three hours
    rows = told(evaluate("count_over_time(running[3h])", reader, END))
    assert all(HOURS * 60 <= count < HOURS * 60 * 2.5 for count in rows.values())


@pytest.mark.parametrize("seconds", [1800, 3600, 3 * 3600])
@pytest.mark.parametrize("name", ["requests_total", "wait_bucket", "wait_sum"])
def test_what_was_counted_adds_up(thinned: tuple[Window, HistoryReader, Synchronous], name: str, seconds: int) -> None:
    """Resets included: the rise from one row that was kept to another is that of all rows between."""
    long, reader, _ = thinned
    frames = {labels: f for f in reader.select([], START, END) for labels in f.labels if labels.name == name}
    assert len(frames) == {"requests_total": 6, "wait_bucket": 12, "wait_sum": 3}[name]
    end = START + seconds
    for labels, frame in frames.items():
        kept = frame.values[frame.times <= end, frame.labels.index(labels)]
        times = frame.times[frame.times <= end]
        last = float(times[~np.isnan(kept)][-1])
        full = next(f for f in long.select([], START, last + 0.001) if labels in f.labels)
        assert rise(kept) == pytest.approx(rise(full.values[:, full.labels.index(labels)]))


def rise(values: np.ndarray) -> float:
    there = values[~np.isnan(values)]
    steps = np.diff(there)
    return float(np.where(steps < 0, there[1:], steps).sum())


def test_rates_stay(thinned: tuple[Window, HistoryReader, Synchronous]) -> None:
    long, reader, _ = thinned
    query = "sum by (engine) (rate(wait_bucket[30m]))"
    for at in np.arange(START + 1800, END, 733.0):
        full, thin = (told(evaluate(query, source, at)) for source in (long, reader))
        assert full.keys() == thin.keys()
        assert all(thin[labels] == pytest.approx(full[labels], rel=0.03) for labels in full)


def test_a_gauges_extremes_stay_under_names_of_their_own(
    thinned: tuple[Window, HistoryReader, Synchronous],
) -> None:
    long, reader, _ = thinned
    for extreme, over in (("max", "max_over_time"), ("min", "min_over_time")):
        full = told(evaluate(f"{over}(running[3h])", long, END))
        found = told(evaluate(f"{over}(running:{extreme}1m[3h])", reader, END))
        assert found == full
    averages = [told(evaluate("avg_over_time(running[3h])", source, END)) for source in (long, reader)]
    assert all(averages[1][x] == pytest.approx(averages[0][x], rel=0.15) for x in averages[0])


def test_gaps_of_a_group_begin_and_end_where_they_did(
    thinned: tuple[Window, HistoryReader, Synchronous],
) -> None:
    long, reader, _ = thinned
    full = next(f for f in long.select([], START, END) if f.labels[0]["engine"] == "e1")
    down = np.isnan(full.values).all(axis=1)
    assert down.any()
    for t in full.times[down]:
        thin = [f for f in reader.select([], t, t + 0.0005) if f.labels[0]["engine"] == "e1"]
        assert not thin  # in the gap there is nothing, and its beginning is told
        before = evaluate('running{engine="e1"}', reader, float(t) + 1, lookback=300)
        assert told(before) == {}


def test_rows_that_a_later_generation_hides() -> None:
    axes = [np.array([1, 2, 3, 9]), np.array([3, 4, 5]), np.array([6])]
    assert [rows.tolist() for rows in visible(axes)] == [[0, 1, 3], [0, 1, 2], [0]]
