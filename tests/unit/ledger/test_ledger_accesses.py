"""What stores tell of look-ups, in vLLM's order and in SGLang's."""

from __future__ import annotations

from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import QUIET_SECONDS, EngineLedger, SettledLookup
from kvitals.agent.ledger.event import (
    HOST,
    BlockEventBatch,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
    KvEventsRecord,
)
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.requests.record import RequestPhase, RequestRecord

T = 1_790_000_000.0
SIZE = 16


class Engine:
    """Batches go in, look-ups come out."""

    def __init__(self, style: Style = Style.BLOCKS) -> None:
        self.looks: list[SettledLookup] = []
        self.ledger = EngineLedger(Room(), Owners(), style, self.looks.append)
        self.sequence = 0

    def step(self, at: float, *events: Event, **flags: bool | int) -> None:
        batch = BlockEventBatch(self.sequence, T + at, events)
        self.sequence += 1
        self.ledger.feed(KvEventsRecord(t=T + at, target="t", batches=(batch,), **flags))  # type: ignore[arg-type]

    def record(self, end: float, prompt: int, cached: int | None, **more: object) -> None:
        told = {"id": "r", "start": T, "complete": True, "engines": {"unified": "e"}, "output_tokens": 1} | more
        made = RequestRecord(end=T + end, prompt_tokens=prompt, cached_tokens=cached, **told)  # type: ignore[arg-type]
        self.ledger.request(made)

    def quiet(self, at: float = 1000.0) -> list[tuple[int, int]]:
        """Blocks and hits of each look-up, without records."""
        self.ledger.advance(T + at, False)
        return [(look.blocks, look.hits) for look in self.looks]


def stored(*hashes: int, after: int | None = None, **more: str) -> BlocksStored:
    return BlocksStored(hashes, after, SIZE, **more)  # type: ignore[arg-type]


def test_the_first_store_of_a_request_tells_what_it_found_and_what_it_missed() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2, 3))
    engine.step(1, stored(4, 5, after=2))
    engine.step(40, stored(6, after=3))
    assert engine.quiet() == [(3, 0), (4, 2), (4, 3)]
    assert [look.chain for look in engine.looks] == [[1, 2, 3], [1, 2, 4, 5], [1, 2, 3, 6]]
    assert [look.source for look in engine.looks] == ["parent chain", "parent chain", "inferred"]
    assert engine.ledger.decoded_tokens == 0


def test_a_prompt_in_chunks_is_one_look_up() -> None:
    engine = Engine()
    engine.step(0.0, stored(*range(1, 9)))
    engine.step(0.2, stored(*range(9, 17), after=8))
    engine.step(0.4, stored(17, 18, 19, after=16))
    assert engine.quiet() == [(19, 0)]


def test_blocks_filled_by_decoding_were_missed_by_nobody() -> None:
    engine = Engine()
    engine.step(0.0, stored(1, 2, 3))
    for n in range(4, 8):
        engine.step(0.8 * n, stored(n, after=n - 1))
    assert engine.quiet() == [(3, 0)]
    assert engine.ledger.decoded_tokens == 4 * SIZE


def test_the_next_turn_of_a_conversation_is_another_look_up() -> None:
    engine = Engine()
    engine.step(0.0, stored(1, 2, 3))
    engine.step(0.8, stored(4, after=3))
    engine.step(9.0, stored(5, 6, after=4))
    assert engine.quiet() == [(3, 0), (6, 4)]


def test_two_requests_with_one_prefix_in_one_step() -> None:
    engine = Engine()
    engine.step(0.0, stored(1, 2, 3), stored(4, after=3), stored(5, after=2))
    assert engine.quiet() == [(3, 0), (4, 3), (3, 2)]


def test_a_prompt_that_was_there_whole_computes_its_last_block_again() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2, 3))
    engine.step(20, stored(3, after=2))
    assert engine.quiet() == [(3, 0), (3, 2)]
    assert engine.ledger.main.copies == 1
    assert engine.ledger.tallies["gpu"].refaulted == 0


def test_a_reused_prefix_that_is_reported_is_a_look_up_and_no_store() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2, 3))
    engine.step(20, stored(1, 2), stored(4, 5, after=2))
    engine.step(40, stored(1, 2, 3))  # all of it was there
    engine.step(40.2, stored(1, 2, 3))  # it could not be scheduled and looked again
    assert engine.quiet() == [(3, 0), (4, 2), (3, 3)]
    assert [look.source for look in engine.looks] == ["parent chain", "report mode", "report mode"]
    assert (engine.ledger.main.live, engine.ledger.main.copies) == (5, 0)


