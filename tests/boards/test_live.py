"""A real Prometheus that scrapes an agent and the two vLLM engines that it watches, and a few engines more: recorded
pages at real speed."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards.alerts_files import Groups, with_agents, without_agents
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from kvitals.dashboards.board_files import panels_of
from kvitals.rules.loader import load
from tests.boards import manifest
from tests.boards.asking import Asked, Series, asked, draws, series
from tests.boards.sources import RECORDINGS, ROOT
from tests.oracle.oracle_server import Prometheus, prometheus
from tests.support.processes import ended, free_port

SECONDS = 85.0
"""A window of a minute, and what comes before the first sample in it."""

LAST_SIGNAL, LAST_SIGNAL_SECONDS = "min_over_time(kvitals:node_prefix_hit_ratio[1m:1m])", 120.0
"""What has a value last: its samples must fill a minute, and a panel asks for it at whole minutes."""

PLAYING_SECONDS = 95.0
"""The shortest recording has 59 s: at this time after its begin, it is still in a window of a minute."""

SCRAPE_SECONDS, STEP = 2.0, 4.0
STEADY_SECONDS = 16.0
TOLERANCE = 0.05
ENGINES = ("healthy", "few_slots")
"""What the agent watches and Prometheus scrapes too."""

BESIDE = {"pd_healthy": 2, "sglang_working_set": 1}
"""What Prometheus alone scrapes, with the number of its pages: a pair over NIXL, and an SGLang."""

STEADY = "healthy"
RATES = (
    ("overview", "Token throughput: prompt and generation"),
    ("overview", "Finished requests by reason"),
    ("engines", "Engine steps per second"),
    ("engines", "Batch size: tokens per step"),
    ("engines", "Prefix cache hit rate"),
    ("kv", "Prompt tokens by source"),
)
"""Panels of rates and of shares of rates, which do not hang on when a page was looked at."""

RAW_ENGINE = "127.0.0.1:{port}/0"
_COMMAND = (sys.executable, "-m", "kvitals.ui.cli.main")


@dataclass(frozen=True)
class Live:
    """What runs, and when it had run long enough."""

    server: Prometheus  # scrapes the agent and the engines, and records signals
    bare: Prometheus  # scrapes the engines alone, and records families of their pages
    agent: str  # URL
    ports: dict[str, int]
    now: float
    playing: float  # in the minute before it every recording played: after a last page rates fall to 0


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
    with ExitStack() as stack:
        begun = time.time()
        for name, port in ports.items():
            stack.enter_context(
                _running(folder, "record", "--replay", str(RECORDINGS[name]), "--serve", "--port", str(port))
            )
        for port in ports.values():
            _wait_for(f"http://127.0.0.1:{port}/metrics")
        run = ("run", *pages, "--no-web", "--listen", f"127.0.0.1:{api}", "--config", str(folder / "kvitals.toml"))
        stack.enter_context(_running(folder, *run))
        _wait_for(f"http://127.0.0.1:{api}/-/ready")
        try:
            options = Options(scrape_seconds=SCRAPE_SECONDS)
            agents, engines = with_agents(load(), options)[0], without_agents(load(), options)[0]
            place = _made(folder, "with")
            server = stack.enter_context(prometheus(place, _config(scraped) + _rules(place, agents)))
            place = _made(folder, "without")
            only = {"engines": scraped["engines"]}
            bare = stack.enter_context(prometheus(place, _config(only) + _rules(place, engines)))
        except RuntimeError as error:
            pytest.fail(str(error))
        time.sleep(SECONDS)
        for one in (server, bare):  # each runs its groups at seconds of its own choice
            _wait_for_value(one, LAST_SIGNAL, LAST_SIGNAL_SECONDS)
        time.sleep(2 * STEP)  # panels draw what is at the steps of a range, not what came a moment ago
        now = time.time()
        yield Live(server, bare, f"http://127.0.0.1:{api}", ports, now, min(now, begun + PLAYING_SECONDS))


def _made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def _config(scraped: dict[str, list[str]]) -> str:
    interval = f"scrape_interval: {SCRAPE_SECONDS:g}s, evaluation_interval: {SCRAPE_SECONDS:g}s, scrape_timeout: 1s"
    return f"global: {{{interval}}}\nscrape_configs:\n" + "".join(
        f"- {{job_name: {job}, honor_labels: true, static_configs: [{{targets: {targets!r}}}]}}\n"
        for job, targets in scraped.items()
    )


def _rules(folder: Path, recording: Groups) -> str:
    """The part of a configuration that loads rules."""
    (folder / "recording.yaml").write_text(dump(recording))
    return f"rule_files: [{folder / 'recording.yaml'}]\n"


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


def _wait_for_value(server: Prometheus, query: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not draws(series(server.ask("query", query=query))):
        if time.monotonic() > deadline:
            pytest.fail(f"{query} has no value {SECONDS + seconds:g} s after all was up")
        time.sleep(SCRAPE_SECONDS)


def _ports() -> dict[str, int]:
    """First ports for the recordings, those of one with several pages one after the other."""
    begin = free_port()
    return {name: begin + 4 * i for i, name in enumerate((*ENGINES, *BESIDE))}


def _ask(server: Prometheus, query: Asked, now: float) -> Series:
    path, form = query.parameters(now - STEADY_SECONDS, now, STEP)
    return series(server.ask(path, **form))


@pytest.mark.parametrize("part", ["raw", "live"])
def test_the_panels_draw_that_must(part: str, live: Live, built: dict[str, Any]) -> None:
    server, moments = (live.bare, (live.playing, live.now)) if part == "raw" else (live.server, (live.now,))
    found: dict[str, bool] = {}
    for query in asked(built):
        drawn = any(draws(_ask(server, query, at)) for at in moments)
        found[query.place] = found.get(query.place, False) or drawn
    drawing = sorted(place for place, drawn in found.items() if drawn)
    assert set(manifest.kept(part, drawing)) <= set(drawing)
    if part == "raw":
        empty = found.keys() - set(drawing) - _of_agents(built)
        assert manifest.read()["raw_lacking"].keys() == empty
        assert not set(drawing) & _of_agents(built)


def _of_agents(built: dict[str, Any]) -> set[str]:
    """The panels that say that they need an agent."""
    return {
        f"{Path(path).stem}: {panel['title']}"
        for path, board in built.items()
        for panel in panels_of(board)
        if "Needs an agent" in panel["description"]
    }


def _rates(built: dict[str, Any]) -> dict[tuple[str, str, str], Asked]:
    return {(q.board, q.panel, q.ref): _latest(q) for q in asked(built) if (q.board, q.panel) in RATES}


def _latest(query: Asked) -> Asked:
    """A recorded signal as it is at each moment: the worst minute is the one in which agent and server began."""
    return replace(query, expr=re.sub(r"^m\w+_over_time\((kvitals:.*)\[[^]]*\]\)$", r"\1", query.expr))


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
    queries = _rates(built)
    mine = {key: _levels(_ask(agent, q, live.playing), engine) for key, q in queries.items()}
    agent.close()
    _compare(mine, {key: _levels(_ask(live.server, q, live.playing), engine) for key, q in queries.items()})


def test_rates_of_recorded_families_are_those_of_the_agent(live: Live, built: dict[str, Any]) -> None:
    engine = RAW_ENGINE.format(port=live.ports[STEADY])
    queries = _rates(built)
    mine = {key: _levels(_ask(live.server, q, live.playing), engine) for key, q in queries.items()}
    theirs = {key: _levels(_ask(live.bare, q, live.playing), engine) for key, q in queries.items()}
    _compare(mine, {key: theirs[key] for key in mine})
