"""`kvitals trace`: requests of a recording and of an agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.requests_api import Requests
from kvitals.agent.records import encode
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.requests.record import RequestPhase, RequestRecord
from kvitals.agent.requests.slow_tail import Recent, TailReport
from kvitals.agent.requests.store import Store
from kvitals.app.agent_client import NotKvitalsError
from kvitals.app.request_sources import RequestQuery, of_agent
from kvitals.series.recordings import CaptureWriter
from kvitals.series.window import Window
from kvitals.ui.cli.main import main
from kvitals.ui.cli.tails import lines
from tests.unit.requests.parts import llm, one, tap

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
    "arguments", [(), ("--slowest", "0"), ("--newest", "1", "a", "b"), ("a", "b", "c"), ("x", "http://[::1")]
)
def test_bad_use_says_what_to_do(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.startswith("kvitals: ")


async def test_of_an_agent_with_the_tenants_name() -> None:
    store = Store()
    store.add(one(tap(1, T), llm(1, T)))
    app = build_app(
        ApiParts(
            Window(60, 10),
            {},
            findings=lambda: None,
            ready=lambda: True,
            requests=Requests(store=lambda: store, resolve={"t-aaaaaaaaaa": "acme"}.get),
        )
    )
    async with TestServer(app) as server:
        (told,) = (await asyncio.to_thread(of_agent, str(server.make_url("/")), RequestQuery(slowest=3))).requests
        assert told.record == store.newest(1)[0]
        assert told.tenant_name == "acme"
        assert (
            await asyncio.to_thread(of_agent, str(server.make_url("/")), RequestQuery(name="nobody"))
        ).requests == []


@pytest.fixture(scope="module")
def reports() -> list[TailReport]:
    """Of 60 requests the last 6 wait 4 s behind `t-job`, of 40 others."""
    records = []
    for n in range(60):
        slow = n >= 54
        queue, start = (4.0, T + 50.0) if slow else (0.0, T + n)
        phases = tuple(
            RequestPhase(name, seconds, "measured", start=at)
            for name, seconds, at in (
                ("queue", queue, start), ("prefill", 0.2, start + queue), ("decode", 0.8, start + queue + 0.2)
            )
        )  # fmt: skip
        records.append(
            RequestRecord(
                id=f"r-{n}", start=start, end=start + queue + 1.0, complete=True, engines={"unified": "e"},
                tenant="t-chat" if slow or n < 40 else "t-\x1bjob", phases=phases, ttft=queue + 0.2, e2e=queue + 1.0,
                prompt_tokens=1000 if slow else 100, output_tokens=10, status=200,
            )
        )  # fmt: skip
    recent = Recent(records, T, T + 100)
    return [
        recent.explain("ttft", over={"scope": "node"}),
        recent.explain("ttft", engines=["e"], over={"engine": "e", "scope": "engine"}),
    ]


def test_what_explains_the_slow_ones_in_words(reports: list[TailReport]) -> None:
    told = [line.plain for line in lines(reports[0], {"t-chat": "acme"})]
    assert told[0] == ("Slow TTFT, mostly queue: 6 of 60 requests took 4.20 s on average, the faster half 200.0 ms")
    assert told[1] == "  the slowest 5 %, from 4.20 s on; ended 2026-09-21 14:13:21 to 14:14:15 UTC"
    assert [line for line in told if "█" in line] == [f"  queue           +4.00 s   {'█' * 48} 100%"]
    assert [line for line in told if "waited behind" in line] == [
        "  waited behind  t-?job 100% of the tokens held meanwhile; 0% was their own tenant's"
    ]
    assert "  tenant         t-chat (acme): 6 of the slow ones (100%), 77% of all" in told
    assert "  prompt length  513-1024 tokens: 6 of the slow ones (100%), 10% of all" in told


def test_too_few_to_compare_is_said() -> None:
    (told,) = lines(Recent([], T, T + 1).explain("e2e"), {})
    assert told.plain == "Slow end-to-end time: cause unknown, no request has a reported time"


def test_a_recording_of_slow_requests_says_why_before_them(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "captures" / "requests" / "tenants.kvcap"
    code, out, _ = run(capsys, "--slowest", "1", str(path))
    assert code == 0
    first, second, *_ = (line for line in out.splitlines() if line.startswith("Slow "))
    assert first.startswith("Slow TTFT, mostly queue: ")
    assert second.startswith("Slow end-to-end time, mostly queue: ")
    assert out.index(second) < out.index("seen by")
    for asked in (["--newest", "1"], ["--slowest", "1", "--tenant", "t-qsepwb45ry"]):
        assert "Slow " not in run(capsys, *asked, str(path))[1]


async def test_an_agent_says_why_with_names(reports: list[TailReport]) -> None:
    store = Store()
    store.add(one(tap(1, T), llm(1, T)))
    requests = Requests(store=lambda: store, tails=lambda: reports, resolve={"t-chat": "acme"}.get)
    app = build_app(ApiParts(Window(60, 10), {}, findings=lambda: None, ready=lambda: True, requests=requests))
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        found = await asyncio.to_thread(of_agent, url, RequestQuery(slowest=1))
        assert found.tails == reports[:1]  # of the node, not of each engine
        assert found.tenant_names == {"t-chat": "acme"}
        assert (await asyncio.to_thread(of_agent, url, RequestQuery(newest=1))).tails == []


async def test_what_is_no_agent() -> None:
    async def other(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps([1]))

    app = web.Application()
    app.router.add_get("/api/v1/requests", other)
    async with TestServer(app) as server:
        with pytest.raises(NotKvitalsError, match="is not a kvitals agent"):
            await asyncio.to_thread(of_agent, str(server.make_url("/")), RequestQuery(newest=1))
