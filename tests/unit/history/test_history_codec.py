"""Chunks and ticks give back every bit; what was not written by us is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kvitals.series.history import codec, wal_codec
from kvitals.series.history.codec import DamagedError
from kvitals.series.types import STALE

NUMBERS = st.one_of(
    st.integers(-(2**53), 2**53).map(float),
    st.integers(0, 3).map(float),
    st.floats(),
    st.sampled_from([STALE, -0.0, float("nan"), float("inf"), 2.0**53 + 2, 5e-324]),
)
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 6))


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint64)


@settings(max_examples=300, deadline=None)
@given(arrays.arrays(np.float64, SHAPES, elements=NUMBERS), st.booleans())
def test_chunks_give_back_every_bit(values: np.ndarray, counted: bool) -> None:
    if counted:  # what most columns are
        values = np.cumsum(np.nan_to_num(values, posinf=0.0, neginf=0.0) % 7 // 1, axis=0)
    assert np.array_equal(bits(codec.decode(codec.encode(values))), bits(values))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1 << 45), min_size=1, max_size=50, unique=True).map(sorted))
def test_times(times: list[int]) -> None:
    axis = np.array(times)
    assert np.array_equal(codec.decode_times(codec.encode_times(axis), len(times)), axis)


def test_buckets_cost_little_more_than_their_observations() -> None:
    rng = np.random.default_rng(1)
    seen = rng.integers(0, 12, 720)
    buckets = np.cumsum(seen[:, None] <= np.arange(12), axis=0).astype(float)
    alone = sum(len(codec.encode(buckets[:, i : i + 1])) for i in range(12))
    assert len(codec.encode(buckets)) < alone / 2


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_damaged_is_refused_or_right(data: st.DataObject) -> None:
    values = np.arange(60.0).reshape(12, 5)
    packed = bytearray(codec.encode(values))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    try:
        found = codec.decode(bytes(packed[: data.draw(st.integers(1, len(packed)))]))
    except DamagedError:
        return
    assert np.array_equal(found, values)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_well_packed_but_none_of_ours(raw: bytes) -> None:
    packed = codec.compress(raw)
    for read in (
        codec.decode,
        lambda data: codec.decode_times(data, 3),
        lambda d: wal_codec.gather_rows([wal_codec.unpack(d)]),
        lambda d: wal_codec.series_in([wal_codec.unpack(d)]),
        lambda d: wal_codec.DenseLog(np.arange(9, dtype=np.uint32), lambda _: True, 0, 1 << 40).add(
            wal_codec.unpack(d)
        ),
    ):
        try:
            read(packed)
        except DamagedError:
            continue


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(DamagedError):
        codec.decompress(codec.compress(bytes(1 << 22)), 1 << 20)


def test_ticks_are_laid_out_as_they_were() -> None:
    rng = np.random.default_rng(3)
    now = {group: np.full(20, STALE) for group in (3, 7)}
    rows: dict[int, list[np.ndarray]] = {3: [], 7: []}
    log = []
    for t in range(60):
        parts = []
        for group in now:
            times, places, series, values = [], [], [], []
            for row in range(int(rng.integers(1, 3))):
                times.append(t * 5000 + row)
                for column in sorted(rng.choice(20, int(rng.integers(0, 8)), replace=False)):
                    now[group][column] = rng.choice([rng.normal(), STALE, float(t)])
                    places.append(row)
                    series.append(group * 100 + column)
                    values.append(now[group][column])
                rows[group].append(now[group].copy())
            parts.append(
                wal_codec.RowChanges(
                    group, np.array(times), np.array(places, dtype=np.int64), np.array(series, dtype=np.uint32),
                    np.array(values, dtype=np.float64),
                )
            )  # fmt: skip
        log.append(wal_codec.unpack(wal_codec.pack(parts)))
    for group, expected in rows.items():
        for found in (wal_codec.gather_rows(log)[group], wal_codec.gather_rows(log, group)[group]):
            columns = wal_codec.ChangeColumns(found)
            places = columns.series.astype(int) - group * 100
            assert np.array_equal(bits(columns.of(columns.series)), bits(np.array(expected)[:, places]))
    wanted = np.array([305, 306, 719], dtype=np.uint32)
    dense = wal_codec.DenseLog(wanted, lambda group: group == 3, 10_000, 250_000)
    for tick in log:
        dense.add(tick)
    assert dense.groups.keys() == {3}
    part = dense.groups[3]
    part.close()
    assert part.series.tolist() == [305, 306]
    assert len(part.times) == len(rows[3])  # all rows, so that it shows where series have none
    seen = {n: (ids, row) for first, ids, values in part.blocks for n, row in enumerate(values, first)}
    assert [part.times[n] for n in seen] == [t for t in part.times if 10_000 <= t <= 250_000]
    assert all(np.array_equal(bits(row), bits(rows[3][n][ids.astype(int) - 300])) for n, (ids, row) in seen.items())
    assert dense.cells == sum(values.size for _, _, values in part.blocks)
    assert {group: (one.first, one.last) for group, one in wal_codec.series_in(log).items()} == {
        group: (0, part.times[-1]) if group == 3 else (0, wal_codec.gather_rows(log)[7].times[-1]) for group in (3, 7)
    }
