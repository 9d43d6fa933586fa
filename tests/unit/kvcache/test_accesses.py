"""Accesses are what was put in, in order of time, within the builder's cap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.kvcache.accesses import UNKNOWN, Accesses, Builder, concatenate, empty

CHAINS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
)


def built(rows: list[tuple[int, str, list[int]]], block_size: int = 16) -> Accesses:
    builder = Builder(block_size, 100_000)
    for time, engine, chain in rows:
        assert builder.add(time, 100, chain, "tap", engine=engine)
    return builder.accesses()


def listed(accesses: Accesses) -> list[tuple[float, str, list[int]]]:
    ends = zip(accesses.start, accesses.start[1:], strict=False)
    return [
        (time, accesses.engines[code], accesses.block[a:b].tolist())
        for time, code, (a, b) in zip(accesses.time, accesses.engine, ends, strict=True)
    ]


@given(CHAINS)
def test_rows_come_back_in_order_of_time(rows: list[tuple[int, str, list[int]]]) -> None:
    assert listed(built(rows)) == sorted(rows, key=lambda row: row[0])


@given(CHAINS, CHAINS)
def test_parts_put_together_are_the_whole(
    a: list[tuple[int, str, list[int]]], b: list[tuple[int, str, list[int]]]
) -> None:
    assert listed(concatenate([built(a), empty(16), built(b)])) == sorted(a + b, key=lambda row: row[0])


@given(CHAINS)
def test_selection_keeps_those_asked_for(rows: list[tuple[int, str, list[int]]]) -> None:
    accesses = built(rows).select(engine="a", since=2, until=7)
    wanted = [row for row in rows if row[1] == "a" and 2 <= row[0] < 7]
    assert listed(accesses) == sorted(wanted, key=lambda row: row[0])


def test_an_engine_that_is_not_there_has_no_accesses() -> None:
    accesses = built([(1, "a", [1])])
    assert len(accesses.select(engine="x")) == 0
    assert len(accesses.select(tenant="x")) == 0


def test_what_is_not_known_is_not_zero() -> None:
    builder = Builder(16, 100)
    builder.add(1.0, 20, [5], "inferred")
    row = builder.accesses()
    assert [getattr(row, name)[0] for name in ("engine", "tenant", "session", "output", "hit")] == [UNKNOWN] * 5


def test_the_oldest_leave_when_the_cap_is_reached() -> None:
    builder = Builder(16, 80)
    for i in range(100):
        builder.add(float(i), 20, [i, i + 1], "tap", tenant=f"t{i}")
    held = builder.accesses()
    assert held.references <= 80
    assert len(held) + builder.left == 100
    assert held.time[-1] == 99.0
    assert held.tenants[held.tenant[-1]] == "t99"
    assert len(held.tenants) == len(held)


def test_rows_without_blocks_leave_too() -> None:
    builder = Builder(16, 80)
    for i in range(1000):
        builder.add(float(i), 3, [], "tap")
    assert len(builder.accesses()) <= 80


@pytest.mark.parametrize(
    ("time", "tokens", "chain"),
    [(1.0, 5, list(range(11))), (float("nan"), 5, [1]), (float("inf"), 5, [1]), (1.0, -1, [1])],
)
def test_a_row_that_can_not_be_is_refused_and_counted(time: float, tokens: int, chain: list[int]) -> None:
    builder = Builder(16, 80)
    assert not builder.add(time, tokens, chain, "tap")
    assert builder.refused == 1
    assert len(builder.accesses()) == 0


def test_an_id_that_is_too_large_leaves_nothing_behind() -> None:
    builder = Builder(16, 80)
    with pytest.raises(OverflowError):
        builder.add(1.0, 20, [1, 2**63], "tap")
    with pytest.raises(OverflowError):
        builder.add(1.0, 2**63, [1], "tap")
    builder.add(2.0, 20, [7], "tap")
    assert builder.accesses().block.tolist() == [7]


def test_the_observed_share_of_parts_is_that_of_their_look_ups() -> None:
    a = replace(built([(1, "a", [1])] * 3), observed=1.0, learned="all seen")
    b = replace(built([(2, "a", [1])]), observed=0.25, learned="some seen")
    together = concatenate([a, b])
    assert together.observed == pytest.approx(4 / 7)
    assert together.learned == "all seen; some seen"
    assert concatenate([a, replace(b, observed=None)]).observed is None
    assert concatenate([a, replace(b, observed=0.0)]).observed == 0.0


def test_blocks_of_different_sizes_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="16, 32 tokens"):
        concatenate([empty(16), empty(32)])
    with pytest.raises(ValueError, match="no accesses"):
        concatenate([])


@pytest.mark.parametrize(
    "change",
    [
        {"time": np.array([2.0, 1.0])},
        {"time": np.array([1.0, np.nan])},
        {"start": np.array([0, 2, 1])},
        {"tokens": np.array([1])},
        {"tokens": np.array([1, -1])},
        {"engine": np.array([0, 7])},
        {"block_size": 0},
        {"observed": 1.5},
    ],
)
def test_columns_that_contradict_each_other_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"accesses|start|block_size|observed|code"):
        replace(built([(1, "a", [1]), (2, "a", [2])]), **change)  # type: ignore[arg-type]
