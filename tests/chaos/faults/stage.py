"""The processes of a situation, and what is asked of them. All on loopback, in one folder; all end with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.requests.clients import HOST
from tests.chaos.requests.pages import Page
from tests.chaos.requests.stage import Program, StageError, _die_with_us, free_port

ROOT = Path(__file__).parents[3]
KVITALS = [sys.executable, "-m", "kvitals.ui.cli.main"]  # of the tree that this is in
INTERVAL = 1.0
TIMEOUT = 0.6
"""Of one scrape: shorter than the interval, so that an engine that hangs delays no look."""
OBJECTIVES = "[slo]\nttft_p99_seconds = 0.01\nitl_p99_seconds = 0.001\n"
"""Of an agent's configuration: what no engine reaches, so that LAT02 is open (`for: 30s`) as long as it works."""
LATE_SECONDS = 2.5
"""By how much a look may be late on a machine with other work, beyond the interval."""
START_SECONDS = 30.0
STALL_SECONDS = float(os.environ.get("KVITALS_CHAOS_STALL_SECONDS", "0.1"))
"""CPU time for which an agent's loop may do one thing; ten times as long by the clock, for a busy machine."""


@dataclass
class Told:
    """What a situation found."""

    broken: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)


class CannotRunError(Exception):
    """This machine does not have, or does not allow, what a situation needs. The message says what."""


@dataclass
class Agent:
    """A running agent."""

    program: Program
    port: int
    home: Path
    session: aiohttp.ClientSession

    async def get(self, path: str, **parameters: str) -> Any:
        """An answer of its API as JSON. Raises aiohttp.ClientError and TimeoutError."""
        async with self.session.get(f"http://{HOST}:{self.port}{path}", params=parameters) as answer:
            return await answer.json()

    async def page(self) -> Page:
        """Its own /metrics."""
        async with self.session.get(f"http://{HOST}:{self.port}/metrics") as answer:
            return Page(await answer.text())

    async def query(self, query: str, at: float | None = None) -> list[dict[str, Any]]:
        """The series of an instant query."""
        asked = {"query": query} | ({"time": f"{at:.3f}"} if at is not None else {})
        return list((await self.get("/api/v1/query", **asked))["data"]["result"])

    async def value(self, query: str, at: float | None = None) -> float | None:
        """The one value of a query; None where there is none."""
        found = await self.query(query, at)
        return float(found[0]["value"][1]) if found else None

    async def times(self, selector: str, seconds: float) -> list[float]:
        """When a series had samples, over the last seconds."""
        found = await self.query(f"{selector}[{seconds:.0f}s]")
        return [float(t) for t, _ in found[0]["values"]] if found else []

    async def findings(self) -> dict[str, dict[str, Any]]:
        """All open findings by code and engine."""
        document = await self.get("/api/v1/findings")
        groups = ("causes", "symptoms", "telemetry", "notes")
        return {
            f"{one['code']} {one['entity']['labels'].get('engine', '')}": one
            for group in groups
            for one in document.get(group, ())
        }

    async def text(self, path: str) -> str:
        """An answer as text, whatever its status."""
        async with self.session.get(f"http://{HOST}:{self.port}{path}") as answer:
            return await answer.text()

    @property
    def said(self) -> str:
        """What it wrote on the terminal."""
        return self.program.log.read_text(errors="replace")


