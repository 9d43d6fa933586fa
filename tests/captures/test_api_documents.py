"""The contract of the agent's API: each answer is of its type, and other versions are read or named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.ledger_api import LedgerApi
from kvitals.agent.exports.requests_api import Requests
from kvitals.app.agent_client import AgentClient, OtherVersionError
from kvitals.app.alerting import groups
from kvitals.app.sources.recording import RecordingVerdict
from kvitals.rules.finding import Triage
from kvitals.series.history import schema
from kvitals.series.history.event_log import Episode, HistoryEvent, write
from kvitals.series.history.new_rows import GroupRows, Tick
from kvitals.series.history.reader import HistoryReader
from kvitals.series.types import METRIC_NAME, Labels
from tests.support import recordings
from tests.support.api_documents import DOCUMENTS, FOR_READERS, unread, with_fewer_fields, with_more_fields
from tests.unit.history.history_stage import history, written

PLAIN = {"findings"}
"""Answers that are the document itself, without the envelope of Prometheus."""


@pytest.fixture(scope="module")
def judged() -> RecordingVerdict:
    return recordings.judged("ledger/thrash")


@pytest.fixture(scope="module")
def past(judged: RecordingVerdict, tmp_path_factory: pytest.TempPathFactory) -> HistoryReader:
    """A history that holds one row, the first cause of the recording and one event."""
    folder = tmp_path_factory.mktemp("past")
    cause, window = judged.document.causes[0], judged.document.window
    kept = history(folder)
    running = [Labels({METRIC_NAME: "kvitals_requests_running", "engine": "engine"})]
    written(kept, Tick(window.start, [GroupRows("g", np.array([window.start]), np.array([[1.0]]), running)]))
    kept.close()
    path = folder / schema.FILE
    connection = schema.open_for_writing(path)
    with schema.transaction(connection):
        document = msgspec.json.encode(cause)
        write(connection, Episode("1", cause.code, cause.entity.labels, window.start, window.end, True, document))
        write(
            connection, HistoryEvent(window.end, "config", "max_num_seqs: 3 -> 32", "engine", cause.entity.labels, "k")
        )
    connection.close()
    return HistoryReader(path)


@pytest.fixture
async def server(judged: RecordingVerdict, past: HistoryReader) -> AsyncIterator[TestServer]:
    pipeline, node = judged.pipeline, judged.pipeline.node
    document = msgspec.json.encode(judged.document)
    parts = ApiParts(
        pipeline,
        pipeline.setup.knowledge.families,
        findings=lambda: document,
        ready=lambda: True,
        rules=lambda: groups(pipeline),
        requests=Requests(
            store=lambda: node.requests.store,
            exemplars=lambda: node.requests.exemplars(),
            tails=lambda: node.requests.tails.reports,
            resolve=lambda tenant: f"name of {tenant}",
        ),
        ledger=LedgerApi(lambda: node.ledger, lambda tenant: f"name of {tenant}"),
        version="0.1.0",
        clock=lambda: judged.document.window.end,
        notes=past,
        since_change=lambda: document,
    )
    app = build_app(parts)
    async with TestServer(app) as server:
        yield server


def routes(app: web.Application) -> set[str]:
    canonical = {resource.canonical for resource in app.router.resources()}
    return {path.removeprefix("/api/v1/") for path in canonical if path.startswith("/api/v1/")}


async def answer_of(server: TestServer, judged: RecordingVerdict, route: str) -> Any:
    """The data of a route's answer."""
    parameters, _ = DOCUMENTS[route]
    window = judged.document.window
    times = {"START": str(window.start), "END": str(window.end)}
    asked = {name: times.get(value, value) for name, value in parameters.items()}
    path = route.replace("{name}", asked.pop("name", ""))
    async with ClientSession() as session, session.get(server.make_url(f"/api/v1/{path}"), params=asked) as answer:
        assert answer.status == 200, await answer.text()
        body = await answer.json()
    return body if route in PLAIN else body["data"]


async def test_every_document_is_of_its_type_and_has_no_other_field(
    server: TestServer, judged: RecordingVerdict
) -> None:
    assert routes(server.app) == {*DOCUMENTS, "accesses"}, "a route without a type"  # accesses: see below
    wrong = []
    for route, (_, kind) in DOCUMENTS.items():
        data = await answer_of(server, judged, route)
        assert data or route in ("query_exemplars", "alerts", "status/runtimeinfo"), f"{route} is empty"
        try:
            left = unread(data, kind) - FOR_READERS.get(route, set())
        except msgspec.ValidationError as error:
            left = {str(error)}
        wrong += [f"{route}: {field}" for field in sorted(left)]
    assert wrong == []


async def test_the_client_reads_every_document(server: TestServer, judged: RecordingVerdict) -> None:
    client, window = AgentClient(str(server.make_url("/")).rstrip("/")), judged.document.window
    questions: dict[str, Callable[[], Any]] = {
        "version": client.version,
        "findings": client.findings,
        "since_change": client.since_change,
        "cache": client.cache,
        "cascades": client.cascades,
        "accesses": client.accesses,
        "requests": lambda: client.requests({"newest": "5"}),
        "tails": lambda: client.tails({}),
        "query_range": lambda: client.query_range("kvitals_requests_running", window.start, window.end, 5.0),
        "history": client.history,
        "episodes": lambda: client.episodes(window.start, window.end),
        "events": lambda: client.events(window.start, window.end + 1.0),
    }
    for name, question in questions.items():
        assert await asyncio.to_thread(question), f"{name} is empty"
    assert await asyncio.to_thread(client.findings) == judged.document


async def asked_of(body: bytes) -> Triage:
    """What a client reads of an agent whose triage document is `body`."""

    async def findings(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async def build(_: web.Request) -> web.Response:
        return web.json_response({"status": "success", "data": {"revision": "kvitals 9.9.9"}})

    app = web.Application()
    app.router.add_get("/api/v1/findings", findings)
    app.router.add_get("/api/v1/status/buildinfo", build)
    async with TestServer(app) as other:
        return await asyncio.to_thread(AgentClient(str(other.make_url("/"))).findings)


async def test_an_agent_of_a_newer_version_has_fields_that_are_left_out(judged: RecordingVerdict) -> None:
    assert await asked_of(msgspec.json.encode(with_more_fields(judged.document))) == judged.document


async def test_an_agent_of_an_older_version_lacks_fields_that_have_a_default(judged: RecordingVerdict) -> None:
    read = await asked_of(msgspec.json.encode(with_fewer_fields(judged.document)))
    assert [cause.code for cause in read.causes] == [cause.code for cause in judged.document.causes]


async def test_an_agent_without_a_field_that_is_needed_is_of_another_version(judged: RecordingVerdict) -> None:
    document = msgspec.to_builtins(judged.document)
    for field in ("verdict", "healthy", "window"):
        body = msgspec.json.encode({**document, "version": "0.1", field: {"nothing": []}})
        with pytest.raises(OtherVersionError, match=r"version 0\.1 of the triage document"):
            await asked_of(body)
