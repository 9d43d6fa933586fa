"""The API's request side: what it tells of requests, and whose parts it takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kvitals.agent.exports import requests_api as exported
from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.requests_api import Requests
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.agent.requests.request_families import Exemplar
from kvitals.agent.requests.slow_tail import OFS, GroupValue, Recent, TailReport
from kvitals.agent.requests.store import Store
from kvitals.series.types import Labels
from kvitals.series.window import Window
from tests.support.turns import watched_turns
from tests.unit.requests.parts import one, tap

T = 1_000_000.0
MSGPACK = {"Content-Type": "application/x-msgpack"}
Client = TestClient[web.Request, web.Application]


def body(*parts: RequestPart, source: str = "tap") -> bytes:
    return msgspec.msgpack.encode(PartsRecord(t=T, source=source, parts=parts))


@asynccontextmanager
async def serving(store: Store | None = None, **more: Any) -> AsyncIterator[Client]:
    kept = store or Store()
    requests = Requests(store=lambda: kept, **more)
    app = build_app(ApiParts(Window(60, 10), {}, findings=lambda: None, ready=lambda: True, requests=requests))
    async with TestClient(TestServer(app)) as client:
        yield client


def some() -> Store:
    store = Store()
    for n in range(10):
        store.add(one(tap(n, T + n, start=T + n - 0.1 * (n + 1), tenant=f"t-{n % 2}")))
    return store


async def asked(client: Client, **parameters: str) -> list[dict[str, Any]]:
    async with client.get("/api/v1/requests", params=parameters) as answer:
        assert answer.status == 200
        found: list[dict[str, Any]] = (await answer.json())["data"]["requests"]
        return found


async def test_newest_slowest_and_by_name() -> None:
    async with serving(some()) as client:
        assert [r["id"] for r in await asked(client, newest="2")] == ["req-9", "req-8"]
        assert [r["id"] for r in await asked(client, slowest="2")] == ["req-9", "req-8"]
        assert [r["id"] for r in await asked(client, slowest="2", tenant="t-0")] == ["req-8", "req-6"]
        assert [r["id"] for r in await asked(client, since=str(T + 8))] == ["req-9", "req-8"]
        (found,) = await asked(client, id="req-3")
        assert found["outcome"] == "success"
        assert [r["id"] for r in await asked(client, id=found["trace"])] == ["req-3"]
        assert await asked(client, id="nobody") == []
        assert await asked(client, id="req-3", tenant="t-0") == []
        assert await asked(client, id="req-3", since=str(T + 4)) == []
        assert [r["id"] for r in await asked(client, id="req-3", tenant="t-1", since=str(T + 3))] == ["req-3"]


@pytest.mark.parametrize(
    "query", ["newest=0", "newest=x", "slowest=100000", "worst=3", "since=yesterday", "id=req-3&tenat=t-1"]
)
async def test_what_can_not_be_asked_is_refused(query: str) -> None:
    async with serving(some()) as client, client.get(f"/api/v1/requests?{query}") as answer:
        assert answer.status == 400
        assert (await answer.json())["errorType"] == "bad_data"


async def test_names_are_told_on_this_machine_alone() -> None:
    async with serving(some(), resolve={"t-0": "acme"}.get) as client:
        assert (await asked(client, id="req-2"))[0]["tenant_name"] == "acme"
        assert "tenant_name" not in (await asked(client, id="req-3"))[0]
        async with client.get("/api/v1/requests?id=req-2", headers={"X-Forwarded-For": "10.0.0.1"}) as answer:
            assert "acme" not in await answer.text()


async def posted(data: bytes, headers: dict[str, str] = MSGPACK, **more: Any) -> tuple[int, str]:
    """Status, and what to do."""
    async with (
        serving(**more) as client,
        client.post("/api/v1/parts", data=BytesIO(data), headers=headers) as answer,
    ):
        return answer.status, answer.headers.get("Retry-After", "") + await answer.text()


class TestParts:
    async def test_they_are_taken(self) -> None:
        taken: list[PartsRecord] = []
        assert (await posted(body(tap(1, T)), take=lambda record: not taken.append(record)))[0] == 202
        assert taken[0].parts == (tap(1, T),)

    @pytest.mark.parametrize(
        ("data", "headers", "status"),
        [
            (b"\xc1", MSGPACK, 400),
            (b"", MSGPACK, 400),
            (body(tap(1, T)), {"Content-Type": "text/plain"}, 415),
            (body(tap(1, T), source="otlp"), MSGPACK, 400),
            (body(tap(1, T), source="A b"), MSGPACK, 400),
            (body(tap(1, T, tenant="x" * 500)), MSGPACK, 400),
            (body(tap(1, T, ids=tuple(f"request:{n}" for n in range(50)))), MSGPACK, 400),
            (body(tap(1, T, start=float("nan"))), MSGPACK, 400),
            (body(tap(1, T, model="m" * 200)) * 2, MSGPACK, 400),
            (b"x" * (2 << 20), MSGPACK, 413),
            (body(*[RequestPart(observer="tap", system="s", seen=T)] * (exported.MAX_PARTS + 1)), MSGPACK, 413),
        ],
    )
    async def test_what_can_not_be_taken_is_refused(self, data: bytes, headers: dict[str, str], status: int) -> None:
        taken: list[PartsRecord] = []
        got, told = await posted(data, headers, take=lambda record: not taken.append(record))
        assert (got, taken) == (status, [])
        assert told

    async def test_a_large_message_leaves_the_loop_to_others(self) -> None:
        few, many = (body(*[RequestPart(observer="tap", system="s", seen=T)] * n) for n in (5000, 26_000))
        with watched_turns() as turns:
            assert (await posted(few, take=lambda _: True))[0] == 202
            assert (await posted(many, take=lambda _: True))[0] == 413
        assert turns.longest < 0.1

    async def test_without_room_they_are_to_be_sent_again(self) -> None:
        got, told = await posted(body(tap(1, T)), take=lambda _: False)
        assert got == 429
        assert told.startswith(exported.RETRY_SECONDS)

    async def test_from_elsewhere_with_the_token_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exported, "is_local", lambda _: False)
        token = tmp_path / "token"
        token.write_text("secret\n")
        assert (await posted(body(tap(1, T)), take=lambda _: True))[0] == 403
        for word, status in (("wrong", 403), ("", 403), ("secret", 202)):
            headers = MSGPACK | {"Authorization": f"Bearer {word}"}
            assert (await posted(body(tap(1, T)), headers, take=lambda _: True, token_file=token))[0] == status

    async def test_a_recording_takes_none(self) -> None:
        async with serving() as client, client.post("/api/v1/parts", data=b"", headers=MSGPACK) as answer:
            assert answer.status in (404, 405)


async def test_exemplars_of_the_series_that_a_query_reads() -> None:
    def series(tenant: str) -> Labels:
        return Labels({"__name__": "kvitals_tenant_ttft_seconds_bucket", "tenant": tenant, "le": "0.5"})

    kept = [(series("a"), Exemplar("t1", 0.4, T)), (series("b"), Exemplar("t2", 0.3, T))]
    query = 'histogram_quantile(0.9, rate(kvitals_tenant_ttft_seconds_bucket{tenant="a"}[5m]))'
    async with serving(exemplars=lambda: kept) as client:
        for start, expected in ((T - 1, 1), (T + 1, 0)):
            parameters = {"query": query, "start": str(start), "end": str(T + 5)}
            async with client.get("/api/v1/query_exemplars", params=parameters) as answer:
                data = (await answer.json())["data"]
            assert len(data) == expected
            if data:
                assert data[0]["seriesLabels"]["tenant"] == "a"
                assert data[0]["exemplars"] == [{"labels": {"trace_id": "t1"}, "value": "0.4", "timestamp": T}]


def tails() -> list[TailReport]:
    """Without requests, so unknown, of an engine and of the node."""
    recent = Recent([], T, T + 300)
    return [
        recent.explain(of, over=over)
        for over in ({"engine": "a", "scope": "engine"}, {"engine": "b", "scope": "engine"}, {"scope": "node"})
        for of in OFS
    ]


@pytest.mark.parametrize(
    ("query", "count"), [("", 6), ("?scope=node", 2), ("?scope=engine&of=ttft", 2), ("?engine=a", 2), ("?engine=c", 0)]
)
async def test_why_slow_ones_are_slow(query: str, count: int) -> None:
    async with serving(tails=tails) as client, client.get(f"/api/v1/tail{query}") as answer:
        assert answer.status == 200
        reports = (await answer.json())["data"]["reports"]
        assert len(reports) == count
        assert all(r["sentence"].endswith("is unknown: no request has a reported time.") for r in reports)
        assert all(report in tails() for report in msgspec.convert(reports, list[TailReport]))


@pytest.mark.parametrize("query", ["scope=world", "of=itl", "tenant=t-1"])
async def test_a_tail_that_there_is_not_is_refused(query: str) -> None:
    async with serving(tails=tails) as client, client.get(f"/api/v1/tail?{query}") as answer:
        assert answer.status == 400
        assert (await answer.json())["errorType"] == "bad_data"


async def test_names_of_those_who_wait_are_told_on_this_machine_alone() -> None:
    record = one(tap(0, T, tenant="t-0"))
    report = msgspec.structs.replace(
        tails()[0], groups={"tenant": (GroupValue("t-1", 1, 1, 1.0, 1.0),)}, worst=(record,)
    )
    names = {"t-0": "acme", "t-1": "apex", "t-2": "nobody here"}
    async with serving(tails=lambda: [report], resolve=names.get) as client:
        for headers, told in (({}, {"t-0": "acme", "t-1": "apex"}), ({"X-Forwarded-For": "10.0.0.1"}, {})):
            async with client.get("/api/v1/tail", headers=headers) as answer:
                assert (await answer.json())["data"]["tenant_names"] == told
