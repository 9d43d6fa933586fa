"""What one cycle ingests, so that no source of records holds up the others.

    ingestion = Ingestion(node)
    records = await node.collect(patience, held=ingestion.held)
    await ingestion.take(records, interval)

Small records come first, then what can be costly, each kind within its share of the interval:

* large pages; those beyond the share wait for a later cycle, and their target is not scraped meanwhile;
* parts of requests; those beyond the share wait too, and no more are taken out of the intake, which refuses what it has
  no room for, so that nothing is lost that was accepted;
* KV events; batches beyond the share are dropped and counted, as if they were lost on the way.

Records are let go as they are ingested: those of a flood take tens of megabytes, and what is made of them as much
again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from kvitals.agent.ingest_share import Meter
from kvitals.agent.kv_event_collectors import without_batches
from kvitals.agent.ledger.event import KvEventsRecord
from kvitals.agent.node import Node
from kvitals.agent.records import Record, ScrapeRecord
from kvitals.agent.request_collectors import CLOCK_SOURCE, PARTS
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.workers import Worker
from kvitals.series.slices import in_slices
from kvitals.series.types import METRIC_NAME, Labels

R = TypeVar("R", bound=Record)

LARGE_PAGE_BYTES = 256 << 10
"""From this size on a page counts as large: one of an engine with a few ranks has less."""

PAGES_SHARE, PARTS_SHARE = 0.2, 0.3
"""Of the interval between two cycles, for large pages, and for parts of requests with all small records. By the clock:
on a busy machine more waits."""

KV_EVENTS_SHARE = 0.25
"""The same for KV events, in CPU time: a busy machine alone is no reason to drop any. Ten engines under load need half
of it."""

REFUSED_BATCHES = "{count} batches were dropped: ingesting them takes more than a cycle's share for KV events."


class _Spent(NamedTuple):
    """Seconds that a record took."""

    cpu: float
    clock: float


class Ingestion:
    """Ingests the records of each cycle. On one event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._parsing = Worker("parsing")
        self._pages: deque[ScrapeRecord] = deque()  # that wait, the oldest first
        self._parts: deque[PartsRecord] = deque()

    @property
    def held(self) -> frozenset[str]:
        """What is not to be collected now: targets whose page waits, and `PARTS` while parts wait."""
        return frozenset(page.target for page in self._pages) | (frozenset({PARTS}) if self._parts else frozenset())

    def series(self, labels: Mapping[str, str]) -> dict[Labels, float]:
        """What waits for a later cycle."""
        waiting = {"pages": len(self._pages), "parts": sum(len(record.parts) for record in self._parts)}
        return {
            Labels({**labels, "kind": kind, METRIC_NAME: "kvitals_ingest_waiting"}): float(count)
            for kind, count in waiting.items()
        }

    async def take(self, records: list[Record], interval: float) -> None:
        """Ingest records, and what waits from earlier cycles. records: the list is emptied. interval: seconds between
        two cycles."""
        light, kv_events = self._by_kind(records)
        records.clear()
        spent = 0.0
        while light:
            # Requests that are whole are given out with the first record, so that counts as a part of theirs.
            spent += (await self._ingest(light.popleft())).clock
        await self._within(self._parts, PARTS_SHARE * interval - spent)
        await self._take_kv_events(kv_events, KV_EVENTS_SHARE * interval)
        await self._within(self._pages, PAGES_SHARE * interval)

    def _by_kind(self, records: Sequence[Record]) -> tuple[deque[Record], list[deque[KvEventsRecord]]]:
        """The small records, and the KV events of each publisher. Parts and large pages go to those that wait."""
        light: deque[Record] = deque()
        kv_events: dict[tuple[str, str], deque[KvEventsRecord]] = {}
        for record in records:
            if isinstance(record, KvEventsRecord):
                kv_events.setdefault((record.target, record.rank), deque()).append(record)
            elif isinstance(record, PartsRecord) and record.source != CLOCK_SOURCE:
                self._parts.append(record)
            elif isinstance(record, ScrapeRecord) and len(record.body) >= LARGE_PAGE_BYTES:
                self._pages.append(record)
            else:
                light.append(record)
        return light, [*kv_events.values()]

    async def _within(self, records: deque[R], seconds: float) -> None:
        """Ingest records until `seconds` are over; the others stay. At least one is ingested."""
        while records:
            seconds -= (await self._ingest(records.popleft())).clock
            if seconds <= 0:
                return

    async def _take_kv_events(self, publishers: list[deque[KvEventsRecord]], seconds: float) -> None:
        """Ingest the records of each publisher within its part of `seconds`; one that needs less leaves more to the
        others, so the quiet ones come first."""
        for i, records in enumerate(sorted(publishers, key=lambda one: sum(len(r.batches) for r in one))):
            allowed = seconds / (len(publishers) - i)
            while records:
                refused = allowed <= 0
                record = without_batches(records.popleft(), REFUSED_BATCHES) if refused else records.popleft()
                spent = (await self._ingest(record)).cpu
                allowed -= spent
                seconds -= spent
                del record

    async def _ingest(self, record: Record) -> _Spent:
        meter, began = Meter(), time.monotonic()
        with self._node.collectors.guard("ingest"):
            if isinstance(record, ScrapeRecord):  # its target is not charged for the requests that are given out now
                await in_slices(self._node.advance_steps(record.t), self._parsing.run)
            await in_slices(meter.steps(self._node.ingest_steps(record)), self._parsing.run)
        if isinstance(record, ScrapeRecord):
            self._node.pages.ingested(record.target, meter.seconds)
        await asyncio.sleep(0)
        return _Spent(meter.seconds, time.monotonic() - began)
