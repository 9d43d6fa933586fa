"""Recorded engines' block ledgers beside the truth of their driver, which knows every prompt's blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.ledger.accuracy import accuracy
from tests.lab.ledger.recorded import batches, recorded, replayed
from tests.lab.ledger.resident import scheduled

FOLDER = Path(__file__).parent / "ledger"
NAMES = ("healthy", "healthy_otlp", "thrash")


@pytest.mark.parametrize("name", NAMES)
def test_what_was_resident_is_what_the_engine_found(name: str) -> None:
    one = recorded(FOLDER / f"{name}.kvcap")
    (events,) = batches(one.capture).values()
    found = scheduled(events, one.requests, one.block_tokens)
    right = [
        row
        for row in one.requests
        if found[row["id"]].low * one.block_tokens == found[row["id"]].high * one.block_tokens == row["cached_tokens"]
    ]
    assert len(right) >= 0.99 * len(one.requests)


@pytest.mark.parametrize("name", NAMES)
def test_records_find_their_look_ups_as_time_goes_on(name: str) -> None:
    one = recorded(FOLDER / f"{name}.kvcap")
    (events,) = batches(one.capture).values()
    truth = scheduled(events, one.requests, one.block_tokens)
    found = accuracy(replayed(one.capture).looks, one.requests, truth, one.block_tokens, named=True)
    assert found.found == found.chains == found.requests and found.surplus == 0
    assert found.right == (found.requests if one.requests[0]["session"] and name != "healthy_otlp" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_look_ups_are_inferred_where_nobody_tells_of_requests(name: str) -> None:
    one = recorded(FOLDER / f"{name}.kvcap")
    (events,) = batches(one.capture).values()
    truth = scheduled(events, one.requests, one.block_tokens)
    looks = replayed(one.capture, with_requests=False).looks
    found = accuracy(looks, one.requests, truth, one.block_tokens, named=False)
    assert found.chains >= 0.99 * found.requests
    assert found.surplus <= 0.01 * found.requests
