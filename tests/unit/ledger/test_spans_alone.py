"""Requests of which only an engine's span tells: when they had their first token, and not what was found."""

from __future__ import annotations

from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.event import BlockEventBatch, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.requests.record import RequestPhase, RequestRecord

T = 1_790_000_000.0
BLOCK = 16


def span(name: str, start: float, first: float, end: float, prompt: int, output: int) -> RequestRecord:
    phases = (RequestPhase("prefill", first - start - 0.001, "measured", T + start + 0.001),)
    return RequestRecord(
        id=name,
        start=T + start,
        end=T + end,
        complete=True,
        phases=phases,
        prompt_tokens=prompt * BLOCK + 1,
        output_tokens=output,
    )


def test_a_turn_that_looked_like_decoding_is_found_by_where_its_prompt_ends() -> None:
    looks: list[SettledLookup] = []
    ledger = EngineLedger(Room(), Owners(), Style.BLOCKS, looks.append)
    batches = (
        BlockEventBatch(0, T, (BlocksStored((1, 2, 3), None, BLOCK),)),
        BlockEventBatch(
            1, T + 1.0, (BlocksStored((4,), 3, BLOCK),)
        ),  # of another request, while the first one still generates
    )
    ledger.feed(KvEventsRecord(t=T + 1.1, target="x", batches=batches))
    ledger.request(span("b", 0.99, 1.01, 1.5, prompt=4, output=4))
    ledger.advance(T + 4.0, True)
    ledger.request(span("a", -0.01, 0.02, 5.0, prompt=3, output=100))
    ledger.advance(T + 8.0, True)
    found = {look.request: (look.hits, look.chain) for look in looks}
    assert found == {"b": (3, [1, 2, 3, 4]), "a": (0, [1, 2, 3])}
