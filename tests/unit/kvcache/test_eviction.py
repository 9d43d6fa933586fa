"""Every kernel evicts as its definition says, block by block; stack distances are LRU at every capacity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.kvcache.distances import seen_before, stack_distances
from kvitals.kvcache.eviction import POLICIES, Policy, cache
from tests.unit.kvcache.models import Request, accesses, any_ids, plain_replay, requests

ANY = st.one_of(requests(), any_ids())


def replay(policy: Policy, capacity: int, rows: list[Request], horizon: float = 5.0) -> list[int]:
    held = cache(policy, capacity, horizon)
    found = []
    for time, _, session, chain in rows:
        found.append(held.leading(chain))
        held.touch(chain, time, session)
        assert chain[0] in held or capacity < len(set(chain))
    return found


@pytest.mark.parametrize("policy", POLICIES)
@given(ANY, st.integers(1, 40))
def test_kernels_do_what_is_defined(policy: Policy, rows: list[Request], capacity: int) -> None:
    assert replay(policy, capacity, rows) == plain_replay(policy, capacity, rows)


@given(ANY)
def test_one_pass_of_distances_is_lru_at_every_capacity(rows: list[Request]) -> None:
    of = accesses(rows)
    distance = stack_distances(of.start, of.block, np.ones(of.references))
    for capacity in range(1, len(set(of.block.tolist())) + 2):
        hits = [
            int((distance[a:b] <= capacity).sum())
            for a, b in zip(of.start.tolist(), of.start[1:].tolist(), strict=False)
        ]
        assert hits == plain_replay("lru", capacity, rows)


@given(ANY)
def test_what_was_seen_before_is_what_an_endless_cache_hits(rows: list[Request]) -> None:
    of = accesses(rows)
    seen = seen_before(of.start, of.block)
    assert (seen == np.isfinite(stack_distances(of.start, of.block, np.ones(of.references)))).all()
    assert seen.sum() == sum(plain_replay("lru", np.inf, rows))


@given(requests())
def test_distances_count_what_other_blocks_stand_for(rows: list[Request]) -> None:
    of = accesses(rows)
    once = stack_distances(of.start, of.block, np.ones(of.references))
    assert (stack_distances(of.start, of.block, np.full(of.references, 2.5)) == 2.5 * (once - 1) + 1).all()


def test_no_accesses_have_no_distances() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert len(stack_distances(np.zeros(1, dtype=np.int64), none, np.zeros(0))) == 0
    assert len(seen_before(np.zeros(1, dtype=np.int64), none)) == 0


def test_tails_leave_first() -> None:
    """A cache of three after a chain of four: its tail was touched first and went for its head."""
    held = cache("lru", 3, 0.0)
    held.touch([1, 2, 3, 4], 0.0, -1)
    assert held.leading([1, 2, 3, 4]) == 3


def test_blocks_of_active_sessions_leave_last() -> None:
    held = cache("priority", 4, 10.0)
    held.touch([1, 2], 0.0, 7)
    held.touch([3, 4], 5.0, -1)
    held.touch([5], 6.0, -1)  # session 7's are older, but it is active
    assert held.leading([1, 2]) == 2
    assert 4 not in held
    held.touch([6], 20.0, -1)  # it is not any more
    assert held.leading([1, 2]) == 1
    with pytest.raises(ValueError, match="at least one block"):
        cache("lru", 0, 0.0)
