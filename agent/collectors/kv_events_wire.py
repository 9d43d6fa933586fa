"""KV events as vLLM, SGLang and Dynamo publish them, and what of them may be kept.

    wire = Wire(tenants)
    for piece in wire.read(messages):      # [(sequence, payload), ...] of one publisher, in order
        piece.batches                      # redacted: no token ids, hashes under this installation's key
        piece.hole                         # a message that could not be read stood before them

A payload is msgpack: `[time, events, rank]`. vLLM before 0.24 and SGLang before 0.5.20 write an event as an array
with the fields in their order, newer ones as a map; fields were added at the end and have defaults. What is not
named here, the token ids first of all, is skipped by the decoder and never becomes an object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np

from kvitals.agent.collectors.siphash import KEY_BYTES, Words, siphash
from kvitals.agent.ledger.event import (
    DISK,
    GPU,
    HOST,
    REMOTE,
    BlockEventBatch,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
)
from kvitals.agent.requests.tenant_names import normal
from kvitals.series.undecodable import UNDECODABLE

MAX_EVENTS = 1 << 17
"""In one message. A step that evicts a prompt of two million tokens has one event for each of its blocks."""

MAX_HASHES = 1 << 17
"""In one message, of all its events, and about as many as are put under our key at once: 100 bytes each meanwhile."""

MAX_FIELDS = 64  # of one event
MAX_TOKENS = 1 << 20  # in one block
MAX_GROUP = 1 << 16
MAX_TEXT = 200
MAX_EXTRA_BYTES = 1 << 16  # of the keys of one event's blocks that are looked into
MAX_RANK = 1 << 16
MAX_TIME = 1e11  # seconds since the epoch
MAX_MEMO_TEXT = 1024  # of a session and a salt that are remembered
MEMO = 4096
"""Sessions, salts and adapters whose pseudonyms are remembered, since each comes again with every block."""

MEDIA = {
    "gpu": GPU,
    "cpu": HOST,
    "cpu_pinned": HOST,
    "localcpubackend": HOST,
    "storage": DISK,
    "disk": DISK,
    "localdiskbackend": DISK,
}
"""Engines' names of media, in lower case. Any other, such as EXTERNAL, is another program's: remote."""

_U64 = (1 << 64) - 1
_FROM_TAP = re.compile(r"([tk]-[a-z2-7]{10})?/(s-[a-z2-7]{10})?")
_SESSION = re.compile(r"s-[a-z2-7]{10}")

_NIL = msgspec.Raw(b"\xc0")

Hash = int | bytes


class TenantPseudonyms(Protocol):
    """Who stands behind events, as pseudonyms. `kvitals.agent.requests.tenant_names.TenantNames` is one."""

    def pseudonym(self, raw: str) -> str:
        """What stands for a tenant."""

    def session(self, raw: str) -> str:
        """What stands for a session."""

    def subkey(self, use: bytes) -> bytes:
        """A key of this installation for one use."""


class _StoredMap(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = _NIL
    group_idx: int | None = None
    locality: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None  # SGLang's


class _RemovedMap(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: msgspec.Raw  # stands in the way; a view that goes with the event
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = _NIL
    group_idx: int | None = None
    locality: ClassVar[str | None] = None  # no version wrote these as arrays
    session_id: ClassVar[str | None] = None
    cache_salt: ClassVar[str | None] = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: ClassVar[str | None] = None


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    pass


_Stored = _StoredMap | _StoredArray
_Removed = _RemovedMap | _RemovedArray
_Some = _Stored | _Removed | _ClearedMap | _ClearedArray


class _Maps(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredMap | _RemovedMap | _ClearedMap]
    rank: int | None = None


class _Arrays(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: int | None = None


class _Outline(msgspec.Struct, array_like=True, gc=False):
    ts: msgspec.Raw
    events: msgspec.Raw


class _Each(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    rank: int | None = None


_maps = msgspec.msgpack.Decoder(_Maps)
_arrays = msgspec.msgpack.Decoder(_Arrays)
_outline = msgspec.msgpack.Decoder(_Outline)
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_each = msgspec.msgpack.Decoder(_Each)
_one_map = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_one_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_anything = msgspec.msgpack.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_text = msgspec.msgpack.Decoder(str)
_extra = msgspec.msgpack.Decoder(list[list[Any] | None] | None)

KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
"""Kinds of events that are known. An engine may have more one day."""

_STORED, _REMOVED, _CLEARED = (_StoredMap, _StoredArray), (_RemovedMap, _RemovedArray), BlocksCleared()
_CLEARED_KINDS = (_ClearedMap, _ClearedArray)


class KvEventFormatError(Exception):
    """A message that cannot be read."""

    reason = "malformed"


class OverLimitError(KvEventFormatError):
    """A message with more events, hashes or fields than one may have."""

    reason = "over_limit"


@dataclass
class UnbrokenBatches:
    """Batches that follow each other without a hole."""

    hole: int = 0  # messages before the first batch that could not be read
    batches: list[BlockEventBatch] = field(default_factory=list)


class _Place(msgspec.Struct, gc=False):
    """An event, and where its hashes are among those of all messages. A store's parent is behind them."""

    event: _Some
    start: int
    end: int


