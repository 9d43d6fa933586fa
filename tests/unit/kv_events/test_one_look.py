"""A triage of a live engine hears its KV events meanwhile, takes nobody's place, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from fake_engine import FakeEngine, batch

from kvitals.app.pipeline import Setup
from kvitals.app.sources.live import Collector
from kvitals.config import AgentTable, Config
from kvitals.rules.loader import load
from kvitals.series.promql import evaluate
from tests.support.processes import free_port

PAGE = Path(__file__).parents[2] / "fixtures" / "exposition" / "vllm-0.32-loaded.prom"
PATIENCE_S = 20.0
WITH_ROOM = Config(agent=AgentTable(memory_limit=1 << 16))  # the process of the tests is no agent


@asynccontextmanager
async def engine(endpoint: str) -> AsyncIterator[str]:
    """An engine's page, and where it says that it publishes."""
    told = {"0": {"publisher": "zmq", "endpoint": endpoint, "replay_endpoint": None, "topic": "kv"}}

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE.read_text())

    async def sources(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(told))

    app = web.Application()
    app.router.add_get("/metrics", page)
    app.router.add_get("/kv_event_sources", sources)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def look(collector: Collector, metric: str) -> float | None:
    """One look, and then the largest value of a family."""
    async for _ in collector.collect(0.01):
        pass
    found = evaluate(metric, collector.pipeline.node.window, collector._last)
    assert not isinstance(found, float)
    return max((value for _, value in found), default=None)


async def test_events_are_heard_during_a_triage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    port = free_port()
    with FakeEngine(f"tcp://127.0.0.1:{port}") as publisher:
        async with engine(f"tcp://*:{port}") as url, Collector(Setup(load(), WITH_ROOM), [url]) as collector:
            async with asyncio.timeout(PATIENCE_S):
                number = 0
                while not await look(collector, "kvitals_kv_event_batches_total"):
                    publisher.publish(batch(number))
                    number += 1
                while not await look(collector, "kvitals_cache_live_blocks"):
                    publisher.publish(batch(number))
                    number += 1
    assert os.listdir(tmp_path) == []  # noqa: PTH208


@pytest.mark.system
async def test_the_place_of_an_agent_is_not_taken() -> None:
    """An engine that connects publishes to the one who binds its endpoint; a passing triage is not that one."""
    port = free_port()
    async with (
        engine(f"tcp://127.0.0.1:{port}") as url,
        Collector(Setup(load(), WITH_ROOM), [url]) as collector,
    ):
        for _ in range(3):
            assert await look(collector, "kvitals_kv_event_batches_total") is None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))  # it is free
