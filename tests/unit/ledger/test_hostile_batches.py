"""One message of an engine that means harm: the loop has its turns, and what it costs has a bound."""

from __future__ import annotations

import gc
import time

import pytest

from kvitals.agent.ledger.block_table import MAX_KNOWN, MAX_PAIRS, MAX_RUNS, Blocks, EngineStep, Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.event import (
    BlockEventBatch,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
    KvEventsRecord,
)
from kvitals.agent.ledger.join import WaitingAccesses
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.parties import Party
from kvitals.agent.ledger.prompt_lookups import Access, Style
from kvitals.agent.ledger.watched import MAX_SETTLED_BLOCKS, WatchedEngine

MOST = 1 << 17
"""Events, or hashes, of one message."""

STEP_SECONDS = 0.1
BATCH_SECONDS = 10.0
"""CPU time of a step and of a batch on a busy machine: five times what they take."""

T = 1_000.0


def chain_of_sessions(count: int) -> tuple[Event, ...]:
    """Each block is another session's, and all before it is its prompt."""
    return tuple(BlocksStored((1 + n,), n if n else None, 16, session=f"s{n}") for n in range(count))


def taken(ledger: EngineLedger, events: tuple[Event, ...], sequence: int = 0) -> tuple[float, float]:
    """CPU seconds of the longest step of a batch, and of all."""
    gc.collect()
    gc.freeze()  # as in an agent, whose full collections walk only what is newer than the last one
    record = KvEventsRecord(t=T, target="engine", batches=(BlockEventBatch(sequence, T + sequence, events),))
    steps, began, longest = ledger.feed_steps(record), time.thread_time(), 0.0
    last = began
    for _ in steps:
        now = time.thread_time()
        longest, last = max(longest, now - last), now
        assert now - began < BATCH_SECONDS
    return longest, time.thread_time() - began


def ledger() -> EngineLedger:
    return EngineLedger(Room(), Owners(), Style.BLOCKS, lambda _: None)


@pytest.mark.parametrize(
    "events",
    [
        chain_of_sessions(MOST),
        (BlocksStored(tuple(range(1, MOST + 1)), None, 16),),
        (BlocksStored(tuple(range(1, MOST + 1)), None, 16), BlocksRemoved(tuple(range(MOST, 0, -1)))),
        (BlocksStored(tuple(range(1, MOST + 1)), None, 16), BlocksRemoved(tuple(range(1, MOST + 1)))),
        (*chain_of_sessions(4_000), BlocksCleared()),
    ],
    ids=["lookups behind each other", "one prompt", "its removal", "its removal from the front", "all cleared"],
)
def test_a_batch_of_the_largest_size_is_fed_in_short_steps(events: tuple[Event, ...]) -> None:
    longest, _ = taken(ledger(), events)
    assert longest < STEP_SECONDS


def test_what_is_left_of_a_batch_that_costs_too_much_is_a_hole() -> None:
    made = ledger()
    taken(made, chain_of_sessions(MOST))
    assert made.dropped["walk_limit"] > MOST // 2
    assert made.share != 1.0
    taken(made, (BlocksStored((1 << 40, 2 << 40), None, 16),), 1)
    assert made.main.holds((1 << 40, 2 << 40))  # the next batch is taken


def test_a_step_knows_a_bounded_number_of_parties_and_all_of_the_blocks() -> None:
    step = EngineStep(T)
    for n in range(10 * MAX_PAIRS):
        step.store(Party(f"t-{n}"), 2)
    assert len(step.stores) == MAX_PAIRS + 1
    assert sum(step.stores.values()) == 20 * MAX_PAIRS
    assert all(party.settled for pair in step.stores for party in pair)


def test_the_oldest_of_those_that_wait_is_found_at_once() -> None:
    """A dict looks for its first entry behind all those that were removed before it."""
    waiting = WaitingAccesses()

    def access(n: int) -> Access:
        return Access(T, n % 7, None, Party(), "parent chain", ("", "", ""), None, n, n, n)

    for n in range(4_096):
        waiting.add(access(n))
    began = time.thread_time()
    for n in range(100_000):
        oldest = waiting.oldest()
        assert oldest is not None
        waiting.remove(oldest)
        waiting.add(access(n))
    assert time.thread_time() - began < 3.0


def test_chains_of_look_ups_that_wait_have_a_size() -> None:
    watched = WatchedEngine("engine", "target", Room(), Owners(), Style.BLOCKS, 1_000)
    look = SettledLookup(T, 50_000, 0, [*range(50_000)], 16, 800_000, None, Party(), "parent chain", 1.0)
    for _ in range(100):
        watched._take(look)
    looks = watched.take_settled()
    assert len(looks) == 100
    assert sum(len(one.chain or ()) for one in looks) <= MAX_SETTLED_BLOCKS
    assert watched.ledger.dropped["settled_limit"] == 100 - MAX_SETTLED_BLOCKS // 50_000
    assert watched.take_settled() == []


def test_runs_of_one_block_each_have_a_bound() -> None:
    """Whoever walks all runs, such as the survey of what the blocks are for, walks a bounded number of them."""
    room = Room()
    table = Blocks(room)
    for n in range(2 * MAX_RUNS):
        table.store((1 + n,), None, T, False)
    assert len(table.runs) == MAX_RUNS == MAX_KNOWN - room.left
    assert table.dropped == {"run_limit": MAX_RUNS}
    table.store(tuple(range(1 << 40, (1 << 40) + 100)), 1, T, False)
    assert table.purge(T + 1.0) == MAX_RUNS
    assert (room.runs, room.left) == (MAX_RUNS, MAX_KNOWN)


def test_a_removal_in_the_middle_without_room_for_a_run_forgets_the_whole_run() -> None:
    room = Room(runs=1)
    table = Blocks(room)
    table.store((1, 2, 3, 4), None, T, False)
    table.remove((2,), EngineStep(T))
    assert table.dropped == {"run_limit": 4, "unknown_removal": 1}
    assert (table.live, table.ghosts, room.left, room.runs) == (0, 0, MAX_KNOWN, 1)
