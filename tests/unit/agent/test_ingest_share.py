"""A target that costs more than its share is scraped less often, and that is reported."""

from __future__ import annotations

import asyncio
import time

import pytest

from kvitals.agent.ingest_share import MAX_PAUSE_SECONDS, OVER_SHARE, SHARE, IngestShares, Meter
from kvitals.agent.node import Node
from kvitals.agent.records import ScrapeRecord
from kvitals.config import AgentTable, Config, TargetTable
from kvitals.series.slices import Steps, complete, in_slices

INTERVAL = 5.0
DEAD = "http://127.0.0.1:9"


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def work() -> Steps[str]:
    burn(0.02)
    yield None
    return (yield lambda: burn(0.02) or "parsed")


async def test_a_meter_measures_steps_and_the_work_in_threads() -> None:
    meter = Meter()
    assert complete(meter.steps(work())) == "parsed"
    assert meter.seconds >= 0.04
    before = meter.seconds
    assert await in_slices(meter.steps(work()), asyncio.to_thread) == "parsed"
    assert meter.seconds >= before + 0.04


def test_a_meter_passes_on_what_is_raised() -> None:
    def failing() -> Steps[str]:
        try:
            yield lambda: 1 / 0
        except ZeroDivisionError:
            return "caught"
        return "not raised"

    assert complete(Meter().steps(failing())) == "caught"


def test_one_costly_page_changes_nothing_and_two_make_scrapes_rarer() -> None:
    now = 100.0
    shares = IngestShares(lambda: now)
    shares.scraped("x")
    shares.ingested("x", 2.0)
    assert shares.is_due("x", INTERVAL)
    shares.ingested("x", 1.5)
    assert shares.is_over("x", INTERVAL) and not shares.is_due("x", INTERVAL)
    now += 1.5 / SHARE
    assert shares.is_due("x", INTERVAL)
    shares.ingested("x", 0.1)
    assert not shares.is_over("x", INTERVAL)


def test_a_pause_ends_after_a_minute() -> None:
    now = 100.0
    shares = IngestShares(lambda: now)
    shares.scraped("x")
    for _ in range(2):
        shares.ingested("x", 1000.0)
    now += MAX_PAUSE_SECONDS
    assert shares.is_due("x", INTERVAL)


async def scrapes(node: Node, held: frozenset[str] = frozenset()) -> int:
    return sum(isinstance(record, ScrapeRecord) for record in await node.collect(held=held))


@pytest.fixture
def node() -> Node:
    return Node(Config(agent=AgentTable(discover=False, interval=INTERVAL), targets=(TargetTable(url=DEAD),)))


async def test_a_target_over_its_share_is_not_scraped_and_reported(node: Node) -> None:
    await node.open()
    try:
        assert await scrapes(node) == 1
        key = f"{DEAD}/metrics"
        for _ in range(2):
            node.pages.ingested(key, INTERVAL)
        assert await scrapes(node) == 0
        assert node.collectors.failing["scrape", key] == OVER_SHARE
        for _ in range(2):
            node.pages.ingested(key, 0.0)
        assert await scrapes(node) == 1
        assert node.collectors.failing == {}
    finally:
        await node.close()


async def test_a_target_whose_page_waits_is_not_scraped(node: Node) -> None:
    await node.open()
    try:
        assert await scrapes(node, frozenset({f"{DEAD}/metrics"})) == 0
        assert await scrapes(node) == 1
    finally:
        await node.close()
