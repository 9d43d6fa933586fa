"""`kvitals trace`: requests of a recording and of an agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.exports.api import build_app
from agent.exports.requests import Requests
from agent.requests.part import PartsRecord
from agent.requests.record import RequestRecord
from agent.requests.store import Store
from agent.service import encode
from series.capture import CaptureWriter
from series.window import Window
from tests.unit.requests.parts import llm, one, tap
from ui.cli.main import main
from ui.requests import Asked, RequestsError, of_agent

T = 1_790_000_000.0


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "requests.kvcap"
    with CaptureWriter(path, version="0", meta={"targets": []}) as writer:
        for n in range(5):
            t = T + n
            parts = tap(n, t, start=t - 0.46 - n, model="\x1b[31m[red]m"), llm(n, t)
            writer.write(encode(PartsRecord(t=t, source="tap", parts=parts)))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["trace", *arguments])
    assert isinstance(stop.value.code, int)
    told = capsys.readouterr()
    return stop.value.code, told.out, told.err


def test_one_request_of_a_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "req-2", str(recording))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("req-2  success 200  2.46 s  first token 233.9 ms")
    names = [line.split()[0] for line in lines if "█" in line]
    assert names == ["gateway", "queue", "prefill", "decode", "unattributed"]
    assert "\x1b" not in out
    assert "[red]m" in out


def test_the_slowest_and_the_newest(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--slowest", "--newest"):
        code, out, _ = run(capsys, option, "2", "--json", str(recording))
        assert code == 0
        found = [msgspec.json.decode(line, type=RequestRecord).id for line in out.splitlines()]
        assert found == ["req-4", "req-3"]


def test_none_is_no_error_and_says_where_requests_come_from(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "nobody", str(recording))
    assert code == 3
    assert "docs/requests.md" in out


@pytest.mark.parametrize(
    "arguments", [(), ("--slowest", "0"), ("--newest", "1", "a", "b"), ("a", "b", "c"), ("x", "http://127.0.0.1:9")]
)
def test_bad_use_says_what_to_do(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.startswith("kvitals: ")


async def test_of_an_agent_with_the_tenants_name() -> None:
    store = Store()
    store.add(one(tap(1, T), llm(1, T)))
    app = build_app(
        Window(60, 10),
        {},
        findings=lambda: None,
        ready=lambda: True,
        requests=Requests(store=lambda: store, resolve={"t-aaaaaaaaaa": "acme"}.get),
    )
    async with TestServer(app) as server:
        (told,) = await of_agent(str(server.make_url("/")), Asked(slowest=3))
        assert told.record == store.newest(1)[0]
        assert told.tenant_name == "acme"
        assert await of_agent(str(server.make_url("/")), Asked(name="nobody")) == []


async def test_what_is_no_agent() -> None:
    async def other(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps([1]))

    app = web.Application()
    app.router.add_get("/api/v1/requests", other)
    async with TestServer(app) as server:
        with pytest.raises(RequestsError, match="is it a kvitals agent"):
            await asyncio.wait_for(of_agent(str(server.make_url("/")), Asked(newest=1)), 10)
