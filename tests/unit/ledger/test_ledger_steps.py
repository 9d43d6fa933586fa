"""However many requests ended, the ledger joins them in steps, between which others have a turn."""

from __future__ import annotations

from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.event import BlockEventBatch, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.requests.record import RequestRecord

BEGAN = 1_790_000_000.0
REQUESTS = 200
TOKENS = 16


def test_records_are_joined_one_in_a_step() -> None:
    looks: list[SettledLookup] = []
    ledger = EngineLedger(Room(), Owners(), Style.BLOCKS, looks.append)
    batches = tuple(
        BlockEventBatch(n, BEGAN + n / 100, (BlocksStored((2 * n + 1, 2 * n + 2), None, TOKENS),))
        for n in range(REQUESTS)
    )
    ledger.feed(KvEventsRecord(t=BEGAN + 2, target="x", batches=batches))
    for n in range(REQUESTS):
        at = BEGAN + n / 100
        ledger.request(
            RequestRecord(f"r{n}", at - 0.01, at + 1, True, ttft=0.01, prompt_tokens=2 * TOKENS, cached_tokens=0)
        )
    steps = sum(1 for _ in ledger.advance_steps(BEGAN + 10, True))
    assert steps >= REQUESTS
    assert sorted(look.request for look in looks) == sorted(f"r{n}" for n in range(REQUESTS))
