"""The API over a small window, and what it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.rules.model import Family
from kvitals.series.types import Labels
from kvitals.series.window import Window

FAMILIES = {
    "kvitals_running": Family(type="gauge", unit="requests", meaning="Running\n requests."),
    "kvitals_ttft_seconds": Family(type="histogram", unit="seconds", meaning="TTFT."),
    "kvitals_engine_info": Family(type="info", unit="bool", meaning="Engine."),
}
NOW = 1_000_100.0
WIDE = " or ".join(f'label_replace(vector(1), "n", "{n}", "", "")' for n in range(8))
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

Client = TestClient[web.Request, web.Application]


def window() -> Window:
    """Two engines with ten samples 10 s apart, the last at NOW."""
    made = Window(1800, 100)
    group = made.group("a")
    columns = [group.column(Labels({"__name__": "kvitals_running", "engine": engine})) for engine in ("a", "b")]
    for n in range(11):
        group.append(NOW - 100 + 10 * n, [c for c in columns if c is not None], [float(n), 2.0 * n])
    return made


@asynccontextmanager
async def serving(source: Any = None, **more: Any) -> AsyncIterator[Client]:
    options = {"findings": lambda: b'{"healthy":true}', "ready": lambda: True, "clock": lambda: NOW, **more}
    app = build_app(ApiParts(source if source is not None else window(), FAMILIES, **options))
    async with TestClient(TestServer(app)) as client:
        yield client


async def data_of(client: Client, path: str, **parameters: Any) -> Any:
    async with client.get(f"/api/v1/{path}", params=parameters) as answer:
        body = await answer.json()
        assert (answer.status, body["status"]) == (200, "success"), body
        return body["data"]


async def error_of(client: Client, path: str, **parameters: Any) -> tuple[int, str, str]:
    async with client.get(f"/api/v1/{path}", params=parameters) as answer:
        body = await answer.json()
        assert body["status"] == "error" and body.keys() == {"status", "errorType", "error"}
        return answer.status, body["errorType"], body["error"]