class Stage:
    """What a situation runs. `folder`: all that it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session: aiohttp.ClientSession
        self._programs: list[Program] = []
        self._agents: list[Agent] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Stage]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as self.session:
            try:
                yield self
            finally:
                for program in reversed(self._programs):
                    await program.kill()

    async def engine(
        self, port: int, version: str = "0.32.0", seed: int = 1, host: str = HOST, before: Sequence[str] = ()
    ) -> Program:
        """An engine under load. before: what its command is given to."""
        command = [sys.executable, "-m", "tests.chaos.faults.engine", str(port), f"--seed={seed}", f"--host={host}"]
        whole = [*before, *command, f"--version={version}"]
        return await self.start(f"engine-{port}", whole, f"http://{host}:{port}/metrics")

    async def replayed(self, port: int, capture: str) -> Program:
        """A recorded engine, served again from the recording's start."""
        command = [*KVITALS, "record", "--replay", "--serve", f"--port={port}", str(ROOT / capture)]
        return await self.start(f"replay-{port}", command, f"http://{HOST}:{port}/metrics")

    async def agent(
        self,
        targets: Mapping[str, int | str],
        *,
        name: str = "agent",
        port: int | None = None,
        scrape_seconds: float = TIMEOUT,
        more: str = "",
        agent_more: str = "",
        before: Sequence[str] = (),
        env: dict[str, str] | None = None,
        history: Path | None = None,
        rules: Path | None = None,
    ) -> Agent:
        """An agent that watches engines, by name and port or URL. scrape_seconds: its time-out of one scrape. more: of
        its configuration; agent_more: of its table [agent]. before: what its command is given to. With the name and
        port of one that ended it is that one, started again."""
        port, home = port or free_port(), self.folder / name
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        config = home / "kvitals.toml"
        watched = "".join(
            f'[[target]]\nname = "{engine}"\nurl = "{at if isinstance(at, str) else f"http://{HOST}:{at}"}"\n'
            for engine, at in targets.items()
        )
        config.write_text(
            f'[agent]\nlisten = "{HOST}:{port}"\ninterval = "{INTERVAL:g}s"\ntimeout = "{scrape_seconds:g}s"\n'
            f"discover = false\n{agent_more}"
            + (f'rules = ["{rules}"]\n' if rules else "")
            + f'{watched}[history]\ndirectory = "{history or home / "history"}"\n'
            f"min_free_bytes = 0\n{more}"
        )
        command = [*before, *KVITALS, "run", "--no-web", f"--config={config}"]
        program = await self.start(name, command, f"http://{HOST}:{port}/api/v1/findings", env=env)
        agent = Agent(program, port, home, self.session)
        self._agents.append(agent)
        return agent

    async def loops_were_free(self, told: Told) -> None:
        """No agent that still runs held its loop for long. Waiting for a core on a busy machine is allowed for longer
        than work, and a blocking call for no longer than that."""
        for agent in self._agents:
            if agent.program.ended:
                continue
            longest = 0.0
            for family, limit in (("cpu_", STALL_SECONDS), ("", 10 * STALL_SECONDS)):
                query = f"max(max_over_time(kvitals_loop_stall_{family}seconds[30m]))"
                longest = await agent.value(query) or 0.0
                what = "worked on one thing" if family else "did one thing"
                told.expect(longest < limit, f"the loop of {agent.program.name} {what} for {longest:.2f} s")
            told.said.append(f"longest stall of {agent.program.name} {longest:.2f} s")

    async def start(
        self, name: str, command: Sequence[str], ready: str = "", env: dict[str, str] | None = None
    ) -> Program:
        """A process that answers at `ready`. Raises StageError."""
        home = self.folder / name.partition("-")[0]
        home.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        own = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "TMPDIR": str(self.folder)}
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PATH": os.environ.get("PATH", ""), "NO_COLOR": "1", **own, **(env or {})},
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=_die_with_us,
            )
        program = Program(name, process, log)
        self._programs.append(program)
        if ready:
            await self._answers(program, ready)
        return program

    async def run(self, command: Sequence[str], seconds: float = 60.0) -> tuple[int, str, float]:
        """A command to its end: exit status, what it wrote, seconds."""
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", ""), "NO_COLOR": "1", "HOME": str(self.folder), "COLUMNS": "200"},
            cwd=ROOT,
            preexec_fn=_die_with_us,
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), seconds)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise StageError(f"{' '.join(command[:5])} did not end within {seconds:.0f} s") from None
        return process.returncode or 0, out.decode(errors="replace"), time.monotonic() - began

    async def until(
        self, true: Callable[[], Awaitable[object]], seconds: float, *, also_without_answer: bool = True
    ) -> float | None:
        """How long it took until it was true; None where it did not become so."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            try:
                if await true():
                    return time.monotonic() - began
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError, KeyError):
                if not also_without_answer:
                    raise
            await asyncio.sleep(0.1)
        return None

    async def _answers(self, program: Program, url: str) -> None:
        began = time.monotonic()
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self.session.get(url) as answer:
                    if answer.status == 200:
                        return
            if program.ended or time.monotonic() - began > START_SECONDS:
                raise StageError(f"the {program.name} did not start:\n{program.last_words()}")
            await asyncio.sleep(0.05)


def longest_gap(times: Sequence[float]) -> float:
    """Between two samples; infinity where there are fewer than two."""
    return max((b - a for a, b in pairwise(times)), default=float("inf"))


__all__ = [
    "HOST", "INTERVAL", "KVITALS", "LATE_SECONDS", "OBJECTIVES", "ROOT", "TIMEOUT", "Agent", "CannotRunError", "Page",
    "Program", "Stage", "StageError", "Told", "free_port", "longest_gap",
]  # fmt: skip
