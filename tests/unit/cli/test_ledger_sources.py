"""Where `kvitals whatif` and `curve` have look-ups from: a recording, and an agent that serves the same."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.ledger import LedgerApi, add_ledger_routes
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.app import ledger
from kvitals.app.agent_client import NotKvitalsError
from kvitals.app.cache import replay_ledger
from kvitals.kvcache.accesses import COLUMNS

THRASH = Path(__file__).parents[2] / "captures" / "ledger" / "thrash.kvcap"


def serving(side: LedgerSide | None) -> TestServer:
    """An agent, as far as these commands ask it."""

    async def build(_: web.Request) -> web.Response:
        return web.json_response({"status": "success", "data": {"revision": "kvitals 0.1.0"}})

    app = web.Application()
    app.router.add_get("/api/v1/status/buildinfo", build)
    add_ledger_routes(app.router, LedgerApi(lambda: side))
    return TestServer(app)


async def test_an_agent_gives_the_look_ups_that_its_recording_does() -> None:
    side, _ = replay_ledger(THRASH)
    assert side is not None
    recorded = ledger.of_recording(THRASH)
    async with serving(side) as server:
        told = await asyncio.to_thread(ledger.of_agent, str(server.make_url("/")))
    assert told.pool == recorded.pool is not None
    for name in (*COLUMNS, "start", "block"):
        np.testing.assert_array_equal(getattr(told.accesses, name), getattr(recorded.accesses, name))
    assert told.accesses.observed == recorded.accesses.observed


async def test_an_agent_that_heard_of_no_block_says_what_is_missing() -> None:
    async with serving(None) as server:
        with pytest.raises(ledger.LedgerError, match="publish KV events"):
            await asyncio.to_thread(ledger.of_agent, str(server.make_url("/")))


async def test_what_answers_otherwise_is_no_agent() -> None:
    async with TestServer(web.Application()) as server:
        with pytest.raises(NotKvitalsError, match="is not a kvitals agent"):
            await asyncio.to_thread(ledger.of_agent, str(server.make_url("/")))
