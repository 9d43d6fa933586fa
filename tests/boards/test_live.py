"""A real Prometheus that scrapes an agent and the two vLLM engines that it watches, and a few engines more: recorded
pages at real speed."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.boards import manifest
from tests.boards.asking import Asked, Series, asked, draws, series
from tests.boards.sources import RECORDINGS, ROOT
from tests.oracle.oracle_server import Prometheus, prometheus
from tests.support.processes import ended, free_port

SECONDS = 85.0
"""A window of a minute, and what comes before the first sample in it."""

SCRAPE_SECONDS, STEP = 2.0, 4.0
STEADY_SECONDS = 16.0
TOLERANCE = 0.05
ENGINES = ("healthy", "few_slots")
"""What the agent watches and Prometheus scrapes too."""

BESIDE = {"pd_healthy": 2, "sglang_working_set": 1}
"""What Prometheus alone scrapes, with the number of its pages: a pair over NIXL, and an SGLang."""

STEADY = "healthy"
RATES = (
    ("overview", "How many tokens go in and come out?"),
    ("overview", "How many requests end a second, and how?"),
    ("engines", "Does the engine step?"),
    ("engines", "How many tokens does a step compute?"),
    ("engines", "How much of the prompts is found?"),
    ("kv", "Where does the prompts' KV come from?"),
)
"""Panels of rates and of shares of rates, which do not hang on when a page was looked at."""

RAW_ENGINE = "127.0.0.1:{port}/0"
_COMMAND = (sys.executable, "-m", "kvitals.ui.cli.main")


@dataclass(frozen=True)
class Live:
    """What runs, and when it had run long enough."""

    server: Prometheus
    agent: str  # URL
    ports: dict[str, int]
    now: float


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    ports = _ports()
    api = free_port()
    pages = [f"http://127.0.0.1:{ports[name]}" for name in ENGINES]
    (folder / "kvitals.toml").write_text("[agent]\ninterval = 2\ndiscover = false\n")
    scraped = {
        "agent": [f"127.0.0.1:{api}"],
        "engines": [f"127.0.0.1:{p + i}" for name, p in ports.items() for i in range(BESIDE.get(name, 1))],
    }
    config = f"global: {{scrape_interval: {SCRAPE_SECONDS:g}s, scrape_timeout: 1s}}\nscrape_configs:\n" + "".join(
        f"- {{job_name: {job}, honor_labels: true, static_configs: [{{targets: {targets!r}}}]}}\n"
        for job, targets in scraped.items()
    )
    with ExitStack() as stack:
        for name, port in ports.items():
            stack.enter_context(_running(folder, "replay", str(RECORDINGS[name]), "--serve", "--port", str(port)))
        for port in ports.values():
            _wait_for(f"http://127.0.0.1:{port}/metrics")
        run = ("run", *pages, "--no-web", "--listen", f"127.0.0.1:{api}", "--config", str(folder / "kvitals.toml"))
        stack.enter_context(_running(folder, *run))
        _wait_for(f"http://127.0.0.1:{api}/-/ready")
        try:
            server = stack.enter_context(prometheus(folder, config))
        except RuntimeError as error:
            pytest.fail(str(error))
        time.sleep(SECONDS)
        yield Live(server, f"http://127.0.0.1:{api}", ports, time.time())


@contextmanager
def _running(folder: Path, *arguments: str) -> Iterator[None]:
    places = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CONFIG", "STATE", "DATA", "CACHE")}
    with (folder / f"{arguments[0]}-{time.monotonic_ns()}.log").open("wb") as out:
        command, env = [*_COMMAND, *arguments], {**os.environ, **places}
        with ended(subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=env)):
            yield


def _wait_for(url: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                answer.read()
                return
        except OSError:
            if time.monotonic() > deadline:
                pytest.fail(f"{url} does not answer")
            time.sleep(0.2)


def _ports() -> dict[str, int]:
    """First ports for the recordings, those of one with several pages one after the other."""
    begin = free_port()
    return {name: begin + 4 * i for i, name in enumerate((*ENGINES, *BESIDE))}


def _ask(server: Prometheus, query: Asked, now: float) -> Series:
    path, form = query.parameters(now - STEADY_SECONDS, now, STEP)
    return series(server.ask(path, **form))


@pytest.mark.parametrize(("flavour", "part"), [("raw", "raw"), ("agent", "live")])
def test_the_panels_draw_that_must(flavour: str, part: str, live: Live, built: dict[str, Any]) -> None:
    found: dict[str, bool] = {}
    for query in asked(built, flavour):
        drawn = draws(_ask(live.server, query, live.now))
        found[query.place] = found.get(query.place, False) or drawn
    drawing = sorted(place for place, drawn in found.items() if drawn)
    assert set(manifest.kept(part, drawing)) <= set(drawing)
    if flavour == "raw":
        assert manifest.read()["raw_lacking"].keys() == found.keys() - set(drawing)


def _rates(built: dict[str, Any], flavour: str) -> dict[tuple[str, str, str], Asked]:
    return {(q.board, q.panel, q.ref): q for q in asked(built, flavour) if (q.board, q.panel) in RATES}


def _levels(found: Series, engine: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The median of each of an engine's series, by its other labels."""
    return {
        tuple((k, v) for k, v in labels if k not in ("engine", "node", "instance")): statistics.median(
            v for _, v in points
        )
        for labels, points in found.items()
        if dict(labels).get("engine") == engine
    }


def _compare(mine: dict[Any, dict[Any, float]], theirs: dict[Any, dict[Any, float]]) -> None:
    assert sum(map(len, mine.values())) >= len(RATES)
    for key, levels in mine.items():
        assert levels.keys() == theirs[key].keys(), key
        for labels, level in levels.items():
            assert theirs[key][labels] == pytest.approx(level, rel=TOLERANCE, abs=1e-6), (key, labels)


def test_rates_by_the_agent_are_those_of_prometheus(live: Live, built: dict[str, Any]) -> None:
    agent = Prometheus(int(live.agent.rpartition(":")[2]))
    engine = RAW_ENGINE.format(port=live.ports[STEADY])
    queries = _rates(built, "agent")
    mine = {key: _levels(_ask(agent, q, live.now), engine) for key, q in queries.items()}
    agent.close()
    _compare(mine, {key: _levels(_ask(live.server, q, live.now), engine) for key, q in queries.items()})


def test_rates_of_raw_engines_are_those_of_the_agent(live: Live, built: dict[str, Any]) -> None:
    engine = RAW_ENGINE.format(port=live.ports[STEADY])
    ours, raw = _rates(built, "agent"), _rates(built, "raw")
    mine = {key: _levels(_ask(live.server, q, live.now), engine) for key, q in ours.items()}
    theirs = {key: _levels(_ask(live.server, q, live.now), engine) for key, q in raw.items()}
    _compare({key: mine[key] for key in raw}, theirs)
