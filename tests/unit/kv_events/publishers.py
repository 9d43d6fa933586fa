"""Events as each version of vLLM and SGLang encodes them, by the fields in their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

STORED = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"]
REMOVED = ["block_hashes"]

VLLM: dict[str, tuple[bool, bool, list[str], list[str]]] = {}
"""Version -> whether events are arrays, whether a batch has its rank, fields of a store, fields of a removal."""
for _version, _arrays, _ranked, _more, _gone in (
    ("0.9.0", True, False, [], []),
    ("0.9.1", True, True, [], []),
    ("0.10.2", True, True, ["medium"], ["medium"]),
    ("0.14", True, True, ["lora_name"], []),
    ("0.17", True, True, ["extra_keys"], []),
    ("0.20", True, True, ["group_idx"], ["group_idx"]),
    ("0.22", True, True, ["kv_cache_spec_kind", "kv_cache_spec_sliding_window"], []),
    ("0.24", False, True, [], []),
    ("0.26", False, True, ["locality"], ["locality"]),
    ("0.29", False, True, ["ownership"], ["ownership"]),
    ("0.32", False, True, ["session_id"], []),
):
    STORED, REMOVED = [*STORED, *_more], [*REMOVED, *_gone]
    VLLM[_version] = _arrays, _ranked, STORED, REMOVED

_BASE = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"]
SGLANG: dict[str, tuple[bool, bool, list[str], list[str]]] = {
    "0.4.6": (True, False, _BASE, ["block_hashes"]),
    "0.4.7": (True, True, _BASE, ["block_hashes"]),
    "0.5.9": (True, True, [*_BASE, "medium"], ["block_hashes", "medium"]),
    "0.5.20": (False, True, [*_BASE, "medium", "cache_salt", "session_id"], ["block_hashes", "medium"]),
    "0.5.23": (False, True, [*_BASE, "medium", "cache_salt", "session_id", "lora_name"], ["block_hashes", "medium"]),
}

STORE: Mapping[str, Any] = {
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": list(range(64)),
    "block_size": 32,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": None,
    "locality": None,
    "ownership": None,
    "session_id": None,
    "cache_salt": None,
}
REMOVE: Mapping[str, Any] = {
    "block_hashes": [11],
    "medium": "GPU",
    "group_idx": 0,
    "locality": None,
    "ownership": None,
}


def payload(
    kind: tuple[bool, bool, list[str], list[str]],
    events: Sequence[tuple[str, Mapping[str, Any]]],
    ts: float = 1000.0,
    rank: int = 0,
) -> bytes:
    """A message of one version. Maps leave out what is None and has a default, as the engines do."""
    arrays, ranked, stored, removed = kind
    encoded: list[Any] = []
    for name, values in events:
        fields = {"BlockStored": stored, "BlockRemoved": removed}.get(name, [])
        if arrays:
            encoded.append([name, *(values[field] for field in fields)])
        else:
            kept = {field: values[field] for field in fields if values[field] is not None or field in _BASE}
            encoded.append({"type": name, **kept})
    return msgspec.msgpack.encode([ts, encoded, rank] if ranked else [ts, encoded])
