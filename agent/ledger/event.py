"""What engines say of their KV cache's blocks, in one type whichever engine and version said it.

The sense of KV events yields these, captures keep them, the ledger is fed with them. They are redacted where they are
made: no token ids, block hashes under this installation's key, tenants and sessions as pseudonyms. Times are seconds
since the epoch, by the engine's clock inside a batch and by ours outside.
"""

from __future__ import annotations

import msgspec

GPU, HOST, DISK, REMOTE = "gpu", "host", "disk", "remote"
"""Where blocks lie: in the device's memory, the host's, on a disk, or with another program."""


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """Blocks that a medium now holds, in the order of the prefix. A reused prefix that is reported looks the same."""

    hashes: tuple[int, ...]
    parent: int | None  # the block before the first; None at the start of a prefix
    tokens: int  # of each block
    medium: str = GPU
    tenant: str = ""  # from the session's or salt's pseudonym; empty: not told
    session: str = ""
    lora: str = ""
    group: int = 0  # of the KV cache, in models with several kinds of attention


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """One copy of each of these blocks left a medium. Why is not told."""

    hashes: tuple[int, ...]
    medium: str = GPU
    group: int = 0


class BlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    """The cache was reset: no block is there any more, on any medium."""


Event = BlocksStored | BlocksRemoved | BlocksCleared


class BlockEventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The events of one step of one engine rank."""

    sequence: int  # of this publisher, from 0, without gaps
    at: float  # by the engine's clock
    events: tuple[Event, ...]
    rank: str = ""  # data-parallel rank; empty: not told


class KvEventsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="kv_events"):
    """What came from one publisher since the last look, in order, and how listening to it fares.

    A restart or a hole is between two records, never inside one.
    """

    t: float
    target: str  # the target's key
    rank: str = ""  # the publisher's data-parallel rank; empty where the engine has one
    batches: tuple[BlockEventBatch, ...] = ()
    lost: int = 0  # batches missing before the first one here that no replay brought; -1: unknown how many
    restarted: bool = False  # the publisher began anew before the first batch: it holds nothing from before
    late: bool = False  # it published before we listened, and what it published then was not to be had
    replayed: int = 0  # of the batches: how many came because they were asked for
    dropped: dict[str, int] = {}  # reason -> messages that were not taken
    state: str = "ok"  # ok, partial, unknown or failed
    reason: str = "ok"  # why it is not ok: a key of the sense's own reasons
    message: str = ""  # the same for a person, with what to do
    seconds: float = 0.0  # of processor time that reading what came took