def test_what_is_wanted_again_is_a_refault_of_that_look_up() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2, 3, tenant="a", session="s1"))
    engine.step(5, BlocksRemoved((3, 2)), stored(7, 8, tenant="b", session="s2"))
    engine.step(9, BlocksRemoved((8, 7)), stored(2, 3, after=1, tenant="a", session="s1"))
    assert engine.quiet() == [(3, 0), (2, 0), (3, 1)]
    look = engine.looks[2]
    assert sum(look.refaults.values()) == 2
    (step,) = look.refaults
    assert {party.tenant: blocks for (party, _), blocks in step.stores.items()} == {"b": 2}
    assert engine.ledger.tallies["gpu"].refaulted_tokens == 2 * SIZE


def test_what_decoding_fills_again_is_no_refault() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2))
    engine.step(1, stored(3, after=2))
    engine.step(5, BlocksRemoved((3,)))
    engine.step(20, BlocksRemoved((2,)), stored(2, after=1))
    engine.step(21, stored(3, after=2))
    engine.quiet()
    assert engine.ledger.tallies["gpu"].refaulted == 1


def test_a_lower_tier_that_has_them_is_told_apart() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2, 3))
    engine.step(1, BlocksStored((2, 3), 1, SIZE, HOST), BlocksRemoved((3, 2)))
    engine.step(9, stored(2, 3, 4, after=1))
    tally = engine.ledger.tallies["gpu"]
    assert (tally.refaulted, tally.refaulted_below_tokens) == (2, 2 * SIZE)
    assert engine.ledger.tallies["host"].stored == 2
    assert engine.quiet() == [(3, 0), (4, 1)]


def test_sglang_stores_what_it_generated_at_the_end() -> None:
    engine = Engine(Style.ENDS)
    engine.step(0.0, stored(1, 2, 3))
    engine.step(0.5, stored(9))  # another request
    engine.step(0.6, stored(10))
    engine.step(0.7, stored(11))
    engine.step(4.0, stored(4, 5, after=3))  # the end
    engine.step(9.0, stored(6, after=5))  # the next turn
    engine.step(9.9, BlocksRemoved((4, 5, 6)))
    assert engine.quiet() == [(3, 0), (1, 0), (1, 0), (1, 0), (6, 5)]
    assert engine.ledger.decoded_tokens == 2 * SIZE
    assert engine.ledger.main.live == 6


def test_after_a_reset_nothing_is_there_and_nothing_is_wanted_again() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2))
    engine.step(1, BlocksCleared(), stored(1, 2))
    assert engine.quiet() == [(2, 0), (2, 0)]
    assert engine.ledger.tallies["gpu"].refaulted == 0
    assert engine.ledger.cleared == {"reset": 2}
    assert engine.ledger.share == 1.0


def test_after_a_restart_nothing_is_there() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2))
    engine.step(50, stored(1, 2), restarted=True)
    assert engine.quiet() == [(2, 0), (2, 0)]
    assert engine.ledger.cleared == {"restart": 2}
    assert engine.ledger.main.live == 2


def test_a_late_start_knows_no_chains_until_the_pool_was_stored_anew() -> None:
    engine = Engine()
    engine.ledger.set_pool(4)
    engine.step(0, stored(5, 6, after=4), late=True)
    assert engine.ledger.share == 0.5
    engine.step(40, BlocksRemoved((99,)), stored(7, after=6))
    assert engine.quiet() == []
    assert engine.ledger.unobserved == {"unknown_parent": 2}
    assert engine.ledger.all_dropped(0) == {"unknown_parent": 1, "unknown_removal": 1}
    engine.step(1020, stored(1))
    assert engine.ledger.share == 1.0


def test_a_hole_makes_what_was_known_doubtful_until_it_is_seen_again() -> None:
    engine = Engine()
    engine.ledger.set_pool(4)
    engine.step(0, stored(1, 2, 3))
    engine.step(5, stored(1, 2), lost=3)  # they had been removed, unseen
    assert engine.ledger.share == 0.0
    assert engine.ledger.main.copies == 0
    engine.step(6, stored(7, 8))
    engine.step(7, stored(9, 10))
    assert engine.ledger.share == 1.0
    assert engine.ledger.main.live == 6  # 3 was not heard of again


def test_nobody_knows_how_much_is_known_without_the_size_of_the_pool() -> None:
    engine = Engine()
    engine.step(0, stored(1), lost=1)
    assert engine.ledger.share is None


