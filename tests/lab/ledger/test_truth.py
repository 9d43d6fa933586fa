"""What the proofs take for true, on events made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.event import BlockEventBatch, BlocksCleared, BlocksRemoved, BlocksStored, Event
from kvitals.agent.ledger.parties import Party

from .accuracy import accuracy
from .pushed import NOBODY, pushed
from .resident import scheduled
from .trial import ONE, STICKY, TWICE, driven, hit_rate

BLOCK = 4


def stored(*blocks: int, parent: int | None = None) -> BlocksStored:
    return BlocksStored(tuple(blocks), parent, BLOCK)


def steps(*events: tuple[Event, ...]) -> list[BlockEventBatch]:
    return [BlockEventBatch(number, 100.0 + number, told) for number, told in enumerate(events)]


def row(name: str, sent: float, blocks: list[int], cached: int = 0, tenant: str = "a", more: int = 1) -> dict[str, Any]:
    """A request whose prompt goes on for `more` tokens behind its whole blocks."""
    return {
        "id": name,
        "tenant": tenant,
        "session": "",
        "sent": sent,
        "first": sent + 0.5,
        "ended": sent + 0.9,
        "ok": True,
        "prompt_tokens": len(blocks) * BLOCK + more,
        "cached_tokens": cached * BLOCK,
        "blocks": blocks,
        "decoded_blocks": [],
    }


def test_a_request_finds_what_was_there_before_its_own_store() -> None:
    events = steps((stored(1, 2, 3),), (stored(4, parent=2),))
    found = scheduled(events, [row("x", 99.9, [1, 2, 3]), row("y", 100.9, [1, 2, 4])], BLOCK)
    assert (found["x"].low, found["x"].at) == (0, 100.0)
    assert (found["y"].low, found["y"].high, found["y"].at, found["y"].seen) == (2, 2, 101.0, True)


def test_a_prompt_in_chunks_was_looked_up_before_the_first() -> None:
    events = steps((stored(1, 2),), (stored(3, 4, parent=2),))
    found = scheduled(events, [row("x", 99.9, [1, 2, 3, 4])], BLOCK)
    assert (found["x"].low, found["x"].at) == (0, 100.0)
    again = steps((stored(1, 2),), (BlocksRemoved((2, 1)),), (stored(1, 2),), (stored(3, 4, parent=2),))
    requests = [row("w", 99.9, [1, 2]), row("x", 101.9, [1, 2, 3, 4])]
    assert scheduled(again, requests, BLOCK)["x"].at == 102.0  # what was another's has to be stored anew


def test_a_copy_less_is_still_there_and_a_reset_is_not() -> None:
    events = steps(
        (stored(1), stored(1), BlocksRemoved((1,))), (stored(2, parent=1),), (BlocksCleared(),), (stored(3, parent=1),)
    )
    requests = [row("x", 100.9, [1, 2]), row("y", 102.9, [1, 3])]
    found = scheduled(events, requests, BLOCK)
    assert (found["x"].low, found["y"].low) == (1, 0)


def test_without_a_block_of_its_own_only_the_time_tells() -> None:
    events = steps((stored(1, 2),), (BlocksRemoved((2,)),), (stored(9),))
    requests = [row("x", 99.9, [1, 2]), row("y", 100.6, [1, 2])]
    found = scheduled(events, requests, BLOCK)
    assert (found["y"].low, found["y"].high, found["y"].seen) == (1, 2, False)


def test_the_block_with_the_last_token_is_never_found() -> None:
    events = steps((stored(1, 2),), (stored(7),))
    found = scheduled(events, [row("x", 99.9, [1, 2]), row("y", 100.6, [1, 2], more=0)], BLOCK)
    assert found["y"].high == 1


def test_who_pushed_out_what_was_only_stored_again_is_behind_it() -> None:
    requests = [row("x", 99.9, [1, 2]), row("h", 100.9, [7, 8], tenant="heavy"), row("y", 99.0, [5], tenant="b")]
    events = steps(
        (stored(1, 2), stored(5)),
        (BlocksRemoved((1,)), stored(7)),  # the heavy one takes a's block
        (BlocksRemoved((5,)), stored(1)),  # a has to store it again, and that takes b's
        (stored(5),),
        (BlocksRemoved((7,)),),
        (stored(7),),
    )
    lost = pushed(events, requests)
    assert lost["a"] == {"heavy": 1.0}
    assert lost["b"] == {"heavy": 1.0}
    assert lost["heavy"] == {NOBODY: 1.0}


def look(at: float, chain: list[int], hits: int, tenant: str = "", request: str = "") -> SettledLookup:
    party = Party(tenant)
    return SettledLookup(at, len(chain), hits, chain, BLOCK, len(chain) * BLOCK, None, party, "inferred", 1.0, request)


def test_look_ups_are_held_against_the_truth() -> None:
    events = steps((stored(1, 2, 3),), (stored(4, parent=2),))
    requests = [row("x", 99.9, [1, 2, 3]), row("y", 100.9, [1, 2, 4], cached=2)]
    truth = scheduled(events, requests, BLOCK)
    right = [look(100.0, [1, 2, 3], 0), look(101.0, [1, 2, 4], 2)]
    assert accuracy(right, requests, truth, BLOCK, named=False).chains == 2
    wrong = [look(100.0, [1, 2, 3, 4], 0, "b", "x"), look(101.5, [1, 2, 4], 1)]
    told = accuracy(wrong, requests, truth, BLOCK, named=True)
    assert (told.found, told.hits, told.chains, told.wrong, told.surplus) == (1, 1, 0, 1, 1)


def test_what_a_driver_sent_is_replayed() -> None:
    rows = [[float(i), f"s{i % 2}", 8, 0, [10 * (i % 2), 10 * (i % 2) + 1]] for i in range(6)]
    accesses = driven(rows)
    assert accesses.block_size == 32
    assert [hit_rate(accesses, setup) for setup in (ONE, TWICE)] == [4 / 6, 4 / 6]
    assert hit_rate(accesses, STICKY) == pytest.approx(4 / 6)
