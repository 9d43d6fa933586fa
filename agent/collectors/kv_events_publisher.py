"""One publisher's KV events: its messages become redacted batches, which wait here for the next read."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from kvitals.agent.collectors.kv_events_sources import PublisherSource
from kvitals.agent.collectors.kv_events_stream import EventStream, Message
from kvitals.agent.collectors.kv_events_wire import TenantPseudonyms, UnbrokenBatches, Wire
from kvitals.agent.ledger.event import BlockEventBatch, BlocksCleared
from kvitals.agent.logger import Logger

log = Logger()

MAX_READY_BLOCKS = 150_000
"""Blocks in batches of one publisher that wait for the next look, about 60 bytes each. Beyond, the oldest leave."""

MAX_READY_BATCHES = 50_000


@dataclass
class BatchRun:
    """Batches that follow each other, and what was before them."""

    lost: int = 0
    restarted: bool = False
    late: bool = False
    replayed: int = 0
    batches: list[BlockEventBatch] = field(default_factory=list)
    blocks: int = 0


@dataclass
class PublisherBatches:
    """What came from one publisher since the last look."""

    source: PublisherSource
    chunks: list[BatchRun]
    dropped: dict[str, int]
    connections: int  # of its socket
    since: float | None  # when that was opened; None: it is not yet
    last_at: float | None  # when the last message came
    obstacle: str = ""  # why it cannot be opened: a key of kvitals.agent.collectors.kv_events.REASONS
    seconds: float = 0.0  # that reading messages took


class PublisherStream:
    """One publisher's stream, and its batches. `lock` guards all of it."""

    def __init__(self, source: PublisherSource, names: TenantPseudonyms) -> None:
        self.source = source
        self.stream = EventStream(replays=bool(source.replay))
        self.lock = threading.Lock()
        self.dropped: dict[str, int] = {}
        self.last_at: float | None = None
        self._wire = Wire(names)
        self._ready: deque[BatchRun] = deque()
        self._blocks = self._batches = 0
        self._seconds = 0.0

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def settle(self) -> None:
        """Turn the messages that there are into batches."""
        began = time.thread_time()
        for run in self.stream.take():
            chunk = BatchRun(run.lost, run.restarted, run.late, run.replayed)
            for number, piece in enumerate(self._read(run.messages)):
                if number:
                    chunk = BatchRun()
                chunk.lost += piece.hole
                chunk.batches = piece.batches
                chunk.blocks = sum(map(_blocks, piece.batches))
                self._keep(chunk)
        for reason, count in self._wire.dropped.items():
            self.drop(reason, count)
        self._wire.dropped.clear()
        self._seconds += time.thread_time() - began

    def _read(self, messages: list[Message]) -> list[UnbrokenBatches]:
        try:
            return self._wire.read(messages)
        except Exception:  # one publisher's messages must not take the others down
            log.exception("KV events not ingested", endpoint=self.source.endpoint)
            self.drop("internal", len(messages))
            return [UnbrokenBatches(hole=len(messages))]

    def hand_out(self) -> tuple[list[BatchRun], dict[str, int], float]:
        """What waits, what was dropped, and how long reading took, since the last time."""
        self.settle()
        if self.stream.ignored:
            self.drop("mixed", self.stream.ignored)
            self.stream.ignored = 0
        given = list(self._ready), self.dropped, self._seconds
        self._ready, self.dropped, self._blocks, self._batches, self._seconds = deque(), {}, 0, 0, 0.0
        return given

    def _keep(self, chunk: BatchRun) -> None:
        self._ready.append(chunk)
        self._blocks += chunk.blocks
        self._batches += len(chunk.batches)
        while len(self._ready) > 1 and (self._blocks > MAX_READY_BLOCKS or self._batches > MAX_READY_BATCHES):
            oldest, heir = self._ready.popleft(), self._ready[0]
            self._blocks -= oldest.blocks
            self._batches -= len(oldest.batches)
            self.drop("overflow", len(oldest.batches))
            if not heir.restarted:
                heir.restarted, heir.late = oldest.restarted, oldest.late or heir.late
                heir.lost += oldest.lost + len(oldest.batches)


def _blocks(batch: BlockEventBatch) -> int:
    return sum(len(event.hashes) for event in batch.events if not isinstance(event, BlocksCleared))
