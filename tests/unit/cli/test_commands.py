"""The commands on recorded incidents, as a user would type them."""

import asyncio
import json
import os
import re
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler
from msgspec.structs import replace
from rich.console import Console

from kvitals.app.agent_client import AgentRefusedError
from kvitals.app.comparison import SignalPair, change, differences
from kvitals.app.demo import FOLDER, HEAVY_TENANT, incidents
from kvitals.app.pipeline import Setup
from kvitals.app.serve_recorded import read_pages, serve
from kvitals.app.sources.live import Collector, Contact, agent_document, is_agent, of_one_look
from kvitals.config import Config
from kvitals.diagnoser.batch_signals import Ahead
from kvitals.diagnoser.judgement import Judgement
from kvitals.rules.finding import encode
from kvitals.rules.loader import load
from kvitals.series.promql import PromQLError, QueryLimitError
from kvitals.series.types import Labels
from kvitals.ui.cli.compare import ROWS
from kvitals.ui.cli.main import main
from kvitals.ui.cli.render import spark
from tests.support.processes import free_port
from tests.support.recordings import judge, setup


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code, capsys.readouterr().out


@pytest.mark.usefixtures("shared_verdicts")
def test_triage_puts_verdict_proof_levers_and_ruled_out_in_this_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "triage", "-v", str(HEAVY_TENANT))
    assert code == 1
    places = [out.index(word) for word in ("✗ ", "KVC01", "PROOF", "EXPLAINS", "DO, in this order", "RULED OUT")]
    assert places == sorted(places)
    assert "\x1b[" not in out  # colour only on a terminal


@pytest.mark.usefixtures("shared_verdicts")
def test_a_healthy_engine_is_exit_code_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "triage", str(FOLDER / "healthy.kvcap"), "--slo", "ttft=1s", "--slo", "itl=300ms")
    assert code == 0
    assert "✓ No trouble found" in out


@pytest.mark.usefixtures("shared_verdicts")
def test_the_baseline_of_an_incident_is_not_the_incident(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(capsys, "triage", str(HEAVY_TENANT), "--at", "+55s", "--json")
    assert json.loads(out)["causes"] == []


def test_a_window_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(capsys, "triage", str(HEAVY_TENANT), "--from", "+90s", "--to", "+110s", "--json")
    document = json.loads(out)
    assert document["window"]["seconds"] == pytest.approx(20, abs=0.01)
    assert document["causes"][0]["code"] == "KVC01"


@pytest.mark.usefixtures("shared_verdicts")
def test_compare_shows_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "compare", f"{HEAVY_TENANT}@+55s", str(HEAVY_TENANT))
    assert code == 0
    assert "KV usage p90" in out
    assert not [line for line in out.splitlines() if line.startswith("slots ")]  # the same on both sides


def test_differences_are_ranked_and_one_sided_ones_come_last() -> None:
    a = {"a": {"x": 1.0}, "b": {"x": 10.0}, "c": {"x": 5.0}, "d": {"x": 1.0}}
    b = {"a": {"y": 100.0}, "b": {"y": 20.0}, "c": {"y": 5.1}, "e": {"y": 2.0}}
    found = [(one.signal, one.a, one.b) for one in differences(a, b)]
    assert found == [("a", 1.0, 100.0), ("b", 10.0, 20.0), ("c", 5.0, 5.1), ("d", 1.0, None), ("e", None, 2.0)]


def test_engines_of_one_name_are_compared_each_and_others_by_their_means() -> None:
    two = {"p99": {"one": 1.0, "two": 4.0}}
    assert differences(two, {"p99": {"one": 1.0, "two": 8.0}}) == [
        SignalPair("p99", "two", 4.0, 8.0),
        SignalPair("p99", "one", 1.0, 1.0),
    ]
    assert differences(two, {"p99": {"three": 5.0, "four": 5.0}}) == [SignalPair("p99", "mean of 2 and 2", 2.5, 5.0)]


def test_replay_tells_the_course(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "replay", str(HEAVY_TENANT))
    assert code == 1
    assert "No trouble found" in out
    assert out.splitlines()[-1].split()[-1] == "blocks."


def test_record_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.kvcap"
    path.write_text("mine")
    code, _ = run(capsys, "record", "http://127.0.0.1:9", "--out", str(path))
    assert code == 2
    assert path.read_text() == "mine"


def test_a_target_that_never_answered_leaves_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dead.kvcap"
    with pytest.raises(SystemExit) as stop:
        main(["record", "http://127.0.0.1:9", "--out", str(path), "--for", "2s"])
    assert stop.value.code == 3
    assert "at the end: Nothing listens there" in capsys.readouterr().err
    assert not path.exists()


