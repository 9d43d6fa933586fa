"""KV events from the wire through the ledger: CPU time per block operation, which is one block stored or removed.

    python -m benchmarks.ledger [--cycles 40]

The messages are those of a recorded vLLM that thrashes (tests/fixtures/kv_events), token ids and all. Each cycle reads
them under another key, so that its blocks are others and the prefixes hang together as they did. "token ids unpacked"
is what it would cost to make objects of everything in a message and keep none of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zstandard

from agent.ledger.event import Batch, Cleared
from agent.requests.tenants import KEY_BYTES
from agent.senses.kv_events_wire import Wire

BUDGET = 300_000
"""Block operations a second and core, of the sense and the ledger together."""

MIX = Path(__file__).parents[1] / "tests" / "fixtures" / "kv_events" / "vllm-0.32-thrash.msgpack.zst"
PORTION = 125
"""Messages read at one go; the sense does so with a megabyte of them, or with what came since the last look."""

Message = tuple[int, bytes]


class Names:
    """Pseudonyms that cost nothing: real ones are remembered. The key is each cycle's own."""

    def __init__(self, cycle: int) -> None:
        self._cycle = cycle

    def pseudonym(self, raw: str) -> str:
        return "t-aaaaaaaaaa" if raw else ""

    def session(self, raw: str) -> str:
        return "s-aaaaaaaaaa" if raw else ""

    def subkey(self, use: bytes) -> bytes:
        return self._cycle.to_bytes(KEY_BYTES, "little")


def mix() -> list[Message]:
    """The recorded messages."""
    packed = zstandard.ZstdDecompressor().decompress(MIX.read_bytes(), max_output_size=1 << 26)
    return msgspec.msgpack.decode(packed, type=list[Message])


def batches(messages: Sequence[Message], cycle: int) -> list[Batch]:
    """What the sense makes of the messages in one cycle, with sequences that go on from the cycle before."""
    wire, first = Wire(Names(cycle)), messages[0][0]
    shifted = [(sequence - first + cycle * len(messages), payload) for sequence, payload in messages]
    portions = (shifted[i : i + PORTION] for i in range(0, len(shifted), PORTION))
    return [batch for portion in portions for piece in wire.read(portion) for batch in piece.batches]


def operations(some: Sequence[Batch]) -> int:
    """Blocks stored and removed."""
    events = (event for batch in some for event in batch.events)
    return sum(len(event.hashes) for event in events if not isinstance(event, Cleared))


def timed(work: Callable[[], object]) -> float:
    """CPU seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=40)
    options = parser.parse_args()
    messages = mix()
    count = operations(batches(messages, 0))
    size = sum(len(payload) for _, payload in messages)
    print(f"{len(messages)} messages, {count} block operations, {size / count:.0f} bytes an operation")
    print(f"\n{'':34} {'us CPU an operation':>20} {'operations a second and core':>30}")

    def tell(name: str, seconds: float) -> float:
        each = seconds / (count * options.cycles)
        print(f"{name:34} {each * 1e6:20.2f} {1 / each:30,.0f}")
        return each

    def unpacked() -> None:
        for _ in range(options.cycles):
            for _, payload in messages:
                msgspec.msgpack.decode(payload)

    tell("token ids unpacked", timed(unpacked))
    sense = tell("sense", timed(lambda: [batches(messages, cycle) for cycle in range(options.cycles)]))
    print(f"\nbudget {BUDGET:,} operations a second and core; load {os.getloadavg()[0]:.1f}")
    return 0 if 1 / sense >= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
