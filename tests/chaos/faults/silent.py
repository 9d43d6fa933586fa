"""Peers that accept connections and never answer: a target behind TLS, and the collector that traces are sent to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from tests.chaos.requests.clients import PROTOBUF
from tests.chaos.requests.planted import tenant
from tests.chaos.requests.spans import export as spans

from .collectors import STOP_SECONDS
from .engines import is_state, on_time, up
from .stage import HOST, Stage, Told, free_port

FAILS_SECONDS = 45.0
"""Until a batch of traces is reported as not delivered: records settle for 7 s, and a try takes 5 s."""
HELD_SECONDS = 15.0
CONNECTIONS = 4
"""That the agent may have open at one silent peer."""
SPANS_AT_ONCE = 50


class SilentPeer:
    """A port that accepts, reads and answers nothing."""

    def __init__(self) -> None:
        self.open = self.most = self.accepted = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[SilentPeer]:
        server = await asyncio.start_server(self._keep, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            with contextlib.suppress(OSError):
                while await reader.read(1 << 16):
                    pass
        finally:
            self.open -= 1
            writer.close()


async def peers(stage: Stage, told: Told) -> None:
    """Each is reported, connections and threads do not pile up, the engine is scraped on time, SIGTERM ends it."""
    ports = {"engine": free_port()}
    await stage.engine(ports["engine"])
    async with SilentPeer().listening() as target, SilentPeer().listening() as collector:
        otlp = free_port()
        out = f'[otlp_out]\nendpoint = "http://{HOST}:{collector.port}"\nsample = 1.0\n'
        tables = f'[otlp]\nhttp = "{HOST}:{otlp}"\ngrpc = ""\n{out}'
        agent = await stage.agent({**ports, "silent": f"https://{HOST}:{target.port}"}, more=tables)
        await up(stage, agent, ports)
        sending = asyncio.create_task(_send(stage, otlp))
        try:
            took = await stage.until(lambda: is_state(agent, "silent", "timeout"), 10.0)
            told.expect(took is not None, "the target that is silent is not reported as timeout")
            failed = 'kvitals_export_state{state="failed",reason="not_delivered"} == 1'
            lost = await stage.until(lambda: agent.query(failed), FAILS_SECONDS)
            told.expect(lost is not None, "traces that nobody takes are not reported")
            threads = agent.program.threads()
            await asyncio.sleep(HELD_SECONDS)
            told.expect(agent.program.threads() <= threads + 2, f"{threads} threads became {agent.program.threads()}")
        finally:
            sending.cancel()
        for name, peer in (("target", target), ("collector", collector)):
            told.expect(peer.accepted > 0, f"nobody connected to the silent {name}")
            told.expect(peer.most <= CONNECTIONS, f"{peer.most} connections at the same time to the silent {name}")
        await on_time(agent, told, "engine", HELD_SECONDS)
        await stage.loops_were_free(told)
        began = time.monotonic()
        await agent.program.stop()
        ended = time.monotonic() - began
        told.expect(ended < STOP_SECONDS, f"the agent took {ended:.1f} s to stop")
        told.said.append(
            f"target reported after {took or 0:.1f} s, collector after {lost or 0:.1f} s; at most {target.most} and"
            f" {collector.most} connections; stopped within {ended:.1f} s"
        )


async def _send(stage: Stage, port: int) -> None:
    """Spans of requests, until it is cancelled."""
    while True:
        payload = spans([tenant("silent")] * SPANS_AT_ONCE)
        async with stage.session.post(f"http://{HOST}:{port}/v1/traces", data=payload, headers=PROTOBUF) as answer:
            await answer.read()
        await asyncio.sleep(0.5)
