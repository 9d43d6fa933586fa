"""What an agent tells over HTTP of the findings and events that it kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvitals.agent.exports import notes as exported
from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.series.history import schema
from kvitals.series.history.event_log import Episode, HistoryEvent, write
from kvitals.series.history.reader import HistoryReader
from kvitals.series.window import Window

Client = TestClient[Any, Any]
HOUR = 3600.0


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    path = tmp_path / "history.db"
    connection = schema.open_for_writing(path)
    document = b'{"code":"KVC01","evidence":[{"lines":[]}],"levers":[]}'
    with schema.transaction(connection):
        for hour in range(3):
            at = 1e9 + hour * HOUR
            write(connection, Episode(f"e{hour}", "KVC01", {"engine": "a"}, at, at + 60.0, hour == 2, document))
            write(connection, HistoryEvent(at, "config", f"change {hour}", "engine", {"engine": "a"}, f"k{hour}"))
        write(connection, Episode("odd", "OWN01", {}, 2e9, 2e9, False, b"of another version"))
    connection.close()
    past = HistoryReader(path)
    app = build_app(ApiParts(Window(60, 10), {}, findings=lambda: None, ready=lambda: True, notes=past))
    async with TestClient(TestServer(app)) as client:
        yield client
    past.close()


async def told(client: Client, path: str, **asked: object) -> tuple[int, Mapping[str, Any]]:
    async with client.get(f"/api/v1/history{path}", params={k: str(v) for k, v in asked.items()}) as answer:
        return answer.status, await answer.json()


async def test_findings_of_a_time_come_without_their_evidence(client: Client) -> None:
    status, answer = await told(client, "/findings", start=1e9 + 30, end=1e9 + HOUR)
    assert status == 200
    assert [(one["key"], one["start"], one["end"], one["open"]) for one in answer["data"]] == [
        ("e0", 1e9, 1e9 + 60, False),
        ("e1", 1e9 + HOUR, 1e9 + HOUR + 60, False),
    ]
    assert answer["data"][0]["finding"] == {"code": "KVC01", "evidence": [], "levers": []}
    assert answer["data"][0]["entity"] == {"engine": "a"}


async def test_a_document_that_nobody_can_read_is_an_empty_one(client: Client) -> None:
    _, answer = await told(client, "/findings", start=1.9e9)
    assert [(one["code"], one["finding"]) for one in answer["data"]] == [("OWN01", {})]


async def test_events_are_of_one_kind_or_of_all(client: Client) -> None:
    _, answer = await told(client, "/events")
    assert [one["text"] for one in answer["data"]] == ["change 0", "change 1", "change 2"]
    assert (await told(client, "/events", kind="restart"))[1]["data"] == []
    assert (await told(client, ""))[1]["data"] is None  # no row of a series


async def test_what_is_too_much_or_not_to_be_understood_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await told(client, "/findings", start="soon"))[0] == 400
    assert (await told(client, "/findings", kind="x"))[0] == 400
    monkeypatch.setattr(exported, "MOST", 2)
    status, answer = await told(client, "/findings")
    assert (status, answer["error"].split(":")[0]) == (400, "more than 2 in that time range")


async def test_without_a_history_there_is_no_such_path() -> None:
    app = build_app(ApiParts(Window(60, 10), {}, findings=lambda: None, ready=lambda: True))
    async with TestClient(TestServer(app)) as client, client.get("/api/v1/history") as answer:
        assert answer.status == 404


async def test_a_history_that_can_not_be_read_says_so(tmp_path: Path) -> None:
    past = HistoryReader(tmp_path / "none.db")
    app = build_app(ApiParts(Window(60, 10), {}, findings=lambda: None, ready=lambda: True, notes=past))
    async with TestClient(TestServer(app)) as client:
        status, answer = await told(client, "/findings")
    assert status == 503 and "none.db" in answer["error"]
