"""An agent that replays a recording at real speed: its page tells at each second what it told then,
from the first time on that it is asked.

python -m tests.alerts.replaying FILE.kvcap PORT TTFT ITL      objectives in seconds; ends with the recording
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from aiohttp import web

from kvitals.agent.exports.metrics_page import CONTENT_TYPE, render
from kvitals.agent.node import Node
from kvitals.config import Config, SloTable
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureReader, Record


async def replay(path: Path, port: int, slo: SloTable) -> None:
    node, families = Node(Config(slo=slo)), load().families
    at, asked = 0.0, asyncio.Event()

    async def metrics(_: web.Request) -> web.Response:
        asked.set()
        return web.Response(body=render(node.window, families, at), headers={"Content-Type": CONTENT_TYPE})

    with CaptureReader.open(path) as reader:
        node.expect(reader.header.meta)
        records = iter(reader)
        first = next(records)
        node.ingest_recorded(first)
        at = first.t
        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asked.wait()
        begun = time.monotonic()
        async for record in _in_time(records, first.t, begun):
            node.ingest_recorded(record)
            at = record.t
        await runner.cleanup()


async def _in_time(records: Iterator[Record], first: float, begun: float) -> AsyncIterator[Record]:
    """Each record when it is due. begun: on the clock that only goes on."""
    for record in records:
        await asyncio.sleep(max(0.0, record.t - first - (time.monotonic() - begun)))
        yield record


if __name__ == "__main__":
    file, port, ttft, itl = sys.argv[1:]
    objectives = SloTable(ttft_p99_seconds=float(ttft), itl_p99_seconds=float(itl))
    asyncio.run(replay(Path(file), int(port), objectives))
