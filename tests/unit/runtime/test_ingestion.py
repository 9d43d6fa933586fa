"""What one cycle ingests: no source of records holds up the others, and nothing disappears without being counted."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import pytest

from kvitals.agent import ingest_share
from kvitals.agent.ledger.event import BlockEventBatch, KvEventsRecord
from kvitals.agent.node import Node
from kvitals.agent.records import ProbeRecord, Record, ScrapeRecord
from kvitals.agent.request_collectors import PARTS
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.app.runtime import ingestion
from kvitals.app.runtime.ingestion import KV_EVENTS_SHARE, LARGE_PAGE_BYTES, PARTS_SHARE, Ingestion
from kvitals.series.slices import Steps
from kvitals.series.types import METRIC_NAME

INTERVAL = 5.0


class FakeNode:
    """Ingests records, each of a kind at a price in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prices: dict[type[Record], float]) -> None:
        self.ingested_records: list[Record] = []
        self.costs: dict[str, float] = {}
        self.pages = SimpleNamespace(ingested=self.costs.__setitem__)
        self.collectors = SimpleNamespace(guard=lambda _: nullcontext())
        self._prices = prices
        self._spent = self.giving_out = 0.0
        monkeypatch.setattr(ingest_share, "time", SimpleNamespace(thread_time=lambda: self._spent))
        monkeypatch.setattr(ingestion, "time", SimpleNamespace(monotonic=lambda: self._spent))

    def ingest_steps(self, record: Record) -> Steps[None]:
        empty = isinstance(record, KvEventsRecord) and not record.batches
        self._spent += 0.0 if empty else self._prices.get(type(record), 0.0)
        self.ingested_records.append(record)
        yield None

    def advance_steps(self, t: float) -> Steps[None]:
        self._spent += self.giving_out
        yield None

    def of(self, kind: type[Record]) -> list[Record]:
        return [record for record in self.ingested_records if type(record) is kind]


def stage(monkeypatch: pytest.MonkeyPatch, **prices: float) -> tuple[FakeNode, Ingestion]:
    kinds: dict[str, type[Record]] = {"parts": PartsRecord, "page": ScrapeRecord, "kv": KvEventsRecord}
    node = FakeNode(monkeypatch, {kinds[name]: price for name, price in prices.items()})
    return node, Ingestion(cast(Node, node))


def batches(target: str, count: int, sequence: int = 0) -> KvEventsRecord:
    return KvEventsRecord(
        t=1.0, target=target, batches=tuple(BlockEventBatch(sequence + n, 1.0, ()) for n in range(count))
    )


def parts(t: float, count: int = 10) -> PartsRecord:
    return PartsRecord(
        t=t, source="otlp", parts=tuple(RequestPart(observer="engine", system="vllm", seen=t) for _ in range(count))
    )


def page(target: str, size: int = LARGE_PAGE_BYTES) -> ScrapeRecord:
    return ScrapeRecord(t=1.0, target=target, body=b"\n" * size, status=200)


async def test_small_records_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    node, taking = stage(monkeypatch)
    probe, small, large = ProbeRecord(t=1.0, target="a", answered=True, seconds=0.1), page("a", 10), page("b")
    some, kv = parts(1.0), batches("a", 3)
    await taking.take([large, kv, some, small, probe], INTERVAL)
    assert node.ingested_records == [small, probe, some, kv, large]


async def test_kv_events_beyond_their_share_are_a_hole_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    node, taking = stage(monkeypatch, kv=KV_EVENTS_SHARE * INTERVAL / 8)
    flood = [batches("flood", 100, 100 * n) for n in range(20)]
    quiet = [batches("quiet", 1)]
    await taking.take([*flood, *quiet], INTERVAL)
    found = [record for record in node.ingested_records if isinstance(record, KvEventsRecord)]
    assert [record for record in found if record.target == "quiet"] == quiet
    taken = [record for record in found if record.target == "flood"]
    assert sum(len(record.batches) + record.lost for record in taken) == 2000
    kept = sum(len(record.batches) for record in taken)
    assert 500 <= kept <= 1000
    assert all(record.reason == "lost" and "100 batches" in record.message for record in taken if record.lost)


async def test_parts_beyond_their_share_wait_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    node, taking = stage(monkeypatch, parts=PARTS_SHARE * INTERVAL / 2)
    sent = [parts(float(n)) for n in range(5)]
    await taking.take([*sent], INTERVAL)
    assert node.of(PartsRecord) == sent[:2]
    assert PARTS in taking.held
    waiting = {labels["kind"]: value for labels, value in taking.series({}).items()}
    assert waiting == {"pages": 0.0, "parts": 30.0}
    assert {labels[METRIC_NAME] for labels in taking.series({})} == {"kvitals_ingest_waiting"}
    for _ in range(2):
        await taking.take([], INTERVAL)
    assert node.of(PartsRecord) == sent
    assert PARTS not in taking.held


async def test_costly_pages_wait_and_their_targets_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    node, taking = stage(monkeypatch, page=2 * INTERVAL)
    await taking.take([page("a"), page("b"), page("c")], INTERVAL)
    assert [record.target for record in node.of(ScrapeRecord)] == ["a"]
    assert taking.held == {"b", "c"}
    assert node.costs == {"a": 2 * INTERVAL}
    await taking.take([], INTERVAL)
    assert taking.held == {"c"}


async def test_no_target_is_charged_for_the_requests_that_are_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    node, taking = stage(monkeypatch, parts=0.1)
    node.giving_out = PARTS_SHARE * INTERVAL
    await taking.take([page("a", 10), parts(1.0), parts(2.0)], INTERVAL)
    assert node.costs == {"a": 0.0}
    assert len(node.of(PartsRecord)) == 1  # and the next parts wait


async def test_records_are_let_go_as_they_are_ingested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a flood take tens of megabytes, and what is made of them as much again."""
    node, taking = stage(monkeypatch)
    flood = [batches("flood", 1, n) for n in range(4)]
    gone: list[int] = []

    def references() -> list[int]:
        return [sys.getrefcount(record) for record in flood]

    def count(_: Record) -> Steps[None]:
        gone.append(sum(now == alone for now, alone in zip(references(), before, strict=True)))
        yield None

    before = references()
    monkeypatch.setattr(node, "ingest_steps", count)
    records: list[Record] = [*flood]
    await taking.take(records, INTERVAL)
    assert gone == [0, 1, 2, 3]
    assert records == []
