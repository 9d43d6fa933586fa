"""Documents that grow with what is watched are encoded off the loop."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvitals.agent.exports import answers
from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.ledger_api import LedgerApi
from kvitals.agent.exports.requests_api import Requests
from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.requests.store import Store
from kvitals.series.window import Window

LEDGER = SimpleNamespace(report=lambda: {"tenants": {}}, cascades=SimpleNamespace(report=list))


@pytest.mark.parametrize("path", ["rules", "alerts", "requests", "tail", "cache", "cascades"])
async def test_the_document_is_encoded_in_a_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    encode = answers.encode_answer

    def noted(data: object) -> bytes:
        threads.append(threading.get_ident())
        return encode(data)

    monkeypatch.setattr(answers, "encode_answer", noted)
    store = Store()
    groups: list[dict[str, Any]] = [{"name": "latency", "rules": [{"alerts": [{"labels": {}}]}]}]
    app = build_app(
        ApiParts(
            Window(60, 10),
            {},
            findings=lambda: None,
            ready=lambda: True,
            rules=lambda: groups,
            requests=Requests(store=lambda: store),
            ledger=LedgerApi(lambda: cast(LedgerSide, LEDGER)),
        )
    )
    async with TestClient(TestServer(app)) as client, client.get(f"/api/v1/{path}") as answer:
        assert answer.status == 200
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
