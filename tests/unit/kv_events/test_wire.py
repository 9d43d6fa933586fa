"""What publishers send, and what of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from publishers import REMOVE, SGLANG, STORE, VLLM, payload

from kvitals.agent.collectors.kv_events_wire import MEMO, Wire
from kvitals.agent.collectors.siphash import siphash
from kvitals.agent.ledger.event import (
    DISK,
    GPU,
    HOST,
    REMOTE,
    BlockEventBatch,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
)
from kvitals.agent.requests.tenants import TenantNames
from kvitals.config import TenantsTable

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kv_events"
SECRET = b"k" * 32
NEWEST = VLLM["0.32"]
U64 = (1 << 64) - 1


def names(**table: Any) -> TenantNames:
    return TenantNames(TenantsTable(**table), SECRET)


def keyed(*hashes: int) -> tuple[int, ...]:
    key = names().subkey(b"kv-events")[:16]
    return tuple(siphash(np.array([one & U64 for one in hashes], np.uint64), key).tolist())


def read(*payloads: bytes, wire: Wire | None = None) -> list[BlockEventBatch]:
    [piece] = (wire or Wire(names())).read(list(enumerate(payloads)))
    assert piece.hole == 0
    return piece.batches


def one(values: dict[str, Any], kind: Any = NEWEST, **table: Any) -> BlocksStored:
    [batch] = read(payload(kind, [("BlockStored", {**STORE, **values})]), wire=Wire(names(**table)))
    [event] = batch.events
    assert isinstance(event, BlocksStored)
    return event


@pytest.mark.parametrize("kind", [*VLLM.values(), *SGLANG.values()], ids=[*VLLM, *SGLANG])
def test_every_version_says_the_same(kind: Any) -> None:
    events = [("BlockStored", STORE), ("BlockRemoved", REMOVE), ("AllBlocksCleared", {})]
    [batch] = read(payload(kind, events, rank=3))
    assert batch == BlockEventBatch(
        0,
        1000.0,
        (BlocksStored(keyed(11, 12), keyed(10)[0], 32), BlocksRemoved(keyed(11)), BlocksCleared()),
        "3" if kind[1] else "",
    )


def recorded(name: str) -> list[tuple[int, bytes]]:
    rows = [line.split("\t") for line in (FIXTURES / f"{name}.hex").read_text().splitlines()]
    return [(int(sequence), bytes.fromhex(text)) for sequence, text in rows]


@pytest.mark.parametrize("name", ["vllm-0.32", "sglang-0.5.23", "dynamo-1.6.1-mocker"])
def test_real_messages(name: str) -> None:
    """Blocks, parents and sizes are those that a plain reading gives."""
    messages = recorded(name)
    wire = Wire(names())
    batches = [batch for piece in wire.read(messages) for batch in piece.batches]
    assert wire.dropped == {}
    assert [batch.sequence for batch in batches] == [sequence for sequence, _ in messages]
    for batch, (_, text) in zip(batches, messages, strict=True):
        at, events, *rank = msgspec.msgpack.decode(text)
        assert (batch.at, batch.rank) == (at, str(rank[0]))
        plain = [("r", h) for e in events if e["type"] == "BlockRemoved" for h in e["block_hashes"]]
        plain += [("s", h) for e in events if e["type"] == "BlockStored" for h in e["block_hashes"]]
        removed = [h for e in batch.events if isinstance(e, BlocksRemoved) for h in e.hashes]
        stored = [e for e in batch.events if isinstance(e, BlocksStored)]
        own = [*removed, *(h for e in stored for h in e.hashes)]
        assert own == list(keyed(*(h for _, h in plain)))
        parents = [e.get("parent_block_hash") for e in events if e["type"] == "BlockStored"]
        assert [e.parent for e in stored] == [None if p is None else keyed(p)[0] for p in parents]
        assert {e.medium for e in batch.events if not isinstance(e, BlocksCleared)} == {GPU}


def test_no_token_no_name_and_no_hash_is_in_what_is_kept() -> None:
    messages = recorded("vllm-0.32")
    kept = msgspec.msgpack.encode([batch for piece in Wire(names()).read(messages) for batch in piece.batches])
    assert b"northwind" not in kept and b"acme" not in kept
    for _, text in messages:
        for event in msgspec.msgpack.decode(text)[1]:
            for block in event["block_hashes"]:
                assert msgspec.msgpack.encode(block) not in kept
            tokens = event.get("token_ids", [])
            assert not tokens or msgspec.msgpack.encode(tokens)[3:] not in kept


def test_alike_removals_are_one_event_and_others_are_not() -> None:
    """vLLM tells each block by itself. What stands between them keeps its place."""
    gone = [{**REMOVE, "block_hashes": [block]} for block in (1, 2, 3, 4, 5)]
    gone[2]["medium"] = gone[3]["medium"] = "CPU"
    events: list[tuple[str, Any]] = [("BlockRemoved", event) for event in gone]
    events.insert(2, ("BlockStored", STORE))
    [batch] = read(payload(NEWEST, events))
    assert batch.events == (
        BlocksRemoved(keyed(1, 2)),
        BlocksStored(keyed(11, 12), keyed(10)[0], 32),
        BlocksRemoved(keyed(3, 4), HOST),
        BlocksRemoved(keyed(5)),
    )


@pytest.mark.parametrize(
    ("told", "medium"),
    [
        ("GPU", GPU),
        (None, GPU),
        ("CPU", HOST),
        ("cpu", HOST),
        ("CPU_PINNED", HOST),
        ("STORAGE", DISK),
        ("DISK", DISK),
        ("EXTERNAL", REMOTE),
        ("REMOTE", REMOTE),
        ("mooncake", REMOTE),
        ("x" * 10_000, REMOTE),
    ],
)
def test_media(told: str | None, medium: str) -> None:
    assert one({"medium": told}).medium == medium


def test_what_another_machine_has_is_remote_by_its_locality() -> None:
    assert one({"medium": "STORAGE", "locality": "REMOTE"}).medium == REMOTE


def test_a_placeholder_of_the_offloading_tier() -> None:
    event = one({"token_ids": [], "block_size": 0, "parent_block_hash": None, "medium": "CPU"})
    assert (event.tokens, event.parent, event.medium) == (0, None, HOST)


def test_hashes_in_bytes_are_those_in_numbers() -> None:
    """vLLM's numbers are the lowest 64 bits of its 32 bytes."""
    whole = bytes(range(200, 232))
    number = int.from_bytes(whole, "big") & U64
    assert one({"block_hashes": [whole], "parent_block_hash": whole}) == one(
        {"block_hashes": [number], "parent_block_hash": number}
    )