def test_rules_can_be_listed_shown_started_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "KVC01" in run(capsys, "rules", "list")[1]
    assert "What not to do" in run(capsys, "rules", "show", "kvc01")[1]
    assert run(capsys, "rules", "show", "XYZ99")[0] == 2
    assert run(capsys, "rules", "new", "ABC01", "too-many", "--dir", str(tmp_path))[0] == 0
    assert run(capsys, "rules", "test", str(tmp_path)) == (0, "4 cases of 1 rule: all is well\n")
    assert run(capsys, "rules", "new", "KVC01", "again", "--dir", str(tmp_path))[0] == 2


async def test_a_recorded_incident_served_as_a_target_is_an_engine_to_any_tool() -> None:
    port = free_port()
    server = asyncio.create_task(serve(HEAVY_TENANT, port, Console(quiet=True)))
    try:
        await asyncio.sleep(0.3)
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            page = await response.read()
        (_, records) = next(iter(read_pages(HEAVY_TENANT)[0].values()))
        assert page in {r.body for r in records[:3]}
        assert await agent_document(url) is None  # an engine, not an agent
        async with Collector(Setup(load(), Config()), [url]) as collector:
            async for _ in collector.collect(2.0):
                pass
            document = collector.document()
        assert document.coverage.engines[0]["system"] == "vllm"
        assert document.telemetry == []
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


def test_one_look_says_what_shows_if_trouble_lasts() -> None:
    """ "... and counts if it stays so for 2 min" came of each look, and no look could resolve it."""
    full_cache = judge(HEAVY_TENANT, setup()).document
    waiting = replace(full_cache, healthy=None)
    early = Judgement(load().rules["LAT01"], Labels({"engine": "e"}), "clear", "true for 0 s", None, early=0.0)
    assert (
        of_one_look(waiting, [early]).coverage.warnings[-1] == "one look does not show if it lasts; `kvitals run` does"
    )
    assert of_one_look(waiting, [replace(early, early=None)]) is waiting
    assert of_one_look(full_cache, [early]) is full_cache


async def test_the_time_before_the_first_answer_is_not_called_healthy() -> None:
    """An engine that was stopped for 35 s was waited for, and the 12 s after that were "No trouble found"."""
    port = free_port()
    server = asyncio.create_task(serve(HEAVY_TENANT, port, Console(quiet=True)))
    try:
        await asyncio.sleep(0.3)
        asked = Contact.now()._replace(at=time.time() - 7.0)
        async with Collector(Setup(load(), Config()), [f"http://127.0.0.1:{port}"], asked) as collector:
            async for _ in collector.collect(1.0):
                pass
            document = collector.document()
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    (silence,) = collector.pipeline.losses
    assert (
        silence.hides and silence.start == asked.at and silence.end >= document.window.start
    )  # so no verdict is healthy
    assert any(re.search(r"gave no answer for the first [78] s$", one) for one in document.coverage.warnings)


async def test_what_this_process_took_itself_is_no_silence_of_the_engine() -> None:
    """On a busy machine each look said "gave no answer for the first 15 s" of engines with a TTFT p99 of 0.3 s."""
    port = free_port()
    server = asyncio.create_task(serve(HEAVY_TENANT, port, Console(quiet=True)))
    try:
        await asyncio.sleep(0.3)
        now = Contact.now()
        asked = Contact(now.at - 7.0, now.own - 6.0)
        async with Collector(Setup(load(), Config()), [f"http://127.0.0.1:{port}"], asked) as collector:
            async for _ in collector.collect(1.0):
                pass
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    assert not collector.pipeline.losses


async def test_an_engine_is_asked_for_nothing_that_it_does_not_have() -> None:
    """Each look at a vLLM was two 404s there, and ENG09 told them as errors of its clients."""
    asked: list[str] = []

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n")

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked.append(request.path)
        return await handler(request)

    app = web.Application(middlewares=[noted])
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        assert await agent_document(url) is None
        assert not await is_agent(url)
    assert set(asked) == {"/metrics"}


def test_what_ships_is_small() -> None:
    assert all(path.stat().st_size < 400_000 for path in incidents())


def test_a_spark_line_begins_at_zero() -> None:
    assert spark([0.0, 1.0, 2.0, 4.0]) == "▁▃▅█"
    assert spark([1.0, 1.0]) == ""
    assert spark([0.02, 0.02, 0.02], unit="ratio") == "▁▁▁", "a hit rate of 2 % is no full bar"
    assert spark([0.98, 0.5, 2.0], unit="ratio") == "▄▃█"
    assert spark([-1e308, 0.0, 1e308]) == "▁▁█"


