"""No step of a ledger is long, whatever chains and hashes a publisher makes up."""

from __future__ import annotations

import time

from kvitals.agent.ledger.block_table import Blocks, Room
from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.event import BlockEventBatch, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.ledger.parties import Party
from kvitals.agent.ledger.residency import survey, survey_steps
from kvitals.agent.ledger.reuse_curves import Reuse
from kvitals.agent.ledger.tenants import LedgerTenants
from kvitals.series.slices import Steps
from kvitals.series.window import Window

T = 1_790_000_000.0
LONG = 0.2
"""CPU seconds, ten times what a step may take on an idle machine."""


def look(chain: list[int], tenant: str = "a") -> SettledLookup:
    party = Party(tenant)
    party.settle()
    return SettledLookup(T, len(chain), 0, chain, 16, 16 * len(chain) + 1, 1, party, "parent chain", 1.0)


def longest(steps: Steps[object]) -> tuple[float, int]:
    """CPU seconds of the longest step, and how many there were. Pure work for threads is done beside."""
    worst, count = 0.0, 0
    while True:
        began = time.thread_time()
        try:
            work = next(steps)
        except StopIteration:
            return max(worst, time.thread_time() - began), count
        worst, count = max(worst, time.thread_time() - began), count + 1
        if work is not None:
            work()


def test_a_chain_whose_hashes_all_end_in_zero_bits() -> None:
    worst, count = longest(LedgerTenants(10).add_steps(look([n << 44 for n in range(1, 300_000)])))
    assert worst < LONG
    assert count > 200


def test_a_survey_of_many_runs() -> None:
    table = Blocks(Room())
    for n in range(50_000):
        table.store((1 + n,), None, T, False)
    worst, count = longest(survey_steps(table, [], 16, None, T))
    assert worst < LONG
    assert count > 20
    assert survey(table, [], 16, None, T).purposes == {"hot": 0, "cold": 50_000 * 16}


def test_curves_take_their_references_in_a_thread() -> None:
    reuse = Reuse(4)
    reuse.add(look(list(range(1, 140_000))), "e", "a")
    work = [each for each in reuse.advance_steps(T + 100, 10.0, {"e": 64}, ["a"]) if each is not None]
    assert len(work) == 2  # the engine's curve and the tenant's
    for each in work:
        each()


def test_events_of_many_blocks() -> None:
    ledger = LedgerSide(Window(3600, 100), {"node": "n"}, lambda _: {}, 10)
    events = tuple(
        BlocksStored(tuple(range(1 + i * 5000, 5001 + i * 5000)), i * 5000 or None, 16, tenant="a") for i in range(40)
    )
    record = KvEventsRecord(t=T, target="x", batches=(BlockEventBatch(1, T, events),))
    worst, count = longest(ledger.feed_steps(record, "e"))
    assert worst < LONG
    assert count >= 13
