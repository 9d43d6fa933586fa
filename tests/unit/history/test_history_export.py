"""Exports hold every sample once, in order, with what each format asks for."""

from __future__ import annotations

import csv
import io
from datetime import datetime

import numpy as np
import pytest
from pyarrow import parquet

from kvitals.series.history import export as module
from kvitals.series.history.export import export
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import HistoryError
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window
from tests.unit.history.history_stage import START, STEP, Play, Synchronous

ROWS = 300


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> HistoryReader:
    path = tmp_path_factory.mktemp("export") / "history.db"
    window = Window(1e6, 1000)
    play, writer = Play(2, [window]), Synchronous(path, lambda: window)
    for row in range(ROWS):
        play.row(START + row * STEP)
        writer.tick(START + row * STEP + 0.1)
    return HistoryReader(path)


def samples(reader: HistoryReader, *matchers: Matcher) -> dict[tuple[Labels, int], float]:
    found = {}
    for frame in reader.select(matchers, START, START + ROWS * STEP):
        for column, labels in enumerate(frame.labels):
            there = ~is_stale(frame.values)[:, column]
            for t, value in zip(frame.times[there].tolist(), frame.values[there, column].tolist(), strict=True):
                found[labels, round(t * 1000)] = value
    return found


def written(reader: HistoryReader, form: str, *matchers: Matcher) -> bytes:
    out = io.BytesIO()
    count = export(reader, matchers, float("-inf"), float("inf"), form, out)
    assert count == len(samples(reader, *matchers))
    return out.getvalue()


def test_csv(reader: HistoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_SECONDS", 100.0)
    rows = list(csv.DictReader(io.StringIO(written(reader, "csv").decode())))
    found = {}
    for row in rows:
        t, name, value = (row.pop(column) for column in ("time", "name", "value"))
        at = round(datetime.fromisoformat(t).timestamp() * 1000)
        found[Labels({METRIC_NAME: name, **row}), at] = float(value)
    expected = samples(reader)
    assert len(rows) == len(expected)
    assert found.keys() == expected.keys()
    assert np.array_equal(list(found.values()), [expected[key] for key in found], equal_nan=True)


def test_openmetrics(reader: HistoryReader) -> None:
    text = written(reader, "openmetrics", Matcher("engine", MatchOp.EQ, "e1")).decode()
    assert text.endswith("# EOF\n")
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert names == sorted(set(names))
    line = next(line for line in text.splitlines() if line.startswith("wait_bucket"))
    assert line.startswith('wait_bucket{engine="e1",le="')
    assert 'e0"' not in text


def test_parquet(reader: HistoryReader) -> None:
    matcher = Matcher(METRIC_NAME, MatchOp.EQ, "requests_total")
    table = parquet.read_table(io.BytesIO(written(reader, "parquet", matcher)))
    assert table.column_names == ["time", "name", "value", "engine", "outcome"]
    expected = samples(reader, matcher)
    assert table.num_rows == len(expected)
    assert sum(table["value"].to_pylist()) == sum(expected.values())


def test_parquet_without_pyarrow(reader: HistoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(HistoryError, match="pyarrow"):
        export(reader, (), 0, 1, "parquet", io.BytesIO())
