"""The tree of runs says the same as counting copies by hash, whatever comes; and it knows again what was removed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.ledger.block_table import UNKNOWN, Blocks, EngineStep, Room

NOW = 100.0


def blocks(limit: int = 10_000) -> Blocks:
    return Blocks(Room(limit))


def store(
    table: Blocks, *hashes: int, after: int | None = None, at: float = NOW, extend: bool = False
) -> list[EngineStep]:
    return table.store(hashes, after, at, extend).refaults


def chain_to(table: Blocks, block: int) -> list[int] | None:
    return table.chain(table.ending(block))


def test_what_is_stored_behind_each_other_is_one_run() -> None:
    table = blocks()
    store(table, 1, 2, 3)
    store(table, 4, after=3, extend=True)
    assert len(table.runs) == 1
    assert chain_to(table, 4) == [1, 2, 3, 4]
    assert (table.live, table.ghosts, len(table)) == (4, 0, 4)


def test_a_branch_splits_the_run_and_both_chains_are_whole() -> None:
    table = blocks()
    store(table, 1, 2, 3, 4)
    store(table, 5, 6, after=2)
    assert chain_to(table, 4) == [1, 2, 3, 4]
    assert chain_to(table, 6) == [1, 2, 5, 6]
    assert len(table.runs) == 3


def test_a_copy_more_is_removed_before_the_block_is_gone() -> None:
    table = blocks()
    store(table, 1, 2)
    store(table, 2, after=1)  # the last block of a prompt that was found whole is computed again
    assert (table.live, table.copies) == (3, 1)
    table.remove([2], EngineStep(NOW))
    assert (table.live, table.copies, table.ghosts) == (2, 0, 0)
    assert table.holds((1, 2))
    table.remove([2], EngineStep(NOW))
    assert (table.live, table.ghosts) == (1, 1)
    assert not table.holds((1, 2))


def test_what_was_removed_and_is_stored_again_tells_the_steps_that_removed_it() -> None:
    table = blocks()
    store(table, 1, 2, 3)
    first, second = EngineStep(NOW + 1), EngineStep(NOW + 2)
    table.remove([3], first)
    table.remove([2], second)
    assert store(table, 2, 3, 4, after=1, at=NOW + 5) == [second, first]
    assert (table.live, table.ghosts) == (4, 0)
    assert chain_to(table, 4) == [1, 2, 3, 4]


def test_a_removal_in_the_middle_leaves_what_is_behind() -> None:
    table = blocks()
    store(table, 1, 2, 3)
    table.remove([2], EngineStep(NOW))
    assert (table.live, table.ghosts) == (2, 1)
    assert table.holds((3,))
    assert not table.holds((1, 2))
    step = EngineStep(NOW)
    table.remove([2], step)
    assert table.dropped == {"unknown_removal": 1}
    store(table, 2, 3, after=1)
    assert (table.live, table.copies, table.ghosts) == (4, 1, 0)
    assert chain_to(table, 3) == [1, 2, 3]


def test_how_long_blocks_were_idle_and_whether_anything_found_them() -> None:
    table = blocks()
    store(table, 1, 2)
    run = table.ending(1)
    assert run is not None
    run.last, run.uses = NOW + 4, 1
    said = table.remove([2, 1], EngineStep(NOW + 10))
    assert [(one.blocks, one.idle, one.lived, one.used) for one in said] == [
        (1, 10.0, 10.0, False),
        (1, 6.0, 10.0, True),
    ]


def test_behind_a_block_that_nobody_told_of_nothing_is_known_of_the_chain() -> None:
    table = blocks()
    said = table.store((5, 6), 4, NOW, False)
    assert said.depth == UNKNOWN
    assert chain_to(table, 6) is None
    assert table.live == 2
    assert table.dropped == {"unknown_parent": 1}
    store(table, 3, 4)
    store(table, 5, 6, after=4)  # told at last, as copies: now the chain is whole
    assert chain_to(table, 6) == [3, 4, 5, 6]


def test_a_chain_that_is_told_from_the_root_is_whole_though_its_end_was_known_without_its_beginning() -> None:
    table = blocks()
    store(table, 2, after=1)  # nobody told of 1
    store(table, 3, after=2)
    assert chain_to(table, 3) is None
    store(table, 1, 2, 3)
    assert chain_to(table, 3) == [1, 2, 3]
    store(table, 12, 13, after=11)
    table.remove([12], EngineStep(NOW))  # which splits what was one run
    store(table, 11, 12, 13)
    assert chain_to(table, 13) == [11, 12, 13]


def test_ghosts_leave_oldest_first_and_what_is_live_stays() -> None:
    table = blocks()
    table.ghost_limit = 2
    for n in range(4):
        store(table, 10 * n, 10 * n + 1)
        table.remove([10 * n + 1], EngineStep(NOW + n))
    assert table.ghosts == 2
    assert table.live == 4
    assert store(table, 1, after=0) == []
    assert len(store(table, 31, after=30)) == 1


def test_a_full_room_takes_ghosts_first_and_then_refuses() -> None:
    table = blocks(limit=4)
    store(table, 1, 2, 3)
    table.remove([3, 2], EngineStep(NOW))
    assert table.store((4, 5, 6), None, NOW, False).taken == 3
    assert table.ghosts == 0
    assert table.store((7,), None, NOW, False).run is None
    assert table.dropped["live_limit"] == 1
    assert len(table) == 4


def test_clearing_gives_the_room_back() -> None:
    room = Room(4)
    table = Blocks(room)
    store(table, 1, 2, 3)
    assert table.clear() == 3
    assert room.left == 4
    assert not table.holds((1,))


def test_what_may_be_gone_is_no_copy_when_it_is_stored_again() -> None:
    table = blocks()
    store(table, 1, 2, 3)
    table.doubt = NOW + 1
    assert not table.holds((1,))
    said = table.store((1, 2), None, NOW + 2, False)
    assert (said.copies, table.live) == (0, 3)
    assert table.holds((1, 2))
    assert table.purge(NOW + 1) == 1
    assert table.live == 2


def test_blocks_that_contradict_each_other_are_not_taken() -> None:
    table = blocks()
    assert table.store((1, 1), None, NOW, False).run is None
    assert table.dropped == {"contradiction": 2}
    store(table, 1, 2)
    store(table, 2, 1, after=2)  # a circle
    store(table, 3, after=1)
    assert chain_to(table, 3) in (None, [1, 3])
    assert table.path(table.ending(3))


events = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 5), st.integers(0, 6), st.integers(1, 4)),
        st.tuples(st.just("remove"), st.integers(0, 400), st.just(0), st.just(0)),
        st.tuples(st.just("look"), st.integers(0, 400), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(events, st.integers(8, 60))
def test_it_agrees_with_counting_copies(told: list[tuple[str, int, int, int]], limit: int) -> None:
    """Prompts are paths in a small tree; any part of one is stored, any live block is removed."""
    table, counts, ever = blocks(), Counter[int](), set[int]()
    table.ghost_limit = limit
    trimmed = False
    for n, (what, a, b, c) in enumerate(told):
        if what == "store":
            # block number b of path a; paths of the same parity share their first three blocks
            path = [1000 * (a % 2) + i if i < 3 else 10_000 * (a + 1) + i for i in range(10)]
            some = path[b : b + c]
            ghosts = sum(block in ever and not counts[block] for block in some)
            said = table.store(tuple(some), path[b - 1] if b else None, NOW + n, bool(c % 2))
            assert said.copies == sum(counts[block] > 0 for block in some)
            assert trimmed or len(said.refaults) == ghosts
            counts.update(some)
            ever.update(some)
            if b == 0 or (table.chain(said.run) is not None):
                assert table.chain(said.run) == path[: b + c]
        else:
            live = sorted(block for block, copies in counts.items() if copies)
            if not live:
                continue
            block = live[a % len(live)]
            if what == "remove":
                table.remove([block], EngineStep(NOW + n))
                counts[block] -= 1
            else:
                assert table.holds((block,))
                assert table.ending(block) is not None
        trimmed = trimmed or "ghost_limit" in table.dropped
        assert table.live == counts.total()
        assert table.ghosts <= limit
        assert sum(run.live for run in table.runs) == sum(copies > 0 for copies in counts.values())
        assert sum(len(run.gone) for run in table.runs) == table.ghosts
        assert sum(len(run.hashes) for run in table.runs) == len(table)