def test_signed_hashes_are_the_same_bits() -> None:
    event = one({"block_hashes": [-1, 5], "parent_block_hash": -(1 << 63)}, SGLANG["0.5.23"])
    assert event.hashes == keyed(U64, 5) and event.parent == keyed(1 << 63)[0]


def test_hashes_are_under_the_installations_key() -> None:
    other = TenantNames(TenantsTable(), b"o" * 32)
    message = payload(NEWEST, [("BlockStored", STORE)])
    assert read(message) == read(message)
    assert read(message) != read(message, wire=Wire(other))


def test_what_the_tap_wrote_is_taken_apart() -> None:
    event = one({"session_id": "t-aaaaaaaaaa/s-bbbbbbbbbb"})
    assert (event.tenant, event.session) == ("t-aaaaaaaaaa", "s-bbbbbbbbbb")
    assert one({"session_id": "t-aaaaaaaaaa/"}).tenant == "t-aaaaaaaaaa"
    assert one({"session_id": "/s-bbbbbbbbbb"}).session == "s-bbbbbbbbbb"
    assert one({"session_id": "/"}).session == ""


def test_any_other_session_has_a_pseudonym() -> None:
    for raw in ("sess-42", "acme/s-bbbbbbbbbb", "t-aaaaaaaaaa/s-bbbbbbbbbb/x", "a/b", "t-aaaaaaaaaa/s-bbbbbbbbbb\n"):
        event = one({"session_id": raw})
        assert (event.tenant, event.session) == ("", names().session(raw))


def test_where_names_are_plain_the_taps_are_too() -> None:
    event = one({"session_id": "acme/s-bbbbbbbbbb"}, names="plain")
    assert (event.tenant, event.session) == ("acme", "s-bbbbbbbbbb")


def test_a_salt_is_a_tenant() -> None:
    head = {"parent_block_hash": None, "extra_keys": [["acme"], None]}
    assert one(head).tenant == names().pseudonym("acme")
    assert one({**head, "lora_name": "sql", "extra_keys": [["sql", "acme"], ["sql"]]}).tenant == names().pseudonym(
        "acme"
    )
    assert one({**head, "cache_salt": "acme"}, SGLANG["0.5.23"]).tenant == names().pseudonym("acme")


