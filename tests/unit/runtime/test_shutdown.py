"""A stop: what must wait waits at the same time, so that a loaded agent ends long before its limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvitals.agent.collectors.otlp import OtlpSense
from kvitals.agent.node import Node
from kvitals.app.runtime import daemon as runtime
from kvitals.app.runtime.daemon import Daemon
from kvitals.config import build

TOGETHER_SECONDS = 20.0
"""Where they wait one after another, nothing happens for so long."""


class Closes:
    """Something whose end waits until all of its kind end."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        self._barrier = barrier
        self.closed = False

    async def close(self) -> None:
        async with asyncio.timeout(TOGETHER_SECONDS):
            await self._barrier.wait()
        self.closed = True


async def test_collectors_close_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They closed one after another, and the waits of each added up."""
    barrier = asyncio.Barrier(3)
    registry = [Closes(barrier) for _ in range(3)]
    node = Node(build({}))
    monkeypatch.setattr(node, "registry", registry)
    await node.close()
    assert all(one.closed for one in registry)


async def test_a_collector_that_fails_to_close_keeps_no_other_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        async def close(self) -> None:
            raise OSError("no")

    other = Closes(asyncio.Barrier(1))
    node = Node(build({}))
    monkeypatch.setattr(node, "registry", [Fails(), other])
    with pytest.raises(OSError, match="no"):
        await node.close()
    assert other.closed


async def test_servers_of_spans_close_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    doors = {name: Closes(barrier) for barrier in (asyncio.Barrier(2),) for name in ("grpc", "http")}
    sense = OtlpSense.__new__(OtlpSense)
    for name, value in {"_keepers": [], "_shut": {}, "_doors": doors}.items():
        monkeypatch.setattr(sense, name, value, raising=False)
    await sense.close()
    assert all(door.closed for door in doors.values())


async def test_the_api_and_all_else_end_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    barrier = asyncio.Barrier(2)

    @contextlib.asynccontextmanager
    async def serve(*_: Any) -> AsyncIterator[None]:
        yield
        await Closes(barrier).close()

    class Parts:
        send_traces = staticmethod(lambda _: None)

    class OfNode(Closes):
        parts = Parts()

        async def open(self, *_: Any, **__: Any) -> list[str]:
            return []

    daemon = Daemon.__new__(Daemon)
    pipeline = type("Pipeline", (), {"node": OfNode(barrier)})()
    for name, value in {"pipeline": pipeline, "keeping": None, "_health": None}.items():
        monkeypatch.setattr(daemon, name, value, raising=False)
    monkeypatch.setattr(runtime, "serve", serve)
    monkeypatch.setattr(runtime, "CLOSE_SECONDS", TOGETHER_SECONDS)
    async with daemon.open([], ("127.0.0.1", 0)):
        pass
    assert pipeline.node.closed
