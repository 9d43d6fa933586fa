"""KV events from the wire through the ledger: CPU time per block operation, which is one block stored or removed.

    python -m benchmarks.ledger [--cycles 40]
    python -m benchmarks.ledger --hour           # memory over 90 million operations, an hour at 25,000 a second

The messages are those of a recorded vLLM that thrashes (tests/fixtures/kv_events), token ids and all. Each cycle reads
them under another key, so that its blocks are others and the prefixes hang together as they did. "token ids unpacked"
is what it would cost to make objects of everything in a message and keep none of it. The ledger gets what the sense
made, a second at a time as if 25,000 operations came in each, with owners, refaults, blame, residency, curves and rows
in the window; "with records" it also gets the record of each request, none of whose sessions the events tell.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import zstandard

from kvitals.agent.collectors.kv_events_wire import Wire
from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.event import BlockEventBatch, BlocksCleared, BlocksRemoved, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.requests.record import RequestPhase, RequestRecord
from kvitals.agent.requests.tenant_names import KEY_BYTES
from kvitals.series.types import Labels
from kvitals.series.window import Window

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
        return f"t-{raw[-10:]}" if raw else ""

    def session(self, raw: str) -> str:
        return f"s-{raw[-10:]}" if raw else ""

    def subkey(self, use: bytes) -> bytes:
        return self._cycle.to_bytes(KEY_BYTES, "little")


def mix() -> list[Message]:
    """The recorded messages."""
    packed = zstandard.ZstdDecompressor().decompress(MIX.read_bytes(), max_output_size=1 << 26)
    return msgspec.msgpack.decode(packed, type=list[Message])


def batches(messages: Sequence[Message], cycle: int) -> list[BlockEventBatch]:
    """What the sense makes of the messages in one cycle, with sequences that go on from the cycle before."""
    wire, first = Wire(Names(cycle)), messages[0][0]
    shifted = [(sequence - first + cycle * len(messages), payload) for sequence, payload in messages]
    portions = (shifted[i : i + PORTION] for i in range(0, len(shifted), PORTION))
    return [batch for portion in portions for piece in wire.read(portion) for batch in piece.batches]


def operations(some: Sequence[BlockEventBatch]) -> int:
    """Blocks stored and removed."""
    events = (event for batch in some for event in batch.events)
    return sum(len(event.hashes) for event in events if not isinstance(event, BlocksCleared))


def timed(work: Callable[[], object]) -> float:
    """CPU seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


RATE = 25_000
"""Block operations a second that the ledger's clock goes by."""

BEGAN = 1_790_000_000.0
ENGINE = "engine"
HOUR = 3600 * RATE
POOL = 192
"""Blocks of the recorded engine."""


def rounded(some: Sequence[BlockEventBatch]) -> list[BlockEventBatch]:
    """The batches, and one more that removes what they left, so that one cycle can come after another."""
    left: dict[int, int] = {}
    for event in (event for batch in some for event in batch.events):
        for block in () if isinstance(event, BlocksCleared) else event.hashes:
            left[block] = max(left.get(block, 0) + (1 if isinstance(event, BlocksStored) else -1), 0)  # it began before
    blocks = tuple(block for block, copies in reversed(left.items()) for _ in range(copies))
    return [*some, BlockEventBatch(some[-1].sequence + 1, some[-1].at, (BlocksRemoved(blocks),))]


def seconds(some: Sequence[BlockEventBatch]) -> float:
    """How long a cycle takes by the ledger's clock."""
    return operations(some) / RATE


def later(some: Sequence[BlockEventBatch], cycle: int, told: bool) -> Iterator[BlockEventBatch]:
    """The batches of a cycle with the times that they have then, and with other blocks. told: with their sessions."""
    whole, each, mask = seconds(some), seconds(some) / len(some), cycle * 0x9E3779B97F4A7C15 & 2**64 - 1
    for i, batch in enumerate(some):
        at = BEGAN + cycle * whole + i * each
        yield BlockEventBatch(cycle * len(some) + i, at, tuple(_other(event, mask, told) for event in batch.events))


def _other(
    event: BlocksStored | BlocksRemoved | BlocksCleared, mask: int, told: bool
) -> BlocksStored | BlocksRemoved | BlocksCleared:
    if isinstance(event, BlocksCleared):
        return event
    hashes = tuple(block ^ mask for block in event.hashes)
    if isinstance(event, BlocksRemoved):
        return BlocksRemoved(hashes, event.medium, event.group)
    parent = None if event.parent is None else event.parent ^ mask
    tenant, session = (event.tenant, event.session) if told else ("", "")
    return BlocksStored(hashes, parent, event.tokens, event.medium, tenant, session, event.lora, event.group)


