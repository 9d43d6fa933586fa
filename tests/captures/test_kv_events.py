"""Recorded KV events beside what the driver knows: every block of every prompt is there, and nothing is missing."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvitals.agent.ledger.event import BlockEventBatch, BlocksRemoved, BlocksStored, KvEventsRecord
from kvitals.agent.records import decode
from kvitals.series.recordings import CaptureReader

FOLDER = Path(__file__).parent / "ledger"
NAMES = ("healthy", "healthy_otlp", "thrash")


def recorded(name: str) -> tuple[list[KvEventsRecord], dict[str, Any]]:
    with CaptureReader.open(FOLDER / f"{name}.kvcap") as reader:
        records = [decode(one) for one in reader if one.sense == "kv_events"]
    kept = [one for one in records if isinstance(one, KvEventsRecord)]
    assert len(kept) == len(records)
    return kept, json.loads((FOLDER / f"{name}.truth.json").read_text())


def batches(records: list[KvEventsRecord]) -> list[BlockEventBatch]:
    return [batch for record in records for batch in record.batches]


@pytest.mark.parametrize("name", NAMES)
def test_every_message_came_in_order(name: str) -> None:
    records, truth = recorded(name)
    assert [batch.sequence for batch in batches(records)] == list(range(truth["last_sequence"] + 1))
    assert not any(record.lost or record.late or record.restarted or record.dropped for record in records)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_every_prompt_was_stored_behind_the_one_before(name: str) -> None:
    """So hashes are under the capture's key in prompts and events alike, and parents as well."""
    records, truth = recorded(name)
    before: dict[int, int | None] = {}
    for event in (event for batch in batches(records) for event in batch.events if isinstance(event, BlocksStored)):
        before |= dict(zip(event.hashes, (event.parent, *event.hashes), strict=False))
    for request in truth["requests"]:
        assert len(request["blocks"]) == request["prompt_tokens"] // truth["engine"]["block_tokens"]
        chain = [*request["blocks"], *request["decoded_blocks"]]
        assert before[chain[0]] is None
        assert all(before[block] == parent for parent, block in pairwise(chain))


@pytest.mark.parametrize("name", NAMES)
def test_the_first_to_store_a_block_is_told_where_requests_say_who_they_are(name: str) -> None:
    records, truth = recorded(name)
    sessions = {
        (event.tenant, event.session) for b in batches(records) for event in b.events if isinstance(event, BlocksStored)
    }
    known = {(request["tenant"], request["session"]) for request in truth["requests"]}
    assert sessions <= known if name != "healthy_otlp" else sessions == {("", "")}


def test_a_pool_holds_no_more_than_it_has() -> None:
    records, truth = recorded("thrash")
    live = most = 0
    for event in (event for batch in batches(records) for event in batch.events):
        live += (
            len(event.hashes)
            if isinstance(event, BlocksStored)
            else -len(event.hashes)
            if isinstance(event, BlocksRemoved)
            else 0
        )
        most = max(most, live)
    assert 0.9 * truth["engine"]["blocks"] < most <= truth["engine"]["blocks"]