def test_what_is_no_salt_is_none() -> None:
    """The adapter's name, images and digests; and keys of blocks that do not begin a prefix."""
    head = {"parent_block_hash": None}
    for keys in ([["sql"], ["sql"]], [[["image-1", 0]], None], [[b"digest"], None], [], [None, None]):
        assert one({**head, "lora_name": "sql", "extra_keys": keys}).tenant == ""
    assert one({"extra_keys": [["acme"], None]}).tenant == ""


def test_the_taps_tenant_comes_before_a_salt() -> None:
    event = one({"parent_block_hash": None, "extra_keys": [["x"], None], "session_id": "t-aaaaaaaaaa/s-bbbbbbbbbb"})
    assert event.tenant == "t-aaaaaaaaaa"


def test_adapters_are_named_or_numbered() -> None:
    assert one({"lora_name": "sql", "lora_id": 3}).lora == "sql"
    assert one({"lora_name": None, "lora_id": 3}).lora == "3"
    assert len(one({"lora_name": "x" * 10_000}).lora) == 200


def test_more_sessions_than_are_remembered() -> None:
    wire = Wire(names())
    for number in range(2 * MEMO + 1):
        read(payload(NEWEST, [("BlockStored", {**STORE, "session_id": f"s{number}"})]), wire=wire)
    [batch] = read(payload(NEWEST, [("BlockStored", {**STORE, "session_id": "s0"})]), wire=wire)
    assert batch.events[0].session == names().session("s0")  # type: ignore[union-attr]


def test_a_kind_of_event_of_a_later_version_is_left_out() -> None:
    newer = msgspec.msgpack.encode([1.0, [{"type": "BlockMoved", "to": "CPU"}, {"type": "AllBlocksCleared"}], 0])
    wire = Wire(names())
    [batch] = read(newer, wire=wire)
    assert batch.events == (BlocksCleared(),)
    assert wire.dropped == {"unknown_event": 1}


GARBAGE = [
    b"",
    b"\xc1",
    b"\x93",
    b"\x91" * 100_000,
    b"not msgpack at all",
    msgspec.msgpack.encode({}),
    msgspec.msgpack.encode([1.0]),
    msgspec.msgpack.encode(["now", [], 0]),
    msgspec.msgpack.encode([float("nan"), [], 0]),
    msgspec.msgpack.encode([float("inf"), [], 0]),
    msgspec.msgpack.encode([-1.0, [], 0]),
    msgspec.msgpack.encode([1.0, [], -1]),
    msgspec.msgpack.encode([1.0, [], 1 << 40]),
    msgspec.msgpack.encode([1.0, [[]], 0]),
    msgspec.msgpack.encode([1.0, [{}], 0]),
    msgspec.msgpack.encode([1.0, [7], 0]),
    msgspec.msgpack.encode([1.0, [{"type": "BlockStored"}], 0]),
    msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": ["text"]}], 0]),
    payload(NEWEST, [("BlockStored", {**STORE, "block_size": -1})]),
    payload(NEWEST, [("BlockStored", {**STORE, "block_size": 1 << 60})]),
    payload(NEWEST, [("BlockStored", {**STORE, "group_idx": -1})]),
    b"\x93\xcb\x41\xda\xc0\x3d\x48\xbc\x33\x44\xdd\xff\xff\xff\xff",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_message_is_a_hole(garbage: bytes) -> None:
    wire = Wire(names())
    good = payload(NEWEST, [("BlockStored", STORE)])
    before, after = wire.read([(0, good), (1, garbage), (2, garbage), (3, good)])
    assert [b.sequence for b in before.batches] == [0] and before.hole == 0
    assert [b.sequence for b in after.batches] == [3] and after.hole == 2
    assert wire.dropped["malformed"] == 2


def test_deep_keys_are_no_salt() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    event = one({"parent_block_hash": None, "extra_keys": [deep, None]})
    assert event.tenant == ""


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    Wire(names()).read([(0, text)])


@given(st.data())
def test_a_message_that_was_changed_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from([text for _, text in recorded("vllm-0.32")])))
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    Wire(names()).read([(0, bytes(whole))])
