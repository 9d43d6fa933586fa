"""Look-ups as bytes, for whoever replays them elsewhere: msgpack, with the columns as little-endian numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from kvitals.kvcache.accesses import COLUMNS, Accesses
from kvitals.series.undecodable import UNDECODABLE

VERSION = 1
MAX_BYTES = 64_000_000
"""Of what is read. An agent keeps a million block references: some 20 MB with their rows."""


class PackedAccesses(msgspec.Struct, frozen=True, kw_only=True):
    """An `Accesses`. The observed share is None where nobody knows it."""

    version: int
    block_size: int
    engines: tuple[str, ...]
    tenants: tuple[str, ...]
    observed: float | None
    learned: str
    columns: dict[str, bytes]  # float64 for time, int64 for all others; with start and block


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PackedAccesses)


class PackedError(ValueError):
    """What came is no look-ups; the message says why."""


def pack(accesses: Accesses) -> bytes:
    """Look-ups as bytes."""
    columns = {name: _bytes(getattr(accesses, name)) for name in (*COLUMNS, "start", "block")}
    return _encoder.encode(
        PackedAccesses(
            version=VERSION,
            block_size=accesses.block_size,
            engines=accesses.engines,
            tenants=accesses.tenants,
            observed=accesses.observed,
            learned=accesses.learned,
            columns=columns,
        )
    )


def unpack(data: bytes) -> Accesses:
    """Look-ups that `pack` made. Raises PackedError."""
    if len(data) > MAX_BYTES:
        raise PackedError(f"{len(data)} bytes of lookups are too many: at most {MAX_BYTES}")
    try:
        found = _decoder.decode(data)
        if found.version != VERSION:
            raise PackedError(f"lookups of version {found.version}: this kvitals reads version {VERSION}")
        columns: dict[str, Any] = {
            name: np.frombuffer(found.columns[name], "<f8" if name == "time" else "<i8")
            for name in (*COLUMNS, "start", "block")
        }
        return Accesses(
            **columns,
            engines=found.engines,
            tenants=found.tenants,
            block_size=found.block_size,
            observed=found.observed,
            learned=found.learned,
        )
    except (*UNDECODABLE, KeyError, ValueError, IndexError) as error:
        if isinstance(error, PackedError):
            raise
        raise PackedError(f"these are not an agent's lookups: {error}") from error


def _bytes(column: Any) -> bytes:
    found: bytes = column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
    return found