def requests(some: Sequence[BlockEventBatch], cycle: int) -> list[RequestRecord]:
    """The records of the requests of a cycle, as their look-ups tell them."""
    looks: list[SettledLookup] = []
    ledger = EngineLedger(Room(), Owners(), Style.BLOCKS, looks.append)
    ledger.feed(KvEventsRecord(t=BEGAN, target=ENGINE, batches=tuple(later(some, cycle, True))))
    ledger.flush()
    return [
        RequestRecord(
            id=f"{cycle}-{n}",
            start=look.at - 0.01,
            end=look.at + 0.05,
            complete=True,
            engines={"unified": ENGINE},
            tenant=look.party.tenant,
            session=look.party.session,
            phases=(RequestPhase("prefill", 0.009, "measured", look.at - 0.0085),),
            ttft=0.011,
            prompt_tokens=look.prompt,
            cached_tokens=look.hits * look.tokens,
            output_tokens=16,
        )
        for n, look in enumerate(looks)
    ]


class Fed:
    """A node's ledger that is fed a second at a time."""

    def __init__(self) -> None:
        window = Window(600.0, 100_000)
        self.side = LedgerSide(window, {"node": "n"}, lambda _: {"node": "n"}, 50)
        facts = window.group("facts")
        column = facts.column(Labels({"__name__": "kvitals_engine_fact", "fact": "kv_blocks", "engine": ENGINE}))
        assert column is not None
        facts.append(BEGAN, [column], [float(POOL)])

    def take(self, some: Sequence[BlockEventBatch], records: Sequence[RequestRecord] = ()) -> None:
        """A cycle's batches, and the records of its requests when their seconds are over."""
        for second, group in groupby(some, key=lambda batch: int(batch.at)):
            self.side.feed(KvEventsRecord(t=second + 1.0, target=ENGINE, batches=tuple(group)), ENGINE)
            self.side.advance(second + 1.0)
        for record in records:
            self.side.request(record)
        if records:
            self.side.heard(some[-1].at)


def fed(cycles: Sequence[Sequence[BlockEventBatch]], records: Sequence[Sequence[RequestRecord]]) -> Fed:
    """A ledger that was fed some cycles, with the records of each after it."""
    made = Fed()
    for some, those in zip(cycles, records, strict=True):
        made.take(some, those)
    return made


def hour(some: Sequence[BlockEventBatch]) -> int:
    """Memory while an hour's worth of operations goes through."""
    made, done, cycle, told = Fed(), 0, 0, 0
    count = operations(some)
    print(f"{'million operations':>20} {'resident MB':>12} {'peak MB':>9} {'ledger MB, by itself':>21}")
    while done < HOUR:
        made.take(list(later(some, cycle, True)))
        done, cycle = done + count, cycle + 1
        if done * 20 >= told * HOUR:
            told += 1
            own = sum(watched.bytes for watched in made.side.engines.values()) / 1e6
            print(f"{done / 1e6:20.1f} {_resident():12.1f} {_peak():9.1f} {own:21.1f}", flush=True)
    return 0


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _peak() -> float:
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--hour", action="store_true", help="memory over an hour's worth of operations")
    options = parser.parse_args()
    messages = mix()
    some = rounded(batches(messages, 0))
    count = operations(some)
    if options.hour:
        return hour(some)
    size, read = sum(len(payload) for _, payload in messages), operations(batches(messages, 0))
    print(f"{len(messages)} messages, {read} block operations, {size / read:.0f} bytes an operation")
    print(f"\n{'':34} {'us CPU an operation':>20} {'operations a second and core':>30}")

    def tell(name: str, seconds: float, of: int = read) -> float:
        each = float(seconds / (of * options.cycles))
        print(f"{name:34} {each * 1e6:20.2f} {1 / each:30,.0f}")
        return each

    def unpacked() -> None:
        for _ in range(options.cycles):
            for _, payload in messages:
                msgspec.msgpack.decode(payload)

    tell("token ids unpacked", timed(unpacked))
    sense = tell("sense", timed(lambda: [batches(messages, cycle) for cycle in range(options.cycles)]))
    cycles = range(options.cycles)
    told = [list(later(some, cycle, True)) for cycle in cycles]
    ledger = tell("ledger", timed(lambda: fed(told, [()] * options.cycles)), count)
    untold = [list(later(some, cycle, False)) for cycle in cycles]
    records = [requests(some, cycle) for cycle in cycles]
    tell("ledger, with records", timed(lambda: fed(untold, records)), count)
    both = sense + ledger
    print(f"\nsense and ledger {1 / both:,.0f}, budget {BUDGET:,} operations a second and core", end="; ")
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0 if 1 / both >= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