def test_a_record_decides_what_was_the_prompt() -> None:
    """Without it the single block after the chunk would be one that decoding filled."""
    engine = Engine()
    engine.step(0.0, stored(1, 2, 3))
    engine.step(0.1, stored(4, after=3))
    engine.record(end=0.3, prompt=4 * SIZE + 3, cached=0, tenant="a", session="s")
    engine.ledger.advance(T + 5, True)
    (look,) = engine.looks
    assert (look.blocks, look.hits, look.party.tenant, look.party.how) == (4, 0, "a", "learned")


def test_a_record_finds_the_turn_that_seemed_to_be_decoded() -> None:
    engine = Engine()
    engine.step(0.0, stored(1, 2, 3))
    for n in range(4, 7):
        engine.step(0.5 * (n - 3), stored(n, after=n - 1))
    engine.step(2.0, stored(7, after=6))  # of the next turn
    engine.record(end=1.6, prompt=3 * SIZE, cached=0, output_tokens=3 * SIZE, session="s", tenant="a")
    engine.record(end=2.5, prompt=7 * SIZE, cached=6 * SIZE, id="r2", start=T + 1.9, session="s", tenant="a")
    engine.ledger.advance(T + 10, True)
    assert [(look.request, look.blocks, look.hits) for look in engine.looks] == [("r", 3, 0), ("r2", 7, 6)]


def test_a_request_that_stored_nothing_is_known_by_its_session() -> None:
    engine = Engine()
    engine.step(0.0, stored(1, 2, 3))
    engine.record(end=0.3, prompt=3 * SIZE, cached=0, session="s", tenant="a")
    engine.ledger.advance(T + 5, True)
    engine.record(end=9, prompt=2 * SIZE + 5, cached=2 * SIZE, id="r2", start=T + 8, session="s", tenant="a")
    engine.record(end=9, prompt=2 * SIZE + 5, cached=2 * SIZE, id="r3", start=T + 8, tenant="a")
    engine.ledger.advance(T + 15, True)
    assert [(look.request, look.chain) for look in engine.looks] == [("r", [1, 2, 3]), ("r2", [1, 2])]
    assert engine.ledger.unobserved == {"no_chain": 1}


def test_of_two_alike_the_one_is_taken_whose_step_told_the_first_token() -> None:
    engine = Engine()
    engine.step(0.00, stored(1, 2))
    engine.step(0.01, stored(3, 4))
    for name, at in (("late", 0.011), ("early", 0.001)):
        phases = (RequestPhase("prefill", 0.001, "measured", T + at - 0.001),)
        engine.record(end=0.5, prompt=2 * SIZE, cached=0, id=name, ttft=0.02, phases=phases, tenant=name)
    engine.ledger.advance(T + 5, True)
    assert {look.request: look.chain for look in engine.looks} == {"early": [1, 2], "late": [3, 4]}


def test_a_record_that_fits_nothing_is_not_observed() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2))
    engine.record(end=1, prompt=9 * SIZE, cached=5 * SIZE)
    engine.record(end=1, prompt=0, cached=None, id="none")
    engine.ledger.request(RequestRecord(id="x", start=T, end=T + 1, complete=True, engines={"unified": "e"}))
    engine.ledger.advance(T + 5, True)
    assert engine.ledger.unobserved == {"other_blocks": 2, "no_prompt": 1}


def test_without_records_a_look_up_waits_until_it_is_quiet() -> None:
    engine = Engine()
    engine.step(0, stored(1, 2))
    engine.ledger.advance(T + QUIET_SECONDS - 1, False)
    assert not engine.looks
    engine.ledger.advance(T + QUIET_SECONDS + 1, False)
    assert len(engine.looks) == 1


def test_a_session_tells_its_tenant_from_the_first_record_on_and_a_salt_at_once() -> None:
    engine = Engine()
    engine.step(0.0, stored(1, session="s1"), stored(2, tenant="salt"), stored(3, lora="adapter"))
    engine.record(end=0.3, prompt=SIZE, cached=0, session="s1", tenant="a")
    engine.ledger.advance(T + 3, True)
    engine.step(20, stored(4, session="s1"))
    engine.ledger.flush()
    assert [(look.party.tenant, look.party.how) for look in engine.looks] == [
        ("a", "learned"),
        ("salt", "told"),
        ("lora:adapter", "told"),
        ("a", "told"),
    ]


def test_an_engine_whose_clock_is_wrong_has_our_time() -> None:
    engine = Engine()
    batch = BlockEventBatch(0, 12.0, (stored(1),))
    engine.ledger.feed(KvEventsRecord(t=T, target="t", batches=(batch,)))
    engine.ledger.feed(KvEventsRecord(t=T, target="t", batches=(BlockEventBatch(1, float("nan"), (stored(2),)),)))
    engine.quiet()
    assert [look.at for look in engine.looks] == [T, T]
