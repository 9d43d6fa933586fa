"""Curves of engines, of all of them and of tenants, from look-ups that are known in the order of their ends."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.node_ledgers import CURVE_TENANTS, MAX_ENGINES
from kvitals.agent.ledger.parties import Party
from kvitals.agent.ledger.report import _curve
from kvitals.agent.ledger.reuse_curves import MAX_FEED, POOLED, Reuse, signed_hashes
from kvitals.kvcache.accesses import Builder
from kvitals.kvcache.reuse import Curve, ReuseCurve

T = 1_790_000_000.0
POOL = 200
MOST = MAX_ENGINES + 1 + CURVE_TENANTS


def look(at: float, chain: list[int], tenant: str = "a") -> SettledLookup:
    return SettledLookup(at, len(chain), 0, chain, 16, 16 * len(chain), None, Party(tenant), "parent chain", 1.0)


def looks(n: int, seed: int = 1) -> list[SettledLookup]:
    chance = random.Random(seed)
    prompts = [[chance.getrandbits(64) for _ in range(20)] for _ in range(60)]
    return [look(T + i, prompts[min(int(chance.expovariate(0.05)), 59)], "ab"[i % 2]) for i in range(n)]


def test_the_curve_does_not_depend_on_the_order_in_which_requests_end() -> None:
    some = looks(400)
    straight = ReuseCurve(8 * POOL, 8 * POOL + 1024, half_life=3600.0)
    builder = Builder(16, 1_000_000)
    for one in some:
        builder.add(one.at, one.prompt, signed_hashes(one.chain or []) or (), "inferred")
    straight.feed(builder.accesses())
    reuse = Reuse(MOST)
    chance = random.Random(5)
    for one in sorted(some, key=lambda one: one.at + chance.uniform(0, 30)):
        reuse.add(one, "e", "a")
        reuse.advance(one.at, 60.0, {"e": POOL}, ())
    reuse.flush({"e": POOL}, ())
    curve, expected = reuse.curve(("engine", "e")), straight.curve()
    assert curve is not None and expected is not None
    assert curve.token_hit_rate == pytest.approx(expected.token_hit_rate, abs=0.002)
    assert reuse.left_out == 0


def test_pool_and_tenants_have_curves_of_their_own() -> None:
    reuse = Reuse(MOST)
    for i, one in enumerate(looks(600)):
        reuse.add(one, f"e{i % 2}", one.party.tenant)
    reuse.flush({"e0": POOL, "e1": POOL}, ["a"])
    assert set(reuse.names) == {("engine", "e0"), ("engine", "e1"), POOLED, ("tenant", "a")}
    assert all(reuse.curve(name) is not None for name in reuse.names)
    assert reuse.curve(("tenant", "b")) is None


def test_too_little_makes_no_curve_and_an_engine_of_unknown_size_none_either() -> None:
    reuse = Reuse(MOST)
    reuse.add(look(T, [1, 2]), "e", "a")
    reuse.flush({"e": POOL}, ())
    assert reuse.curve(("engine", "e")) is None
    other = Reuse(MOST)
    for one in looks(400):
        other.add(one, "e", "a")
    other.flush({}, ())
    assert other.names == []


def test_what_comes_too_fast_or_too_late_is_left_out_and_counted() -> None:
    reuse = Reuse(MOST)
    chain = list(range(1, 1001))
    for i in range(MAX_FEED // 1000 + 5):
        reuse.add(look(T + i, chain), "e", "a")
    reuse.advance(T + 1000, 10.0, {"e": POOL}, ())
    assert reuse.left_out == 5000
    reuse.add(look(T, [1, 2, 3]), "e", "a")
    reuse.advance(T + 2000, 10.0, {"e": POOL}, ())
    assert reuse.left_out == 5003


def test_curves_of_whoever_is_gone_make_room() -> None:
    reuse = Reuse(8)
    for i in range(16):
        reuse.add(look(T + i, [i, i + 1]), "e", f"t-{i}")
        reuse.flush({"e": POOL}, [f"t-{i}"])
    assert len(reuse.names) <= 8
    assert ("tenant", "t-15") in reuse.names and ("engine", "e") in reuse.names
    reuse.gone(("engine", "e"))
    assert ("engine", "e") not in reuse.names


def test_every_engine_that_has_a_ledger_has_a_curve() -> None:
    """And the node and its first tenants, though tenants of earlier days had all the places."""
    reuse = Reuse(MOST)
    for i in range(MOST):
        reuse.add(look(T + i, [i, i + 1]), "e-0", f"old-{i}")
        reuse.flush({"e-0": POOL}, [f"old-{i}"])
    pools = {f"e-{n}": POOL for n in range(MAX_ENGINES)}
    tenants = [f"t-{n}" for n in range(CURVE_TENANTS)]
    for i, engine in enumerate(pools):
        reuse.add(look(T + MOST + i, [i, i + 1]), engine, tenants[i % CURVE_TENANTS])
    reuse.flush(pools, tenants)
    assert set(reuse.names) == {*(("engine", one) for one in pools), POOLED, *(("tenant", one) for one in tenants)}
    assert reuse.left_out == 0


def test_blocks_of_another_size_are_left_out_and_counted() -> None:
    reuse = Reuse(MOST)
    reuse.add(look(T, [1, 2]), "e", "a")
    reuse.add(replace(look(T, [1, 2, 3]), tokens=32), "f", "a")
    assert (reuse.other_size, reuse.left_out) == (3, 0)


def test_hashes_of_more_than_64_bits_are_none() -> None:
    assert signed_hashes([2**64 - 1, 1]) is not None
    assert signed_hashes([2**64]) is None
    assert signed_hashes([-1]) is None


def test_a_curve_is_read_at_the_size_itself() -> None:
    """Today's size is a point of the report's curve, and its rate lies between the capacities beside it."""
    sizes, rates = np.arange(1, 401), np.linspace(0.0, 0.8, 400)
    curve = Curve(sizes[::100], rates[::100], np.zeros(4), 0.8, 5000.0, 1.0)
    there = curve.at(192)
    assert there is not None and there[0] == pytest.approx(rates[191])
    assert curve.at(0.5) is None
    told = _curve(curve, 192)
    assert told is not None
    assert told["token_hit_rate"][told["capacity_blocks"].index(192)] == pytest.approx(rates[191], abs=1e-5)
    assert {96, 192} <= set(told["capacity_blocks"])
