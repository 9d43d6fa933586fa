"""Recordings of a real vLLM's KV events, made by tests/lab/ledger: what the ledger tells beside what was asked and what
the engine answered and counted."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvitals.agent.ledger.blame import Blame
from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.event import GPU, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.node import Node
from kvitals.agent.records import decode
from kvitals.app.lookups import recorded_lookups
from kvitals.config import Config
from kvitals.series.recordings import CaptureReader

FOLDER = Path(__file__).parent / "ledger"
NAMES = ["healthy", "thrash"]
SPANS = "healthy_otlp"  # neither sessions nor tenants, and no cached tokens: only the engine's spans

Asked = dict[str, Any]


@cache
def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.truth.json").read_text())
    return found


def asked(name: str) -> dict[str, Asked]:
    return {request["id"]: request for request in truth(name)["requests"]}


@cache
def replayed(name: str, *, records: bool, sessions: bool) -> tuple[EngineLedger, list[SettledLookup]]:
    """A ledger of a recording. records: of requests reach it; sessions: and events tell theirs."""
    looks: list[SettledLookup] = []
    ledger = EngineLedger(Room(), Owners(), Style.BLOCKS, looks.append)
    node = Node(Config())
    with CaptureReader.open(FOLDER / f"{name}.kvcap") as reader:
        node.expect(reader.header.meta)
        if records:
            node.requests.send = ledger.request
        for captured in reader:
            record = decode(captured)
            node.ingest_recorded(captured)
            if isinstance(record, KvEventsRecord):
                ledger.feed(record if sessions else stripped(record))
            ledger.advance(captured.t, records)
    node.requests.flush()
    ledger.flush()
    return ledger, looks


def stripped(record: KvEventsRecord) -> KvEventsRecord:
    """Without tenants and sessions."""
    batches = tuple(
        msgspec.structs.replace(
            batch,
            events=tuple(
                msgspec.structs.replace(event, tenant="", session="") if isinstance(event, BlocksStored) else event
                for event in batch.events
            ),
        )
        for batch in record.batches
    )
    return msgspec.structs.replace(record, batches=batches)


@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "no_sessions"])
@pytest.mark.parametrize("name", NAMES)
def test_each_request_found_what_the_engine_said(name: str, sessions: bool) -> None:
    ledger, looks = replayed(name, records=True, sessions=sessions)
    requests, tokens = asked(name), ledger.block_tokens
    by = {look.request: look for look in looks}
    right = sum(request["cached_tokens"] == by[key].hits * tokens for key, request in requests.items() if key in by)
    assert right / len(requests) >= 0.99
    assert ledger.unobserved == {}
    counters = truth(name)["counters"]
    assert sum(look.hits for look in looks) * tokens == counters["hit_tokens"][1] - counters["hit_tokens"][0]


@pytest.mark.parametrize(("sessions", "least"), [(True, 1.0), (False, 0.99)], ids=["sessions", "no_sessions"])
@pytest.mark.parametrize("name", NAMES)
def test_each_look_up_has_the_blocks_of_its_request_and_its_owner(name: str, sessions: bool, least: float) -> None:
    _, looks = replayed(name, records=True, sessions=sessions)
    requests = asked(name)
    right = sum(
        (look.chain, look.party.tenant, look.party.session)
        == (requests[look.request]["blocks"], requests[look.request]["tenant"], requests[look.request]["session"])
        for look in looks
    )
    assert right / len(requests) >= least
    assert {look.party.how for look in looks} == {"told" if sessions else "learned"}


@pytest.mark.parametrize("name", NAMES)
def test_without_records_and_sessions_the_look_ups_are_the_same(name: str) -> None:
    ledger, looks = replayed(name, records=False, sessions=False)
    tokens = ledger.block_tokens
    there = Counter((tuple(look.chain or ())[: look.hits + 1], look.hits) for look in looks)
    were = Counter(
        (tuple(one["blocks"][: one["cached_tokens"] // tokens + 1]), one["cached_tokens"] // tokens)
        for one in asked(name).values()
    )
    assert (there & were).total() / were.total() >= 0.99


def test_spans_alone_tell_which_look_up_is_whose() -> None:
    _, looks = replayed(SPANS, records=True, sessions=True)
    requests, by = asked(SPANS), {look.request: look for look in looks}
    right = sum(by[key].chain == request["blocks"] for key, request in requests.items() if key in by)
    assert right / len(requests) >= 0.99


def test_a_cache_with_room_wants_nothing_again() -> None:
    ledger, _ = replayed("healthy", records=True, sessions=True)
    assert ledger.tallies[GPU].refaulted == 0
    assert sum(ledger.tallies[GPU].removed.values()) == 0


def test_what_the_burst_cost_is_charged_to_who_burst() -> None:
    _, looks = replayed("thrash", records=True, sessions=True)
    phases, requests = truth("thrash")["phases"], truth("thrash")["requests"]
    began = requests[phases[1]["first"]]["sent"]
    (heavy,) = {one["tenant"] for one in requests} - {one["tenant"] for one in requests[: phases[1]["first"]]}
    calm, burst = Blame(), Blame()
    for look in looks:
        into = calm if look.at < began else burst
        into.wanted(look.party, look.refaults, look.tokens, look.at)
    calm.settle(float("inf"))
    burst.settle(float("inf"))
    assert calm.total == 0
    assert burst.total > 20_000
    lost = {pair: tokens for pair, tokens in burst.cells.items() if pair[0] != heavy}
    assert sum(tokens for pair, tokens in lost.items() if pair[1] == heavy) / sum(lost.values()) >= 0.9


def test_a_replay_gives_look_ups_to_play_through_and_says_how_many_of_all() -> None:
    accesses = recorded_lookups(FOLDER / "thrash.kvcap").accesses
    assert len(accesses) == len(asked("thrash"))
    assert accesses.observed == pytest.approx(1.0, abs=0.01)
    assert set(accesses.tenants) == {request["tenant"] for request in asked("thrash").values()}
    chains = {tuple(request["blocks"]) for request in asked("thrash").values()}
    unsigned = accesses.block.astype("uint64").tolist()
    starts = accesses.start.tolist()
    assert {tuple(unsigned[a:b]) for a, b in pairwise(starts)} == chains
