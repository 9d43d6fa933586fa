"""Whole trials on an engine that only has a metrics page; a second of it takes a tenth."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from kvitals.app.pipeline import Setup
from kvitals.app.prove import guard_rails, replica, trial
from kvitals.app.prove.journal import lock_trials, prove_directory
from kvitals.app.prove.trial import Trial, TrialRequest
from kvitals.config import Config
from kvitals.diagnoser import change_effect
from kvitals.diagnoser.change_proof import Proof
from kvitals.rules.loader import load

BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class PageEngine:
    """Its requests take as long as the file of its settings says: `TTFT-seconds requests-per-second`. A third number is
    that of the pages after which it goes down, a fourth that of those until it is back."""

    def __init__(self, settings: Path, seed: int) -> None:
        self._settings = settings
        self._draw = random.Random(seed)
        self._last = time.monotonic()
        self._requests, self._seconds = 0.0, 0.0
        self._buckets = [0.0] * (len(BOUNDS) + 1)
        self._prompt = 0.0
        self._pages = 0

    def goes_down(self) -> bool:
        """Whether it is down when the next page is read."""
        words = self._settings.read_text().split()
        self._pages = self._pages + 1 if len(words) > 2 else 0
        after = int(words[2]) if len(words) > 2 else 0
        return len(words) > 2 and after < self._pages <= after + int(words[3])

    def page(self) -> str:
        ttft, rate = map(float, self._settings.read_text().split()[:2])
        now = time.monotonic()
        requests = (now - self._last) * rate * self._draw.uniform(0.9, 1.1)
        ttft *= self._draw.uniform(0.9, 1.1)
        self._last, self._requests, self._seconds = now, self._requests + requests, self._seconds + requests * ttft
        self._prompt += 100 * requests
        for i, bound in enumerate((*BOUNDS, float("inf"))):
            self._buckets[i] += requests * (ttft <= bound)
        labels = 'model_name="m",engine="0"'
        lines = [
            f"vllm:num_requests_running{{{labels}}} 4",
            f"vllm:num_requests_waiting{{{labels}}} 0",
            f"vllm:prompt_tokens_total{{{labels}}} {self._prompt}",
            f"vllm:generation_tokens_total{{{labels}}} {self._prompt}",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {self._requests}',
            f"vllm:num_preemptions_total{{{labels}}} 0",
            "process_start_time_seconds 1000",
        ]
        for i, bound in enumerate((*map(str, BOUNDS), "+Inf")):
            lines.append(f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{bound}"}} {self._buckets[i]}')
        lines.append(f"vllm:time_to_first_token_seconds_sum{{{labels}}} {self._seconds}")
        lines.append(f"vllm:time_to_first_token_seconds_count{{{labels}}} {self._requests}")
        return "\n".join(lines) + "\n"


@asynccontextmanager
async def served(engine: PageEngine) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        if engine.goes_down() and request.transport is not None:
            request.transport.close()
        return web.Response(text=engine.page())

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitals.agent.paths.SYSTEM", tmp_path / "none")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(replica, "SCRAPE_SECONDS", 0.1)
    monkeypatch.setattr(trial, "LEAST_BLOCK_SECONDS", 0.4)
    monkeypatch.setattr(change_effect, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(trial, "CHECK_SECONDS", 0.4)
    monkeypatch.setattr(guard_rails, "WINDOW_SECONDS", 0.8)
    monkeypatch.setattr(trial, "DOWN_SECONDS", 1.0)


SETUP = Setup(load(), Config())
Says = Callable[[str], None]


async def tried(
    folder: Path,
    after: str,
    *,
    then: str = "",
    before: str = "0.4 200",
    most: float = 8.0,
    peers: int = 0,
    limit: float = 20.0,
) -> Proof:
    """A trial that gives the engine other settings; the peers keep theirs. then: what the command runs besides."""
    settings, others = folder / "settings", folder / "others"
    settings.write_text(before)
    others.write_text(before)
    lock = lock_trials(prove_directory())
    assert lock is not None
    async with served(PageEngine(settings, 1)) as url, served(PageEngine(others, 2)) as peer:
        request = TrialRequest(
            url, ("sh", "-c", f"echo {after} > {settings}; {then}"), ("sh", "-c", f"echo {before} > {settings}"),
            (peer,) * peers, before=4.8, most=most, limit=limit,
        )  # fmt: skip
        proof = await asyncio.wait_for(Trial(request, SETUP, print).run(lock), 120.0)
    expected = after if proof.state == "kept" else before
    assert settings.read_text().strip() == expected
    return proof


async def test_a_change_that_helps_stays(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "0.1 200")
    assert (proof.verdict, proof.state) == ("worked", "kept")
    (ttft,) = [one for one in proof.effects if one.metric == "ttft_mean_seconds"]
    assert ttft.low is not None and ttft.high is not None and ttft.low <= -0.75 <= ttft.high < -0.05


@pytest.mark.system
async def test_a_change_that_harms_is_taken_back_although_the_objective_holds(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "1.2 200")
    assert (proof.verdict, proof.state, proof.guard_rail) == ("worse", "rolled back", "")


@pytest.mark.system
async def test_a_broken_objective_ends_it_at_once(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "4.0 200", most=60.0)
    assert (proof.verdict, proof.state) == ("worse", "rolled back")
    assert "TTFT p99" in proof.guard_rail
    assert proof.measured is not None and proof.decided is not None and proof.decided - proof.measured < 20


@pytest.mark.system
async def test_a_standstill_ends_it_at_once(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "0.4 0", most=60.0)
    assert (proof.verdict, proof.state) == ("worse", "rolled back")
    assert "no request finishes" in proof.guard_rail


@pytest.mark.system
async def test_an_engine_that_goes_down_ends_it_at_once(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "0.4 200 10 999", most=60.0)
    assert (proof.verdict, proof.state) == ("worse", "rolled back")
    assert "does not answer" in proof.guard_rail


@pytest.mark.system
async def test_a_page_that_cannot_be_read_once_is_no_restart(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "0.1 200 10 1")
    assert (proof.verdict, proof.guard_rail) == ("worked", "")


@pytest.mark.system
async def test_beside_a_peer_a_change_that_does_nothing_has_no_effect(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "0.4 200.0", peers=1, most=20.0)
    assert (proof.verdict, proof.state) == ("no effect", "rolled back")
    assert proof.peers


@pytest.mark.system
async def test_a_command_that_fails_is_undone_and_undecided(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "0.1 200", then="exit 3")
    assert (proof.verdict, proof.state) == ("undecided", "rolled back")
    assert "exit status 3" in proof.conclusion


@pytest.mark.system
async def test_an_engine_without_requests_after_the_change_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica.Replica, "is_busy", lambda _: False)
    proof = await tried(tmp_path, "0.1 200", limit=2.0)
    assert (proof.verdict, proof.state) == ("undecided", "rolled back")
    assert proof.conclusion == "Undecided: the engine has no requests 2 s after the change."


@pytest.mark.system
async def test_a_supervisor_that_ends_during_the_change_is_undecided_and_undone(tmp_path: Path) -> None:
    proof = await tried(tmp_path, "0.1 200", then="kill -9 $PPID")
    assert (proof.verdict, proof.state) == ("undecided", "rolled back")
    assert proof.conclusion.startswith("Undecided: ") and "supervis" in proof.conclusion
