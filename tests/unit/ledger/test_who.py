"""Who paid for whom, what tenants have and how even it is, and what blocks are held for."""

from __future__ import annotations

import random

import pytest

from kvitals.agent.ledger.blame import MAX_CHARGES, TENANTS, UNATTRIBUTED, WAIT_SECONDS, Blame
from kvitals.agent.ledger.block_table import MAX_ORIGINS, Blocks, EngineStep, Room
from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.parties import Party
from kvitals.agent.ledger.residency import duplicates, survey
from kvitals.agent.ledger.tenants import SAMPLE, FirstSeen, LedgerTenants
from kvitals.agent.ledger.top import EPOCH_SECONDS, Top

T = 1_790_000_000.0


def step(**stores: int) -> EngineStep:
    made = EngineStep(T)
    for tenant, blocks in stores.items():
        made.store(Party(tenant), blocks)
    return made


def test_who_stored_in_the_step_pays_by_blocks() -> None:
    blame = Blame()
    blame.wanted(Party("light"), {step(heavy=3, light=1): 8}, 16, T)
    blame.wanted(Party("light"), {EngineStep(T): 2}, 16, T)
    blame.settle(T)
    assert blame.cells == {("light", "heavy"): 96.0, ("light", "light"): 32.0, ("light", UNATTRIBUTED): 32.0}
    assert blame.known == pytest.approx(128 / 160)
    assert blame.error == 0.0


def test_who_only_stores_again_what_was_pushed_out_pushes_nobody_out() -> None:
    blame, refill = Blame(), EngineStep(T + 1)
    refill.store_again(Party("light"), step(heavy=2), 4)
    assert {(one.tenant, by.tenant): blocks for (one, by), blocks in refill.stores.items()} == {("light", "heavy"): 4.0}
    blame.wanted(Party("third"), {refill: 1}, 16, T)
    blame.wanted(Party("light"), {refill: 1}, 16, T)
    blame.settle(T)
    assert blame.cells == {("third", "heavy"): 16.0, ("light", "heavy"): 16.0}


def test_two_that_push_each_other_out_in_turn_pay_for_each_other() -> None:
    blame, first, second, third = Blame(), step(b=1), EngineStep(T), EngineStep(T)
    second.store_again(Party("a"), first, 1)  # a takes its place back, and b's block goes
    third.store_again(Party("b"), second, 1)
    for victim, removing in (("a", first), ("b", second), ("a", third)):
        blame.wanted(Party(victim), {removing: 1}, 16, T)
    blame.settle(T)
    assert blame.cells == {("a", "b"): 32.0, ("b", "a"): 16.0}


def test_what_nobody_pushed_out_is_its_own_when_it_comes_back_and_origins_have_bounds() -> None:
    again = EngineStep(T)
    again.store_again(Party("a"), EngineStep(T), 2)
    assert [(by.tenant, blocks) for (_, by), blocks in again.stores.items()] == [("a", 2)]
    many = EngineStep(T)
    for n in range(1, 100):
        many.store(Party(f"t{n}"), n)
    again.store_again(Party("b"), many, 10)
    assert len(again.stores) == MAX_ORIGINS + 1
    assert sum(again.stores.values()) == pytest.approx(12)


def test_a_charge_waits_for_who_it_was_and_then_goes_to_nobody() -> None:
    blame, culprit = Blame(), Party()
    removing = EngineStep(T)
    removing.store(culprit, 1)
    blame.wanted(Party("a"), {removing: 1}, 16, T)
    blame.settle(T + 1)
    assert blame.cells == {}
    culprit.settle("b")
    blame.settle(T + 2)
    assert blame.cells == {("a", "b"): 16.0}
    other = EngineStep(T)
    other.store(Party(), 1)
    blame.wanted(Party("a"), {other: 1}, 16, T)
    blame.settle(T + WAIT_SECONDS - 1)
    assert blame.total == 16.0
    blame.settle(T + WAIT_SECONDS)
    assert blame.cells["a", ""] == 16.0
    assert blame.known == 0.5


def test_the_matrix_has_bounds_and_says_how_wrong_it_may_be() -> None:
    blame = Blame()
    for n in range(4 * TENANTS):
        blame.wanted(Party(f"t{n}"), {step(heavy=1): 1}, 16, T)
    blame.settle(T)
    names = {name for pair in blame.cells for name in pair}
    assert len(names) == TENANTS + 1
    assert blame.error == pytest.approx(sum(v for pair, v in blame.cells.items() if "other" in pair) / blame.total)
    assert 0.5 < (blame.error or 0) < 1
    waiting = EngineStep(T)
    waiting.store(Party(), 1)
    for _ in range(MAX_CHARGES + 7):
        blame.wanted(Party("t0"), {waiting: 1}, 16, T)
    assert blame.early == 7


def test_places_go_to_those_with_most_and_stay_where_nobody_is_clearly_heavier() -> None:
    top = Top(2)
    assert [top.place(name, 10.0) for name in ("a", "b", "c", "")] == ["a", "b", "other", ""]
    assert top.review(T) == []
    top.place("c", 5.0)
    assert top.review(T + EPOCH_SECONDS) == []
    for _ in range(50):
        top.place("d", 10.0)
    assert top.review(T + 2 * EPOCH_SECONDS) == ["a"]
    assert (top.label("d"), top.label("a"), top.label("b")) == ("d", "other", "b")