async def test_the_answer_of_an_agent_is_taken_whole() -> None:
    """The document comes in several parts, as one of a busy node does."""
    document = judge(HEAVY_TENANT, setup()).document
    body = encode(document)

    async def findings(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for start in range(0, len(body), 4096):
            await response.write(body[start : start + 4096])
            await asyncio.sleep(0.001)
        return response

    app = web.Application()
    app.router.add_get("/api/v1/findings", findings)
    async with TestServer(app) as server:
        assert await agent_document(str(server.make_url("/"))) == document


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [("unavailable", 503, "no findings yet"), ("timeout", 503, "no diagnosis this time: the query took too long")],
)
async def test_an_agent_without_a_document_is_no_engine(kind: str, status: int, error: str) -> None:
    async def findings(_: web.Request) -> web.Response:
        return web.json_response({"status": "error", "errorType": kind, "error": error}, status=status)

    app = web.Application()
    app.router.add_get("/api/v1/findings", findings)
    async with TestServer(app) as server:
        with pytest.raises(AgentRefusedError, match=error):
            await agent_document(str(server.make_url("/")))


async def test_what_is_busy_and_no_agent_is_none() -> None:
    app = web.Application()
    app.router.add_get("/api/v1/findings", _busy)
    async with TestServer(app) as server:
        assert await agent_document(str(server.make_url("/"))) is None


async def _busy(_: web.Request) -> web.Response:
    return web.json_response({"detail": "busy"}, status=503)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            QueryLimitError("the query took too long: select fewer series"),
            "kvitals: not diagnosed, perhaps because the machine is too busy: the query took too long: select fewer"
            " series",
        ),
        (
            PromQLError("vector cannot contain metrics with the same labelset"),
            "kvitals: not diagnosed: an expression of the rules cannot be evaluated over these series: vector cannot"
            " contain metrics with the same labelset. This is a defect of the rule or of kvitals: report it with the"
            " labels of these series",
        ),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [["triage", str(HEAVY_TENANT)], ["replay", str(HEAVY_TENANT)], ["compare", str(HEAVY_TENANT), str(HEAVY_TENANT)]],
)
def test_a_query_that_cannot_be_answered_is_a_message_with_its_reason(
    arguments: list[str],
    error: PromQLError,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def observe(*_: object) -> None:
        raise error

    monkeypatch.setattr(Ahead, "observe_steps", observe)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 3
    assert capsys.readouterr().err.splitlines()[-1] == says


async def test_a_look_that_can_not_be_answered_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(*_: object) -> None:
        raise PromQLError("the query took too long")

    monkeypatch.setattr(Ahead, "observe_steps", observe)
    monkeypatch.setattr("kvitals.app.sources.live.FIRST_LOOK_SECONDS", 0.0)
    monkeypatch.setattr("kvitals.agent.watched_targets.WatchedTargets.no_engine", False)
    async with Collector(Setup(load(), Config()), [f"http://127.0.0.1:{free_port()}"]) as collector:
        assert [done async for done in collector.collect(0.0)]
        with pytest.raises(PromQLError):
            collector.document()


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (None, 1.0, "known in B only"), (2.0, None, "known in A only"), (0.0, 3.0, "not zero"),
        (3.0, 0.0, "zero"),
        (0.0, 0.0, ""), (1.0, 2.0, "2.0 times A"), (1.0, 1.04, "about A"),
        (2.0, 1.0, "A / 2.0"), (0.5, -0.5, "of the other sign"),
        (1.0, float("inf"), ""), (float("inf"), 1.0, ""),
    ],
)  # fmt: skip
def test_a_change_in_words(a: float | None, b: float | None, text: str) -> None:
    assert change(a, b) == text


def test_what_is_beyond_every_bucket_differs_most() -> None:
    found = differences({"x": {"e": float("inf")}, "y": {"e": 1.0}}, {"x": {"e": 2.0}, "y": {"e": 3.0}})
    assert [one.signal for one in found] == ["x", "y"]


def test_compare_names_the_window_and_the_entity_of_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "compare", f"{HEAVY_TENANT}@+20s", str(HEAVY_TENANT))
    assert code == 0
    lines = out.splitlines()
    head = next(line for line in lines if line.startswith("signal "))
    assert head.split() == ["signal", "of", "A", "B", "B", "is", "over"]
    rows = lines[lines.index(head) + 1 : -1]
    assert len(rows) == ROWS
    assert rows[0].startswith("TTFT p99 ") and rows[0].rstrip().endswith("20 s / 60 s")
    assert "objectives: ttft_p99 2 s" in out
    assert lines[-1].endswith("more signals differ by 10 % or more: --all")


def test_compare_shows_an_engine_busy_that_ran_requests_all_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    heavy = str(HEAVY_TENANT.parent / "heavy_tenant.kvcap")
    _, out = run(capsys, "compare", heavy, heavy, "--all")
    row = next(line for line in out.splitlines() if line.startswith("busy share"))
    assert float(row.split()[3]) > 50


def test_a_pipe_and_a_directory_are_not_called_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, problem in (("pipe", "not a regular file"), (".", "a directory, not a file"), ("none", "no such file")):
        with pytest.raises(SystemExit) as stop:
            main(["config", "check", str(tmp_path / path)])
        assert stop.value.code == 2
        assert problem in capsys.readouterr().err
