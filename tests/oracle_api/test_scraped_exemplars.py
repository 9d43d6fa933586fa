"""A real Prometheus scrapes our OpenMetrics page of a recording, and has then the exemplars that our API tells."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.requests_api import Requests
from kvitals.agent.node import Node
from kvitals.config import Config
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureReader
from tests.oracle.oracle_server import prometheus

RECORDING = Path(__file__).parents[1] / "captures" / "requests" / "tenants.kvcap"
CONFIG = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: kvitals
    static_configs: [{targets: ["127.0.0.1:PORT"]}]
"""
SECONDS = 20.0


def replayed() -> tuple[Node, float]:
    node, last = Node(Config()), 0.0
    with CaptureReader.open(RECORDING) as reader:
        node.expect(reader.header.meta)
        for record in reader:
            node.ingest_recorded(record)
            last = record.t
    return node, last


def told(answer: dict[str, Any]) -> set[tuple[str, str, float, str, float, float]]:
    """Family, whose, bucket, trace, value, time. Prometheus writes buckets as the page has them, 1.0 and not 1."""
    return {
        (
            one["seriesLabels"]["__name__"],
            one["seriesLabels"].get("tenant", one["seriesLabels"].get("phase", "")),
            float(one["seriesLabels"]["le"]),
            exemplar["labels"]["trace_id"],
            float(exemplar["value"]),
            round(float(exemplar["timestamp"]), 3),
        )
        for one in answer["data"]
        for exemplar in one["exemplars"]
    }


@pytest.mark.parametrize(
    "query",
    [
        "kvitals_tenant_ttft_seconds_bucket",
        "kvitals_tenant_itl_seconds_bucket",
        'kvitals_request_phase_seconds_bucket{phase="queue"}',
    ],
)
async def test_what_a_prometheus_scrapes_are_our_exemplars(query: str, tmp_path: Path) -> None:
    node, last = replayed()
    app = build_app(
        ApiParts(
            node.window,
            load().families,
            findings=lambda: None,
            ready=lambda: True,
            requests=Requests(store=lambda: node.requests.store, exemplars=node.requests.exemplars),
            clock=lambda: last,
        )
    )
    asked = {"query": query, "start": f"{last - 3600}", "end": f"{last + 3600}"}
    async with TestServer(app) as server, ClientSession() as session:
        async with session.get(server.make_url("/api/v1/query_exemplars"), params=asked) as answer:
            ours = told(await answer.json())
        config = CONFIG.replace("PORT", str(server.port))
        with prometheus(tmp_path, config, ["--enable-feature=exemplar-storage"]) as theirs:
            deadline = asyncio.get_running_loop().time() + SECONDS
            found: set[tuple[str, str, float, str, float, float]] = set()
            while not found and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.2)
                url = f"http://127.0.0.1:{theirs.port}/api/v1/query_exemplars"
                async with session.get(url, params=asked) as answer:
                    found = told(json.loads(await answer.text()))
    assert len(ours) >= 5
    assert found == ours
