"""A recording and its truth, read for the proofs: what publishers said, and what the product makes of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.event import BlockEventBatch, BlocksStored, KvEventsRecord
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.node import Node
from kvitals.agent.records import decode, encode
from kvitals.agent.requests.observation import PartsRecord
from kvitals.config import Config, SloTable
from kvitals.series.recordings import CaptureReader
from kvitals.series.slices import Steps

from ..paths import LabError

Row = dict[str, Any]
"""A request of a truth: see `tests.lab.ledger.recording.requests`."""


@dataclass(frozen=True)
class Recorded:
    """NAME.kvcap and NAME.truth.json."""

    capture: Path
    truth: dict[str, Any]

    @property
    def name(self) -> str:
        return self.capture.name.removesuffix(".kvcap")

    @property
    def requests(self) -> list[Row]:
        """All requests, in the order in which they were sent."""
        rows: list[Row] = self.truth["requests"]
        return rows

    @property
    def block_tokens(self) -> int:
        return int(self.truth["engine"]["block_tokens"])

    def gained(self, counter: str) -> float:
        """What an engine's counter gained."""
        before, after = self.truth["counters"][counter]
        return float(after - before)


@dataclass(frozen=True)
class Replayed:
    """What the product makes of a recording."""

    ledger: LedgerSide
    looks: list[SettledLookup]  # in the order in which they were settled


def recorded(capture: Path) -> Recorded:
    """Reads the truth beside a recording."""
    truth = capture.with_suffix(".truth.json")
    if not truth.exists():
        raise LabError(f"{capture} has no truth beside it: {truth.name} is missing")
    return Recorded(capture, json.loads(truth.read_text()))


def batches(capture: Path) -> dict[str, list[BlockEventBatch]]:
    """What each target published, in order. Raises LabError where some of it is missing."""
    found: dict[str, list[BlockEventBatch]] = {}
    with CaptureReader.open(capture) as reader:
        for kept in reader:
            record = decode(kept)
            if not isinstance(record, KvEventsRecord):
                continue
            if record.lost or record.late:
                raise LabError(f"{capture}: {record.target} published what was not heard; record it anew")
            found.setdefault(record.target, []).extend(record.batches)
    return found


def replayed(
    capture: Path, *, with_requests: bool = True, with_sessions: bool = True, slo: SloTable | None = None
) -> Replayed:
    """Give a recording to the product. Without requests: as if nobody had told it of any; without sessions: as if
    events did not tell theirs."""
    node, last = Node(Config(slo=slo or SloTable())), 0.0
    looks: list[SettledLookup] = []
    with CaptureReader.open(capture) as reader:
        node.expect(reader.header.meta)
        for kept in reader:
            last = max(last, kept.t)
            record = decode(kept)
            if not with_requests and isinstance(record, PartsRecord):
                continue
            if not with_sessions and isinstance(record, KvEventsRecord):
                kept = encode(replace(record, batches=tuple(map(_without_sessions, record.batches))))
            had = node.ledger
            node.ingest_recorded(kept)
            if had is None and node.ledger is not None:
                _overhear(node.ledger, looks)
    node.requests.flush()
    if node.ledger is None:
        raise LabError(f"{capture} has no KV events")
    node.ledger.flush(last)
    return Replayed(node.ledger, looks)


def _without_sessions(batch: BlockEventBatch) -> BlockEventBatch:
    events = [
        replace(event, tenant="", session="") if isinstance(event, BlocksStored) else event for event in batch.events
    ]
    return replace(batch, events=tuple(events))


def _overhear(ledger: LedgerSide, looks: list[SettledLookup]) -> None:
    """Keep each look-up as it is counted for its tenant."""
    add = ledger.tenants.add_steps

    def add_and_keep(look: SettledLookup) -> Steps[str]:
        looks.append(look)
        return add(look)

    ledger.tenants.add_steps = add_and_keep  # type: ignore[method-assign]
