"""The agent probes a replica that serves nothing while its peers do, where the configuration allows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container
from types import SimpleNamespace
from typing import cast

from aiohttp import web
from aiohttp.test_utils import TestServer

from kvitals.agent.node import Node
from kvitals.agent.records import ProbeRecord
from kvitals.app.runtime.silent_probes import EVERY_SECONDS, MAX_REPLICAS, SILENT, SilentProbes
from kvitals.config import AgentTable, Config, TargetTable
from kvitals.diagnoser.judgement import Judgement
from kvitals.rules.loader import load
from kvitals.series.promql import evaluate
from kvitals.series.types import Labels

RULE = load().rules[SILENT]


class Asked:
    """A node that answers at once; `engines` has what each probe asked."""

    def __init__(self, *, allowed: bool = True) -> None:
        self.config = Config(agent=AgentTable(probe_silent_replicas=allowed))
        self.engines: list[list[str]] = []

    async def probe(self, engines: Container[str]) -> list[ProbeRecord]:
        asked = [name for name in "abcd" if name in engines]
        self.engines.append(asked)
        return [ProbeRecord(t=1.0, target=name, answered=False, seconds=8.0) for name in asked]

    @property
    def node(self) -> Node:
        return cast(Node, SimpleNamespace(config=self.config, probe=self.probe))


def fired(*engines: str) -> list[Judgement]:
    return [Judgement(RULE, Labels({"engine": engine}), "fired", "", None) for engine in engines]


async def answers(probes: SilentProbes) -> list[str]:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return [record.target for record in probes.drain()]


async def test_a_silent_replica_is_probed_once_a_minute() -> None:
    asked, probes = Asked(), SilentProbes()
    probes.start(asked.node, fired("a"), 100.0)
    assert await answers(probes) == ["a"]
    probes.start(asked.node, fired("a"), 105.0)
    assert await answers(probes) == []
    probes.start(asked.node, fired("a"), 100.0 + EVERY_SECONDS)
    assert await answers(probes) == ["a"]


async def test_few_replicas_are_probed_at_a_time() -> None:
    asked, probes = Asked(), SilentProbes()
    probes.start(asked.node, fired("a", "b", "c"), 100.0)
    probes.start(asked.node, fired("a", "b", "c"), 105.0)  # the first probe is under way
    assert len(await answers(probes)) == MAX_REPLICAS
    probes.start(asked.node, fired("a", "b", "c"), 110.0)
    assert await answers(probes) == ["c"]


async def test_without_leave_nothing_is_sent() -> None:
    asked, probes = Asked(allowed=False), SilentProbes()
    probes.start(asked.node, fired("a"), 100.0)
    assert await answers(probes) == []
    assert asked.engines == []
    assert Config().agent.probe_silent_replicas is False


async def test_an_engine_that_serves_is_not_asked() -> None:
    asked, probes = Asked(), SilentProbes()
    clear = [Judgement(RULE, Labels({"engine": "a"}), "clear", "", None)]
    probes.start(asked.node, clear, 100.0)
    assert asked.engines == []


PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 7
"""


async def test_a_node_asks_the_engines_that_are_named_and_no_others() -> None:
    sent: list[object] = []

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    async def completion(request: web.Request) -> web.Response:
        sent.append((await request.json())["max_tokens"])
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/metrics", page)
    app.router.add_post("/v1/completions", completion)
    async with TestServer(app) as server:
        target = TargetTable(url=str(server.make_url("/metrics")), name="one")
        node = Node(Config(agent=AgentTable(discover=False), targets=(target,)))
        await node.open()
        try:
            for record in await node.collect():
                node.ingest(record)
            assert await node.probe({"two"}) == []
            assert sent == []
            up = evaluate("kvitals_target_up", node.window, time.time())
            assert not isinstance(up, float)
            (engine,) = [labels["engine"] for labels in up.labels]
            assert [answer.answered for answer in await node.probe({engine})] == [True]
            assert sent == [1]
        finally:
            await node.close()


async def test_a_probe_that_is_refused_shows_nothing_and_one_that_fails_does() -> None:
    """An engine that answered 500 was "No trouble found"; one that asks for a key answers 401 to a probe without it."""
    statuses = [500, 401]

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    async def completion(_: web.Request) -> web.Response:
        return web.Response(status=statuses.pop(0))

    app = web.Application()
    app.router.add_get("/metrics", page)
    app.router.add_post("/v1/completions", completion)
    async with TestServer(app) as server:
        target = TargetTable(url=str(server.make_url("/metrics")), name="one")
        node = Node(Config(agent=AgentTable(discover=False), targets=(target,)))
        await node.open()
        seen = []
        try:
            for record in await node.collect():
                node.ingest(record)
            for _ in range(2):
                (answer,) = await node.probe()
                node.ingest(answer)
                for record in await node.collect():
                    node.ingest(record)
                found = evaluate("kvitals_probe_success", node.window, time.time())
                assert not isinstance(found, float)
                seen.append((answer.status, answer.refused, list(found.values)))
        finally:
            await node.close()
    assert seen == [(500, False, [0.0]), (401, True, [])]