def test_the_frequent_one_gets_its_place_however_many_come_once() -> None:
    top = Top(1)
    top.place("first", 100.0)
    top.review(T)
    for n in range(20_000):
        top.place(f"once{n}", 1.0)
        top.place("often", 1.0)
    assert top.review(T + EPOCH_SECONDS) == ["first"]
    assert top.label("often") == "often"


def test_blocks_seen_before_are_counted_exactly_while_they_are_few() -> None:
    seen = FirstSeen()
    assert seen.add([1, 2, 3], 0, 3) == 0
    assert seen.add([1, 2, 4], 0, 3) == 2
    assert seen.add([1, 2, 3, 4], 0, 4) == 4
    assert seen.add([1, 2, 3, 4], 0, 3) == 3


def test_what_others_stored_and_a_prompt_found_was_attainable() -> None:
    """Found tokens are never more than attainable ones: both are of the same set."""
    seen = FirstSeen()
    assert seen.add([1, 2, 3], 2, 3) == 2
    assert seen.add([1, 2, 3], 2, 3) == 3


def test_and_in_bounds_with_little_error_where_they_are_many() -> None:
    chance = random.Random(3)
    seen, counted, true, ever = FirstSeen(), 0, 0, set[int]()
    chains = [[chance.getrandbits(64) for _ in range(40)] for _ in range(500)]
    references = 0
    for _ in range(2_000):
        chain = chance.choice(chains)[: chance.randrange(1, 41)]
        true += sum(block in ever for block in chain)
        ever.update(chain)
        counted += seen.add(chain, 0, len(chain))
        references += len(chain)
    assert len(seen._seen) <= SAMPLE
    assert counted / references == pytest.approx(true / references, abs=0.045)


def look(tenant: str, chain: list[int], hits: int, at: float = T) -> SettledLookup:
    party = Party(tenant)
    party.settle()
    return SettledLookup(at, len(chain), hits, chain, 16, 16 * len(chain) + 3, None, party, "parent chain", 1.0)


def test_what_a_tenant_could_have_had_is_what_it_looked_up_before() -> None:
    tenants = LedgerTenants(10)
    for hits in (0, 4, 2):
        tenants.add(look("a", [1, 2, 3, 4], hits))
    tenants.add(look("b", [1, 2, 3, 4], 4))  # what another stored
    a, b = tenants.sums["a"], tenants.sums["b"]
    assert (a.lookup, a.hits, a.attainable) == (3 * 67, 6 * 16, 8 * 16)
    assert (b.hits, b.attainable) == (64, 64)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    tenants = LedgerTenants(10)
    whole = look("a", [1, 2], 0)
    for hits in (0, 1):
        tenants.add(SettledLookup(T, 2, hits, [1, 2], 16, 32, None, whole.party, "parent chain", 1.0))
    assert tenants.sums["a"].attainable == 16


def test_fairness_is_told_over_tenants_who_could_have_had_something() -> None:
    tenants = LedgerTenants(10)
    assert tenants.fairness(T) == {}
    chain = list(range(1, 101))
    for tenant, hits in (("full", 100), ("half", 50), ("none", 0)):
        tenants.add(look(tenant, chain, 0))
        tenants.add(look(tenant, chain, hits))
    tenants.add(look("small", [1], 0))
    found = tenants.fairness(T + 60)
    assert found["max_min"] == 0.0
    assert found["long_tail"] == pytest.approx(1 / 3)
    assert found["jain"] == pytest.approx(1.5**2 / (3 * 1.25))
    assert found["gini"] == pytest.approx(4 / 9)


def test_what_is_held_by_purpose_and_owner() -> None:
    table = Blocks(Room())
    table.store((1, 2, 3, 4), None, T, False)
    table.store((5, 6), None, T + 50, False)
    table.store((7,), None, T + 400, False)
    shared, old, new = table.ending(2), table.ending(4), table.ending(6)
    assert shared is not None and old is not None and new is not None
    shared.last, shared.uses, shared.tenant, shared.how = T + 390, 3, "", "told"
    new.tenant, new.how = "a", "learned"
    found = survey(table, [], 16, 1.0, T + 400)
    assert found.purposes == {"pinned": 16, "hot": 32, "cold": 64}
    assert found.known == {"shared": 32, "unknown": 48, "learned": 32}
    assert found.tenants == {"shared": 32, "": 48, "a": 32}
    assert survey(table, [], 16, None, T + 400).purposes == {"hot": 32, "cold": 80}


def test_what_only_a_lower_tier_has_is_offloaded() -> None:
    room = Room()
    gpu, host = Blocks(room), Blocks(room)
    gpu.store((1, 2), None, T, False)
    host.store((1, 2, 3), None, T, False)
    assert survey(gpu, [host], 16, None, T).purposes["offloaded"] == 16


def test_the_same_block_on_two_engines_is_one_too_many() -> None:
    room = Room()
    one, two, three = Blocks(room), Blocks(room), Blocks(room)
    for table, hashes in ((one, (1, 2, 3)), (two, (1, 2)), (three, (1, 9))):
        table.store(hashes, None, T, False)
    two.remove([2], EngineStep(T))
    assert duplicates([one, two, three]) == 2