@dataclass(slots=True)
class _Draft:
    """A message whose hashes are not under our key yet. They lie among those of all messages."""

    sequence: int
    at: float
    rank: str
    events: list[_Place]


class Wire:
    """Reads messages. For one thread at a time."""

    def __init__(self, names: TenantPseudonyms) -> None:
        self._names = names
        self._key = names.subkey(b"kv-events")[:KEY_BYTES]
        self._owners: dict[tuple[str, str], tuple[str, str]] = {}  # session and salt -> tenant and session
        self._prefers_arrays = False  # the last message's events were arrays
        self.dropped: dict[str, int] = {}
        """Reason -> messages, or events of a kind that is not known, that gave nothing. Whoever reads it empties it."""

    def read(self, messages: Sequence[tuple[int, bytes]]) -> list[UnbrokenBatches]:
        """The batches of messages that follow each other. What can not be read leaves a hole; `dropped` says why."""
        flat: list[Hash] = []
        drafts: list[_Draft | None] = []
        pieces = [UnbrokenBatches()]
        for sequence, payload in messages:
            try:
                drafts.append(_draft(sequence, self._decode(payload), flat))
            except KvEventFormatError as error:
                self._drop(error.reason)
                drafts.append(None)
            if len(flat) >= MAX_HASHES:
                self._finish(drafts, flat, pieces)
                flat, drafts = [], []
        self._finish(drafts, flat, pieces)
        return pieces

    def _finish(self, drafts: list[_Draft | None], flat: list[Hash], pieces: list[UnbrokenBatches]) -> None:
        """Put hashes under our key and add the drafts to the pieces."""
        hashes = siphash(_numbers(flat), self._key).tolist()
        for draft in drafts:
            if draft is not None:
                events = tuple([self._event(one, hashes) for one in draft.events])
                pieces[-1].batches.append(BlockEventBatch(draft.sequence, draft.at, events, draft.rank))
                continue
            if pieces[-1].batches:
                pieces.append(UnbrokenBatches())
            pieces[-1].hole += 1

    def _decode(self, payload: bytes) -> _Maps | _Arrays:
        """A message's events. Raises MalformedError."""
        if len(payload) > MAX_HASHES:  # each event and each hash takes a byte or more
            _check(payload)
        order = ("arrays", "maps") if self._prefers_arrays else ("maps", "arrays")
        for shape in order:
            try:
                batch: _Maps | _Arrays = _arrays.decode(payload) if shape == "arrays" else _maps.decode(payload)
            except UNDECODABLE:
                continue
            self._prefers_arrays = shape == "arrays"
            return batch
        return self._one_by_one(payload)

    def _one_by_one(self, payload: bytes) -> _Maps:
        """Likewise, where some events are of a kind that is not known; those are left out. Raises MalformedError."""
        events: list[Any] = []
        try:
            batch = _each.decode(payload)
            for raw in batch.events:
                found = _anything.decode(raw)
                kind = _text.decode(found["type"] if isinstance(found, dict) else found[0])
                if kind in KINDS:
                    events.append((_one_map if isinstance(found, dict) else _one_array).decode(raw))
                else:
                    self._drop("unknown_event")
        except (*UNDECODABLE, LookupError) as error:
            raise KvEventFormatError from error
        return _Maps(batch.ts, events, batch.rank)

    def _event(self, place: _Place, hashes: list[int]) -> Event:
        event, start, end = place.event, place.start, place.end
        if isinstance(event, _REMOVED):
            return BlocksRemoved(tuple(hashes[start:end]), _medium(event), event.group_idx or 0)
        if not isinstance(event, _STORED):
            return _CLEARED
        tenant, session = self._owner(event)
        return BlocksStored(
            tuple(hashes[start:end]),
            None if event.parent_block_hash is None else hashes[end],
            event.block_size,
            _medium(event),
            tenant,
            session,
            _adapter(event),
            event.group_idx or 0,
        )

    def _owner(self, event: _Stored) -> tuple[str, str]:
        """Tenant and session, as pseudonyms."""
        session, salt = event.session_id or "", event.cache_salt or ""
        if event.parent_block_hash is None and not salt:
            salt = _salt(event.extra_keys, event.lora_name)
        if not session and not salt:
            return "", ""
        found = self._owners.get((session, salt))
        if found is None:
            found = self._named(session, salt)
            if len(self._owners) >= MEMO:
                self._owners.clear()
            if len(session) + len(salt) <= MAX_MEMO_TEXT:
                self._owners[session, salt] = found
        return found

    def _named(self, session: str, salt: str) -> tuple[str, str]:
        """What stands for a session and a salt. What the tap wrote is taken apart: TENANT/SESSION."""
        tenant = self._names.pseudonym(salt)
        told, slash, own = session.rpartition("/")
        if slash and _FROM_TAP.fullmatch(session):
            return told or tenant, own
        if slash and _SESSION.fullmatch(own) and self._names.pseudonym(told) == told:  # names are plain here
            return told, own
        return tenant, self._names.session(session)

    def _drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


