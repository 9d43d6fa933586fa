"""Recorded engines' block ledgers beside the truth of their driver, which knows every prompt's blocks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.lab.ledger.accuracy import accuracy
from tests.lab.ledger.proofs import SLO, charged
from tests.lab.ledger.pushed import pushed
from tests.lab.ledger.recorded import Recorded, Replayed, batches, recorded, replayed
from tests.lab.ledger.resident import Scheduled, scheduled

FOLDER = Path(__file__).parent / "ledger"
NAMES = ("healthy", "healthy_otlp", "thrash")
WITHOUT_TENANTS = ("healthy_otlp",)


@cache
def known(name: str) -> tuple[Recorded, dict[str, Scheduled]]:
    one = recorded(FOLDER / f"{name}.kvcap")
    (events,) = batches(one.capture).values()
    return one, scheduled(events, one.requests, one.block_tokens)


@cache
def told(name: str) -> Replayed:
    return replayed(FOLDER / f"{name}.kvcap", slo=SLO)


@pytest.mark.parametrize("name", [*NAMES, "sglang"])
def test_what_was_resident_is_what_the_engine_found(name: str) -> None:
    one, truth = known(name)
    right = [
        row
        for row in one.requests
        if truth[row["id"]].low * one.block_tokens == truth[row["id"]].high * one.block_tokens == row["cached_tokens"]
    ]
    assert len(right) >= 0.99 * len(one.requests)
    assert sum(row["cached_tokens"] for row in one.requests) == one.gained("hit_tokens")


@pytest.mark.parametrize("name", NAMES)
def test_records_find_their_look_ups_as_time_goes_on(name: str) -> None:
    one, truth = known(name)
    found = accuracy(told(name).looks, one.requests, truth, one.block_tokens, named=True)
    assert found.found == found.chains == found.requests and found.surplus == found.wrong == 0
    assert found.right == (0 if name in WITHOUT_TENANTS else found.requests)


def test_records_of_sglang_find_their_look_ups() -> None:
    one, truth = known("sglang")
    found = accuracy(told("sglang").looks, one.requests, truth, one.block_tokens, named=True)
    assert found.chains >= 0.99 * found.requests
    assert found.right == found.found and found.surplus <= 0.01 * found.requests


@pytest.mark.parametrize(("name", "least"), [*((name, 0.99) for name in NAMES), ("sglang", 0.9)])
def test_look_ups_are_inferred_where_nobody_tells_of_requests(name: str, least: float) -> None:
    one, truth = known(name)
    looks = replayed(one.capture, with_requests=False, with_sessions=False).looks
    found = accuracy(looks, one.requests, truth, one.block_tokens, named=False)
    assert found.chains >= least * found.requests
    assert found.surplus <= 0.01 * found.requests
    assert found.right == found.wrong == 0


def test_the_heavy_tenant_is_blamed_as_the_order_of_events_has_it() -> None:
    one, _ = known("thrash")
    (events,) = batches(one.capture).values()
    calm = {row["tenant"] for row in one.requests[: one.truth["phases"][1]["first"]]}
    (heavy,) = {row["tenant"] for row in one.requests} - calm
    lost = [shares for victim, shares in pushed(events, one.requests).items() if victim != heavy]
    real = sum(shares.get(heavy, 0.0) for shares in lost) / sum(sum(shares.values()) for shares in lost)
    ledger = charged(told("thrash"), heavy)
    assert ledger[heavy] / sum(ledger.values()) == pytest.approx(real, abs=0.02)
    assert real > 0.9


def test_a_full_but_healthy_cache_has_no_cascade() -> None:
    again = told("full")
    assert again.ledger.cascades.report()["cascades"] == []
    (engine,) = again.ledger.engines.values()
    assert sum(engine.ledger.tallies["gpu"].removed.values()) > 500
