"""Traces in Mooncake's JSONL format as accesses.

A line is one request, {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids]}, where
equal ids are equal prefixes (R. Qin et al., "Mooncake", FAST 2025, and its published traces). Other fields are passed
over.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import IO, Annotated, Any

import msgspec
import numpy as np

from kvitals.kvcache.accesses import COLUMNS, SOURCES, UNKNOWN, Accesses, Ints, in_order

BLOCK_SIZE = 512
"""Tokens a block in the published traces."""

MAX_BYTES = 4 << 30
MAX_LINE = 16 << 20
MAX_REQUESTS = 5_000_000
MAX_REFERENCES = 20_000_000
MAX_TOKENS = 1 << 40

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class TraceError(ValueError):
    """A trace can not be read; the message has its file and line and says what is wrong."""


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e16)]
    input_length: _Count
    hash_ids: list[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]]
    output_length: _Count | None = None


def parse(file: IO[bytes], name: str, block_size: int = BLOCK_SIZE) -> Accesses:
    """The requests of an open trace in order of time. name: what errors call it. Raises TraceError, and OSError of the
    file."""
    if block_size < 1:
        raise TraceError(f"{name}: blocks of {block_size} tokens; a block has at least one")
    decode = msgspec.json.Decoder(_Line).decode
    times, counts, start, block = array("d"), array("q"), array("q", [0]), array("q")
    size, number = 0, 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        size += len(line)
        where = f"{name}:{number}"
        if len(line) > MAX_LINE or size > MAX_BYTES:
            raise TraceError(
                f"{where}: more than {MAX_LINE >> 20} MB in a line or {MAX_BYTES >> 30} GB in all; split it"
            )
        if not line.strip():
            continue
        try:
            request = decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{where}: not a request of a Mooncake trace: {error}") from error
        times.append(request.timestamp / 1000)
        output = UNKNOWN if request.output_length is None else request.output_length
        counts.extend((request.input_length, output))
        block.extend(request.hash_ids)
        start.append(len(block))
        if len(times) > MAX_REQUESTS or len(block) > MAX_REFERENCES:
            raise TraceError(
                f"{where}: more than {MAX_REQUESTS:,} requests or {MAX_REFERENCES:,} block references; split the file"
            )
    if not times:
        raise TraceError(f"{name}: no requests in it")
    return _accesses(times, counts, start, block, block_size)


def _accesses(
    times: array[float], counts: array[int], start: array[int], block: array[int], block_size: int
) -> Accesses:
    tokens, output = np.array(counts, dtype=np.int64).reshape(-1, 2).T
    starts = np.array(start, dtype=np.int64)
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, np.full(len(tokens), UNKNOWN, dtype=np.int64))
    columns |= {"time": np.array(times), "tokens": tokens, "output": output}
    columns["source"] = np.full(len(tokens), SOURCES.index("trace"), dtype=np.int64)
    found = in_order(columns, starts, np.array(block, dtype=np.int64), block_size)
    return replace(found, observed=1.0, learned=_learned(tokens, np.diff(starts), block_size))


def _learned(tokens: Ints, blocks: Ints, block_size: int) -> str:
    """How the accesses were come by, and a doubt where ids and tokens do not go together."""
    odd = int(((blocks < tokens // block_size) | (blocks > -(-tokens // block_size))).sum())
    if not odd:
        return "a trace file, all of its requests"
    return (
        f"a trace file, all of its requests; {odd:,} of {len(tokens):,} have not as many ids as their input_length has "
        f"blocks of {block_size} tokens: is that the trace's block size?"
    )