def _check(payload: bytes) -> None:
    """Refuse a large message with too many parts before an object is made for each of them. Raises MalformedError."""
    try:
        events = _outline.decode(payload).events
        if _length(events) > MAX_EVENTS:
            raise OverLimitError
        hashes = 0
        for raw in _raws.decode(events):
            if _length(raw) > MAX_FIELDS:
                raise OverLimitError
            event = _anything.decode(raw)
            found = event.get("block_hashes") if isinstance(event, dict) else event[1] if len(event) > 1 else None
            hashes += _length(found) if found is not None else 0
            if hashes > MAX_HASHES:
                raise OverLimitError
    except UNDECODABLE as error:
        raise KvEventFormatError from error


def _length(raw: msgspec.Raw) -> int:
    """Elements of a msgpack array, or pairs of a map, by its first bytes; 0 of anything else."""
    head = bytes(memoryview(raw)[:5])
    kind = head[0]
    if 0x80 <= kind <= 0x9F:
        return kind & 0x0F
    if kind in (0xDC, 0xDE):
        return int.from_bytes(head[1:3], "big")
    return int.from_bytes(head[1:5], "big") if kind in (0xDD, 0xDF) else 0


def _draft(sequence: int, batch: _Maps | _Arrays, flat: list[Hash]) -> _Draft:
    """A message's events, with their hashes put behind those that there are. Raises MalformedError."""
    if not 0.0 <= batch.ts < MAX_TIME or not 0 <= (batch.rank or 0) < MAX_RANK:
        raise KvEventFormatError
    events: list[_Place] = []
    last: _Removed | None = None
    for event in batch.events:
        start = len(flat)
        if isinstance(event, _REMOVED):
            if not event.block_hashes:
                continue
            flat += event.block_hashes
            if last is not None and event.medium == last.medium and event.group_idx == last.group_idx:
                events[-1].end = len(flat)  # they come one for each block
            else:
                last = event
                events.append(_Place(event, start, len(flat)))
            continue
        last = None
        if isinstance(event, _STORED):
            if not event.block_hashes:
                continue
            if not (0 <= event.block_size <= MAX_TOKENS and 0 <= (event.group_idx or 0) < MAX_GROUP):
                raise KvEventFormatError
            flat += event.block_hashes
            events.append(_Place(event, start, len(flat)))
            if event.parent_block_hash is not None:
                flat.append(event.parent_block_hash)
        elif not (events and isinstance(events[-1].event, _CLEARED_KINDS)):
            events.append(_Place(event, start, start))
    return _Draft(sequence, batch.ts, "" if batch.rank is None else str(batch.rank), events)


def _numbers(flat: list[Hash]) -> Words:
    """Hashes as vLLM makes them numbers: the lowest 64 bits. SGLang's are signed, and the same bits."""
    try:
        return np.array(flat, dtype=np.uint64)
    except (OverflowError, TypeError, ValueError):
        plain = (int.from_bytes(one[-8:], "big") if isinstance(one, bytes) else one & _U64 for one in flat)
        return np.fromiter(plain, dtype=np.uint64, count=len(flat))


def _medium(event: _Stored | _Removed) -> str:
    told = event.medium
    if told == "GPU" or told is None:
        return GPU
    if event.locality == "REMOTE":
        return REMOTE
    return MEDIA.get(told.lower(), REMOTE) if len(told) <= MAX_TEXT else REMOTE


def _adapter(event: _Stored) -> str:
    """The LoRA adapter, by its number where an engine tells no name."""
    if event.lora_name:
        return normal(event.lora_name[:MAX_TEXT])
    return "" if event.lora_id is None else str(event.lora_id)


def _salt(keys: msgspec.Raw, lora_name: str | None) -> str:
    """The cache salt among the keys of a prefix's first block. They are told without saying which is which: one that
    is text and not the adapter's name is the salt. Images are pairs, and digests of embeddings are bytes."""
    if len(keys) > MAX_EXTRA_BYTES:
        return ""
    try:
        blocks = _extra.decode(keys) or []
    except UNDECODABLE:
        return ""
    texts = [one for one in (blocks[0] or ()) if isinstance(one, str)] if blocks else []
    if texts and texts[0] == lora_name:
        texts = texts[1:]
    return texts[0] if texts else ""
