"""The API of a pipeline at rest, as `kvitals run --demo` serves it, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.ledger_api import LedgerApi
from kvitals.agent.exports.requests_api import Requests
from kvitals.app.pipeline import Pipeline
from kvitals.rules.finding import encode

READY_SECONDS = 30.0


@contextmanager
def served(pipeline: Pipeline) -> Iterator[str]:
    """The URL of an agent that shows the last moment that a pipeline judged."""
    loop, ready, urls = asyncio.new_event_loop(), threading.Event(), list[str]()
    ended = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(_app(pipeline))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        urls.append(f"http://{host}:{port}")
        ready.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(READY_SECONDS)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(READY_SECONDS)
        loop.close()


def _app(pipeline: Pipeline) -> web.Application:
    node, span = pipeline.node, pipeline.span
    assert span is not None
    parts = ApiParts(
        pipeline,
        pipeline.setup.knowledge.families,
        findings=lambda: encode(pipeline.triage()),
        ready=lambda: True,
        requests=Requests(store=lambda: node.requests.store, tails=lambda: node.requests.tails.reports),
        ledger=LedgerApi(lambda: node.ledger),
        version="0",
        clock=lambda: span.at,
    )
    return build_app(parts)
