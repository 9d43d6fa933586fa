"""How many objects of the ledger the garbage collector walks: a microsecond each, while everything waits."""

from __future__ import annotations

import gc

from kvitals.agent.ledger.block_table import MAX_RUN, Blocks, EngineStep, Room
from kvitals.agent.ledger.event import BlockEventBatch, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.series.window import Window

T = 1_000_000.0
BLOCKS = 20_000


def tracked() -> int:
    gc.collect()  # it stops tracking tuples of numbers when it meets them
    gc.collect()
    return len(gc.get_objects())


def test_a_flood_of_blocks_of_their_own_is_a_run_each_to_the_collector() -> None:
    """It was five objects for each, and a collection of everything took 0.2 to 0.5 s under a flood."""
    side = LedgerSide(Window(900.0, 1000), {}, lambda _: {}, 50)
    before = tracked()
    stores = [BlocksStored((n,), None, 16, tenant=f"t{n % 5}") for n in range(1, BLOCKS + 1)]
    batches = tuple(
        BlockEventBatch(n, T + n / 100, tuple(stores[first : first + 20]))
        for n, first in enumerate(range(0, BLOCKS, 20))
    )
    side.feed(KvEventsRecord(t=T, target="x", batches=batches), "e", "vllm")
    del batches, stores
    for seconds in (20, 200, 400):
        side.advance(T + seconds)
    ledger = side.engines["e"].ledger
    assert len(ledger.main.runs) == BLOCKS
    assert tracked() - before < 1.5 * BLOCKS


def test_a_run_grows_to_a_limit_and_its_chain_goes_on() -> None:
    """A run is copied when it grows, so one that many stores extend must not grow for ever."""
    blocks = Blocks(Room())
    for n in range(1, 3 * MAX_RUN):
        blocks.store((n,), n - 1 or None, T, True)
    assert sorted(len(run.hashes) for run in blocks.runs) == [MAX_RUN - 1, MAX_RUN, MAX_RUN]
    last = blocks.ending(3 * MAX_RUN - 1)
    assert blocks.chain(last) == list(range(1, 3 * MAX_RUN))
    step = EngineStep(T + 1)
    assert sum(removed.blocks for removed in blocks.remove(range(3 * MAX_RUN - 1, 0, -1), step)) == 3 * MAX_RUN - 1
    again = blocks.store(tuple(range(1, 3 * MAX_RUN)), None, T + 2, False)
    assert (again.taken, len(again.refaults)) == (3 * MAX_RUN - 1, 3 * MAX_RUN - 1)
    assert blocks.ghosts == 0 and not any(run.gone for run in blocks.runs)
