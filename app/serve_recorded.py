"""A recording's pages as HTTP targets: every other tool can be pointed at a recorded incident."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_right
from pathlib import Path

from aiohttp import web
from rich.console import Console

from kvitals.agent.connections import GuardedRunner, GuardedSite, effective
from kvitals.agent.exports.host_names import refuse_others
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.records import ScrapeRecord
from kvitals.app.sources.losses import SourceLoss
from kvitals.app.sources.recording_reader import RecordingError, open_recording

HOST = "127.0.0.1"


async def serve(path: Path, first_port: int, console: Console) -> None:
    """Serve each recorded target on a port of its own, from the recording's start, once; Ctrl-C ends it.

    Raises CaptureError, and RecordingError where there is nothing to serve or no port to serve it on.
    """
    pages, losses = read_pages(path)
    for loss in losses:
        console.print(f"{path.name}: {loss.text}", style="yellow")
    if not pages:
        raise RecordingError(f"{path.name} has no metrics page to serve")
    begun = time.time()
    start = min(times[0] for times, _ in pages.values())
    length = max(times[-1] for times, _ in pages.values()) - start
    row = effective(LISTENERS["replay"], len(pages))
    async with contextlib.AsyncExitStack() as stack:
        for port, (target, (times, records)) in enumerate(sorted(pages.items()), first_port):
            runner = GuardedRunner(_app(times, records, start - begun))
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            try:
                await GuardedSite(runner, row, HOST, port).start()
            except (OSError, OverflowError) as error:
                raise RecordingError(f"port {port} is not available ({error}); choose another with --port") from error
            console.print(f"{target} as it was: http://{HOST}:{port}/metrics")
        console.print(f"{length:.0f} s of recording at real speed, then its last page. Ctrl-C stops.")
        await asyncio.Event().wait()


def read_pages(path: Path) -> tuple[dict[str, tuple[list[float], list[ScrapeRecord]]], tuple[SourceLoss, ...]]:
    """The scrapes of a recording by target, as times and records in order, and what could not be read."""
    pages: dict[str, tuple[list[float], list[ScrapeRecord]]] = {}
    with open_recording(path) as reader:
        for record in reader.decoded():
            if isinstance(record, ScrapeRecord):
                times, records = pages.setdefault(record.target, ([], []))
                times.append(record.t)
                records.append(record)
    return pages, reader.losses()


def _app(times: list[float], records: list[ScrapeRecord], shift: float) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        record = records[max(0, bisect_right(times, time.time() + shift) - 1)]
        if not record.ok:
            return web.Response(status=record.status or 503, text=record.message)
        content_type = {"Content-Type": record.content_type} if record.content_type else {}
        return web.Response(body=record.body, headers=content_type)

    app = web.Application(middlewares=refuse_others(HOST))
    app.router.add_get("/metrics", metrics)
    return app
