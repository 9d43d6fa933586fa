"""Rows in blocks, held against one array that has all of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from kvitals.series.row_blocks import BLOCK_BYTES, RowBlocks
from kvitals.series.types import METRIC_NAME, STALE, Floats, Labels, is_stale
from kvitals.series.window import Window


def same(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and bool(
        (np.ascontiguousarray(one).view(np.uint64) == np.ascontiguousarray(other).view(np.uint64)).all()
    )


@pytest.mark.parametrize("seed", range(20))
def test_it_is_one_array_with_rows_added_dropped_and_widened(seed: int) -> None:
    chance = np.random.default_rng(seed)
    blocks, rows, width = RowBlocks(), list[Floats](), 3
    held = []
    for _ in range(400):
        what = chance.random()
        if what < 0.03:
            width += int(chance.integers(1, 40))
        elif what < 0.06 and rows:
            rows[-1] = chance.random(width)
            blocks.replace_last(rows[-1])
            held = []  # the last row may be written to
        elif what < 0.1 and rows:
            gone = int(chance.integers(0, len(rows) + 1))
            rows = rows[gone:]
            blocks.drop(gone)
        elif what < 0.11:
            rows = []
            blocks.clear()
        else:
            rows.append(chance.random(width))
            blocks.append(rows[-1])
        assert len(blocks) == len(rows)
        if not rows:
            continue
        whole = np.full((len(rows), width), STALE)
        for number, row in enumerate(rows):
            whole[number, : row.size] = row
        low, high = sorted(chance.integers(0, len(rows) + 1, 2).tolist())
        picked = chance.integers(0, width, int(chance.integers(0, 5)))
        span = blocks.span(low, high, width)
        for columns in (picked, slice(0, width), slice(width - 1, width)):
            assert same(span.take(columns), whole[low:high][:, columns])
            if low < high:
                assert same(span.last(columns), whole[high - 1, columns])
        held = [*held[-5:], (span, whole[low:high])]
        for earlier, expected in held:
            assert same(earlier.take(slice(0, earlier.width)), expected)


def test_a_full_window_takes_little_more_than_its_cells() -> None:
    """A full buffer was copied into one with half as many rows again: 2.5 times the cells, and 0.14 s on the loop."""
    series, rows = 2000, 400
    window = Window(float(rows), series)
    group = window.group("g")
    columns = np.array([group.column(Labels({METRIC_NAME: "m", "n": str(n)})) for n in range(series)])
    tracemalloc.start()
    try:
        for t in range(4 * rows):
            group.append(float(t), columns, np.full(series, float(t)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    cells = 8 * series * rows
    assert peak < 1.8 * cells
    assert window.nbytes < 1.8 * cells


def test_a_block_of_wide_rows_is_bounded() -> None:
    blocks = RowBlocks()
    for _ in range(600):
        blocks.append(np.zeros(20_000))
    assert max(piece.nbytes for piece in blocks.span(0, 600, 20_000).pieces) <= BLOCK_BYTES


def test_a_series_that_came_later_has_no_samples_before() -> None:
    window = Window(1000.0, 1000)
    group = window.group("g")
    for t in range(200):
        column = group.column(Labels({METRIC_NAME: "m", "n": str(t)}))
        assert column is not None
        group.append(float(t), [column], [float(t)])
    frame = group.after(-1.0)
    values = {label["n"]: frame.values[:, place] for place, label in enumerate(frame.labels)}
    for n in (0, 70, 199):
        assert is_stale(values[str(n)]).tolist() == [True] * n + [False] * (200 - n)


def test_a_row_that_is_corrected_has_the_series_that_came_since() -> None:
    window = Window(1000.0, 1000)
    group = window.group("g")
    group.append(1.0)
    columns = [group.column(Labels({METRIC_NAME: "m", "n": str(n)})) for n in range(100)]
    group.write(1.0, np.array(columns), np.arange(100.0))
    frame = group.after(0.0)
    assert frame.values[0].tolist() == list(range(100))
