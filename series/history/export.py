"""History in the formats of others, family by family and some hours at a time, so that a month fits into memory.

csv          time (RFC 3339), name, value, then each label that there is, a sample a line
parquet      the same columns, time in milliseconds UTC; by pyarrow, where that is installed
openmetrics  NAME{LABELS} VALUE TIME, which `promtool tsdb create-blocks-from openmetrics` makes blocks of
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from io import StringIO
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kvitals.series.csv_cells import cell
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import HistoryError
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher, MatchOp, escape, is_stale

Column = npt.NDArray[Any]
SLICE_SECONDS = 6 * 3600.0
MAX_ROWS = 1 << 20
"""Samples that are handed on together."""


def export(
    reader: HistoryReader, matchers: Sequence[Matcher], start: float, end: float, form: str, out: BinaryIO
) -> int:
    """Write the matching samples of start <= t <= end to `out`; how many they were.

    Raises HistoryError where the history can not be read or the format needs what is not installed, OSError.
    """
    return _FORMATS[form](reader, matchers, start, end, out)


def samples(
    reader: HistoryReader, matchers: Sequence[Matcher], start: float, end: float
) -> Iterator[tuple[Labels, Column, Column]]:
    """Each series with times in milliseconds and values, one name after the other; a series comes once for each slice
    of time in which it has samples."""
    found = reader.span()
    if found is None:
        return
    start, end = max(start, found[0]), min(end, found[1])
    for name in sorted({labels.name for labels in reader.labels(matchers, start, end)}):
        of_name = [*matchers, Matcher(METRIC_NAME, MatchOp.EQ, name)]
        begin = start
        while begin <= end:
            last = min(end, begin + SLICE_SECONDS - 0.001)
            for labels, (times, values) in _by_series(reader.select(of_name, begin, last)).items():
                yield labels, times, values
            begin += SLICE_SECONDS


def _by_series(frames: Sequence[Frame]) -> dict[Labels, tuple[Column, Column]]:
    found: dict[Labels, tuple[Column, Column]] = {}
    for frame in frames:
        times = np.rint(frame.times * 1000.0).astype(np.int64)
        there = ~is_stale(frame.values)
        for column, labels in enumerate(frame.labels):
            kept = there[:, column]
            mine = times[kept], frame.values[kept, column]
            found[labels] = _merged(found[labels], mine) if labels in found else mine
    return dict(sorted(found.items(), key=lambda item: tuple(item[0].items())))


def _merged(one: tuple[Column, Column], other: tuple[Column, Column]) -> tuple[Column, Column]:
    """A series that is in two groups."""
    times = np.concatenate([one[0], other[0]])
    values = np.concatenate([one[1], other[1]])
    _, first = np.unique(times, return_index=True)
    return times[first], values[first]


def _openmetrics(reader: HistoryReader, matchers: Sequence[Matcher], start: float, end: float, out: BinaryIO) -> int:
    count, before = 0, ""
    for labels, times, values in samples(reader, matchers, start, end):
        if labels.name != before:
            out.write(f"# TYPE {labels.name} unknown\n".encode())
            before = labels.name
        inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items() if name != METRIC_NAME)
        head = f"{labels.name}{{{inner}}}" if inner else labels.name
        moments = zip(values.tolist(), times.tolist(), strict=True)
        out.write("".join(f"{head} {_number(v)} {t // 1000}.{t % 1000:03d}\n" for v, t in moments).encode())
        count += len(times)
    out.write(b"# EOF\n")
    return count


def _csv(reader: HistoryReader, matchers: Sequence[Matcher], start: float, end: float, out: BinaryIO) -> int:
    names = _label_names(reader, matchers, start, end)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "name", "value", *names.values()])
    count = 0
    for labels, times, values in samples(reader, matchers, start, end):
        own = [cell(labels.get(name, "")) for name in names]
        for t, value in zip(times.tolist(), values.tolist(), strict=True):
            writer.writerow([_moment(t), labels.name, _number(value), *own])
        out.write(text.getvalue().encode())
        text.seek(0)
        text.truncate()
        count += len(times)
    out.write(text.getvalue().encode())
    return count


def _parquet(reader: HistoryReader, matchers: Sequence[Matcher], start: float, end: float, out: BinaryIO) -> int:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise HistoryError(
            "no_parquet", "parquet needs pyarrow: pip install pyarrow, or 'kvitals[ui]', or use --format csv"
        ) from None
    names = _label_names(reader, matchers, start, end)
    text = arrow.dictionary(arrow.int32(), arrow.string())
    schema = arrow.schema(
        [
            ("time", arrow.timestamp("ms", "UTC")),
            ("name", text),
            ("value", arrow.float64()),
            *((n, text) for n in names),
        ]
    )
    count = 0
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for labels, times, values in samples(reader, matchers, start, end):
            for first in range(0, len(times), MAX_ROWS):
                some = slice(first, first + MAX_ROWS)
                rows = len(times[some])
                same = [arrow.array([labels.get(n, "")] * rows, text) for n in (METRIC_NAME, *names)]
                columns = [
                    arrow.array(times[some], schema.field(0).type),
                    same[0],
                    arrow.array(values[some]),
                    *same[1:],
                ]
                writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
                count += rows
    return count


_FORMATS: dict[str, Callable[[HistoryReader, Sequence[Matcher], float, float, BinaryIO], int]] = {
    "csv": _csv,
    "parquet": _parquet,
    "openmetrics": _openmetrics,
}
FORMATS = tuple(_FORMATS)


def _label_names(reader: HistoryReader, matchers: Sequence[Matcher], start: float, end: float) -> dict[str, str]:
    """The labels that there are, in order, and what their columns are called."""
    found = {name for labels in reader.labels(matchers, start, end) for name in labels} - {METRIC_NAME}
    return {name: f"label_{name}" if name in ("time", "name", "value") else name for name in sorted(found)}


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
