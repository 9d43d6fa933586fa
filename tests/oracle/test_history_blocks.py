"""What `kvitals history export --format openmetrics` writes becomes blocks of a real Prometheus, which answers as the
history does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvitals.series.history.export import export
from kvitals.series.history.reader import HistoryReader
from kvitals.series.promql import Vector, evaluate
from kvitals.series.window import Window
from tests.oracle.oracle_server import labels_of, prometheus
from tests.unit.history.history_stage import START, STEP, Play, Synchronous

BEGIN = START - START % 7200
ROWS = 900


def test_promtool_makes_blocks_of_it(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "the command `promtool` is not on PATH: install Debian's package prometheus"
    window = Window(1e6, 1000)
    play, writer = Play(4, [window]), Synchronous(tmp_path / "history.db", lambda: window)
    for row in range(ROWS):
        play.row(BEGIN + row * STEP)
        writer.tick(BEGIN + row * STEP + 0.1)
    reader = HistoryReader(tmp_path / "history.db")
    text = tmp_path / "history.txt"
    with text.open("wb") as out:
        count = export(reader, (), BEGIN, BEGIN + ROWS * STEP, "openmetrics", out)
    assert count > ROWS * 20
    blocks = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert blocks.returncode == 0, blocks.stderr
    end = BEGIN + (ROWS - 1) * STEP
    with prometheus(tmp_path) as server:
        # No staleness: text can not tell that a series has ended, so a query that looks back may differ there.
        for query in (
            "count_over_time(running[2h])",
            "sum by (engine) (increase(requests_total[1h]))",
            "histogram_quantile(0.9, sum by (engine, le) (rate(wait_bucket[30m])))",
            "max_over_time(running[1h])",
        ):
            answer = server.ask("query", query=query, time=str(end))["data"]["result"]
            theirs = {labels_of(one["metric"]): float(one["value"][1]) for one in answer}
            ours = evaluate(query, reader, end)
            assert isinstance(ours, Vector)
            assert theirs.keys() == set(ours.labels)
            assert dict(ours) == pytest.approx(theirs, nan_ok=True)
