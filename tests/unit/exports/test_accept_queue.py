"""A burst of connections waits in the kernel, and none of it is lost."""

from __future__ import annotations

import asyncio
import select
import socket
from pathlib import Path

import pytest
from aiohttp import web

from kvitals.agent.accept_queue import PLACES
from kvitals.agent.collectors.grpc_front import Front
from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.descriptors import raise_limit
from kvitals.agent.listeners import LISTENERS

BURST = 1500


def connected(port: int) -> int:
    """How many of a burst of connections the kernel takes while the loop is busy."""
    raise_limit()
    clients = [socket.socket() for _ in range(BURST)]
    try:
        for one in clients:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        poll = select.poll()
        for one in clients:
            poll.register(one, select.POLLOUT)
        poll.poll(200)
        return sum(not mask & select.POLLERR for _, mask in poll.poll(200))
    finally:
        for one in clients:
            one.close()


@pytest.mark.skipif(
    int(Path("/proc/sys/net/core/somaxconn").read_text()) < PLACES, reason="the kernel allows a shorter queue"
)
class TestTheQueue:
    async def test_of_http(self) -> None:
        runner = GuardedRunner(web.Application())
        await runner.setup()
        site = GuardedSite(runner, LISTENERS["api"], "127.0.0.1", 0)
        await site.start()
        assert connected(site.port) == BURST
        await runner.cleanup()

    async def test_of_grpc(self, tmp_path: Path) -> None:
        front = Front(LISTENERS["otlp_grpc"], tmp_path / "none")
        assert connected(await front.open("127.0.0.1", 0)) == BURST
        front.close()
        await asyncio.sleep(0)
