"""`kvitals gate --against URL`: a stand-in engine gets the recorded load, and its pages decide whether it returns."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvitals.agent.records import ScrapeRecord, decode
from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.load.extracted_load import ExtractedLoad, LoadRequest
from kvitals.app.load.gate import GateRequest, compare, play_incident, read_incidents
from kvitals.app.load.load_formats import load_lines
from kvitals.app.load.play import EngineAddress, LoadPlayer, PlayedLoad, PlayLimits, last_part, served_model, token_ids
from kvitals.app.load.recorded_incident import GateCause, GateFigures, RecordedIncident, judge_incident, read_load
from kvitals.app.pipeline import Setup
from kvitals.config import Config
from kvitals.rules.loader import load as load_knowledge
from kvitals.series.recordings import CaptureReader
from kvitals.ui.cli.main import main

CAPTURES = Path(__file__).parents[2] / "captures"
TENANTS = CAPTURES / "requests" / "tenants.kvcap"
KV_FULL = GateFigures(False, [GateCause("KVC01", "KV cache full: requests wait for blocks")], 0.5, 1.0)
HEALTHY = GateFigures(True)


def load(requests: int = 20, seconds: float = 8.0, **other: Any) -> ExtractedLoad:
    every = seconds / (requests - 1)
    made = [LoadRequest(round(n * every, 3), 32, 4, (0, n + 1), **other) for n in range(requests)]
    return ExtractedLoad("x.kvcap", made, 16, "KV events", 1.0, 0, False)


def pages(path: Path) -> list[bytes]:
    """The metrics pages of a recording."""
    with CaptureReader.open(path) as reader:
        records = [decode(record) for record in reader]
    return [record.body for record in records if isinstance(record, ScrapeRecord) and record.ok and record.body]


class StandIn:
    """An engine with the OpenAI API that serves the metrics pages of a recording, one each second."""

    def __init__(
        self,
        bodies: Sequence[bytes],
        answer_seconds: float = 0.0,
        status: int = 200,
        end: bytes = b"data: [DONE]\n\n",
    ) -> None:
        self.asked: list[tuple[float, dict[str, Any], str]] = []
        self.gone = 0
        self._bodies, self._answer_seconds, self._status = bodies, answer_seconds, status
        self._end = end
        self._begun = time.monotonic()

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/completions", self._complete)
        return application

    async def _metrics(self, _: web.Request) -> web.Response:
        page = self._bodies[min(int(time.monotonic() - self._begun), len(self._bodies) - 1)]
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((time.monotonic(), await request.json(), request.headers.get("x-tenant-id", "")))
        if self._status != 200:
            return web.Response(status=self._status)
        answer = web.StreamResponse()
        try:
            await answer.prepare(request)
            await answer.write(b"data: {}\n\n")
            await asyncio.sleep(self._answer_seconds)
            await answer.write(self._end)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        return answer


@asynccontextmanager
async def serving(stand_in: StandIn) -> AsyncIterator[str]:
    runner = web.AppRunner(stand_in.application(), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
def chosen() -> Iterator[Setup]:
    yield Setup(load_knowledge(), Config())


async def played(stand_in: StandIn, what: ExtractedLoad, limits: PlayLimits) -> PlayedLoad:
    async with serving(stand_in) as url:
        player = LoadPlayer(what, EngineAddress(url, await served_model(url)), limits)
        await player.send()
        await player.drain()
        return player.played


async def test_a_play_keeps_arrivals_lengths_tenants_and_prefixes() -> None:
    stand_in = StandIn([b""])
    what = load(5, 1.0, tenant="tenant-1")
    ended = await played(stand_in, what, PlayLimits())
    assert (ended.sent, ended.finished, ended.failed, len(ended.ttft)) == (5, 5, 0, 5)
    times = [at for at, _, _ in stand_in.asked]
    assert times[-1] - times[0] >= 0.9
    bodies = [body for _, body, _ in stand_in.asked]
    assert {(len(body["prompt"]), body["max_tokens"], body["model"]) for body in bodies} == {(32, 4, "tiny")}
    assert len({tuple(body["prompt"][:16]) for body in bodies}) == 1
    assert len({tuple(body["prompt"][16:]) for body in bodies}) == 5
    assert {tenant for _, _, tenant in stand_in.asked} == {"tenant-1"}


@pytest.mark.parametrize(
    ("end", "finished"),
    [
        (b'data: {"choices": [{"text": "", "finish_reason": null}]}\n\n', 0),
        (b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n', 3),
        (b"data: [DONE]\n\n", 3),
        (b"data: [DO", 0),
    ],
)
async def test_a_stream_without_its_end_is_not_a_served_request(end: bytes, finished: int) -> None:
    ended = await played(StandIn([b""], end=end), load(3, 0.1), PlayLimits())
    assert (ended.sent, ended.finished, ended.failed) == (3, finished, 3 - finished)


@pytest.mark.parametrize(
    ("tenant", "sent"),
    [("a\r\nx-other: b", "a%0D%0Ax-other%3A%20b"), ("Zoë", "Zo%C3%AB"), (" a", "%20a"), ("team 1/b", "team 1/b")],
)
async def test_a_tenant_is_sent_as_a_header_can_have_it(tenant: str, sent: str) -> None:
    stand_in = StandIn([b""])
    ended = await played(stand_in, load(2, 0.1, tenant=tenant), PlayLimits())
    assert ended.finished == 2
    assert {name for _, _, name in stand_in.asked} == {sent}


async def test_an_aborted_request_closes_its_connection() -> None:
    stand_in = StandIn([b""], answer_seconds=20.0)
    ended = await played(stand_in, load(3, 0.2, abort_after=0.3), PlayLimits())
    assert (ended.aborted, ended.finished, ended.failed) == (3, 0, 0)
    assert stand_in.gone == 3


async def test_refusals_are_counted_by_status() -> None:
    ended = await played(StandIn([b""], status=400), load(3, 0.1), PlayLimits())
    assert (dict(ended.refused), ended.finished) == ({400: 3}, 0)


async def test_requests_at_a_time_are_bounded_and_the_delay_is_counted() -> None:
    ended = await played(StandIn([b""], answer_seconds=0.5), load(4, 0.01), PlayLimits(concurrency=1))
    assert ended.finished == 4
    assert max(ended.late) > 0.9


def test_another_play_has_other_prompts_with_the_same_structure() -> None:
    what = load(2)
    first, second = what.requests
    assert token_ids(what, first, 1)[:16] == token_ids(what, second, 1)[:16]
    assert token_ids(what, first, 1)[:16] != token_ids(what, first, 2)[:16]


def test_a_long_load_is_cut_to_its_last_part() -> None:
    cut = last_part(load(11, 10.0), PlayLimits(seconds=3.0))
    assert [request.at for request in cut.requests] == [0.0, 1.0, 2.0, 3.0]
    assert cut.truncated


@pytest.mark.parametrize(
    ("recorded", "candidate", "ended", "expected", "why"),
    [
        (KV_FULL, KV_FULL, PlayedLoad(), "returns", ""),
        (KV_FULL, HEALTHY, PlayedLoad(), "does not return", ""),
        (HEALTHY, HEALTHY, PlayedLoad(), "does not return", ""),
        (KV_FULL, GateFigures(False, [GateCause("ENG01", "x")]), PlayedLoad(), "other cause", ""),
        (KV_FULL, GateFigures(None), PlayedLoad(), "not judged", "reports too little"),
        (KV_FULL, KV_FULL, PlayedLoad(late=[0.0] * 50 + [9.0] * 50), "not judged", "s late or more"),
        (KV_FULL, HEALTHY, PlayedLoad(failed=50), "not judged", "50 of 100 requests failed"),
    ],
)
def test_outcomes(recorded: GateFigures, candidate: GateFigures, ended: PlayedLoad, expected: str, why: str) -> None:
    outcome, reason = compare(recorded, candidate, ended, 100)
    assert outcome == expected
    assert why in reason


def test_refused_requests_are_another_load() -> None:
    ended = PlayedLoad()
    ended.refused[400] = 6
    assert compare(KV_FULL, HEALTHY, ended, 100)[0] == "not judged"


@pytest.mark.parametrize(
    ("capture", "outcome"),
    [("heavy_tenant", "returns"), pytest.param("healthy", "does not return", marks=pytest.mark.system)],
)
async def test_the_pages_of_the_candidate_decide(capture: str, outcome: str, chosen: Setup, tmp_path: Path) -> None:
    recorded = pages(HEAVY_TENANT.with_name(f"{capture}.kvcap"))[-14:]
    stand_in = StandIn(recorded)
    idle = _idle(recorded[0])
    stand_in._bodies = [idle] * 3 + list(recorded)
    said: list[str] = []
    async with serving(stand_in) as url:
        request = GateRequest(EngineAddress(url, "tiny"), PlayLimits(), tmp_path)
        answer = await play_incident(RecordedIncident("a.kvcap", load(20, 10.0), KV_FULL), request, chosen, said.append)
    assert answer.outcome == outcome, answer
    assert answer.played is not None and answer.played.finished == 20
    assert (tmp_path / "a.gate.kvcap").exists()


def _idle(page: bytes) -> bytes:
    """The page with no running request."""
    lines = page.decode().splitlines()
    kept = [f"{line.rpartition(' ')[0]} 0" if line.startswith("vllm:num_requests_running") else line for line in lines]
    return ("\n".join(kept) + "\n").encode()


def test_an_extracted_load_states_the_verdict_and_reads_back(chosen: Setup, tmp_path: Path) -> None:
    incident = judge_incident(TENANTS, chosen)
    file = tmp_path / "tenants.jsonl"
    file.write_bytes(b"\n".join(load_lines(incident.load, "kvitals", incident.figures)) + b"\n")
    again = read_load(file)
    assert again.load.requests == list(incident.load.requests)
    assert again.figures == incident.figures
    assert incident.figures is not None and incident.figures.hit_rate is not None


def test_a_recording_without_a_load_is_not_judged_with_its_reason(chosen: Setup) -> None:
    (answer,) = read_incidents([HEAVY_TENANT], chosen)
    assert not isinstance(answer, RecordedIncident)
    assert "a load needs 2" in answer.why


HEADER = '{"kvitals_load":1,"source":"x","block_tokens":16,"prefixes":"unknown"}\n'
ROW = '{"at":0,"prompt_tokens":20,"output_tokens":5,"blocks":[0,1]}\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": 0 lines; a load has a header and from 1 to"),
        (HEADER, ": 1 lines"),
        ('{"kvitals_load": 1}\n' + ROW, ":1: not a line of a kvitals load: Object missing required field"),
        (HEADER.replace(":1,", ":2,") + ROW, ":1: .*kvitals_load"),
        (HEADER.replace('s":16', 's":0') + ROW, ":1: .*block_tokens"),
        (HEADER + ROW + ROW.replace('"at":0', '"at":-1'), ":3: .*at"),
        (HEADER.replace("{", '{"requests":2,', 1) + ROW, ": 1 requests, and its first line states 2"),
        (HEADER + ROW.replace("[0,1]", "[0]"), ":2: 1 blocks; 20 prompt tokens need 2 blocks of 16 tokens"),
        (HEADER + ROW.replace("[0,1]", "[0,-1]"), ":2: .*blocks"),
        (HEADER + ROW.replace("[0,1]", "[" * 100_000), ":2: "),
        (HEADER + ROW.replace('"at":0', '"at":1e400'), ":2: "),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_load_file_with_a_fault_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: str, options: tuple[str, ...]
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["gate", "--against", "http://127.0.0.1:9", str(TENANTS), str(broken), *options])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert re.search(f"{broken.name}{says}", err)


def test_a_dry_run_of_what_cannot_be_played_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["gate", "--against", "http://127.0.0.1:9", str(HEAVY_TENANT), "--dry-run"])
    assert stop.value.code == 3
    assert "not played: " in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--against", "http://127.0.0.1:9"), ("play",)])
def test_a_dry_run_states_the_load_and_sends_nothing(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["gate", *words, str(TENANTS), "--dry-run"])
    assert stop.value.code == 0
    assert "tenants.kvcap: 381 requests in" in capsys.readouterr().out


def test_without_a_candidate_nothing_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["gate", "play", str(TENANTS)])
    assert stop.value.code == 2
    assert "name the candidate with --against URL" in capsys.readouterr().err


def test_a_candidate_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["gate", "--against", "http://127.0.0.1:9", str(TENANTS)])
    assert stop.value.code == 3
    assert "http://127.0.0.1:9/v1/models" in capsys.readouterr().err


def test_what_cannot_be_played_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["gate", "--against", "http://127.0.0.1:9", str(HEAVY_TENANT), "--json"])
    assert stop.value.code == 3
    (answer,) = json.loads(capsys.readouterr().out)["incidents"]
    assert answer["outcome"] == "not judged"
