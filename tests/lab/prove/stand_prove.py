"""One change on a real vLLM under load: `kvitals prove` with commands that restart the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from ..engines import Engines
from ..load import Load
from ..paths import REPO, LabError
from ..ports import HOST, Port
from .plays import RIGHT, DrawnChange

BEFORE, MOST, LIMIT = "72s", "180s", "60s"
LONGEST_S = 560.0
KILL_AFTER_S = 10.0
"""After the change was applied, where the prover is killed."""
ENGINE = "prove"


@dataclass
class Played:
    """What became of a change. flags: those that the engine has in the end."""

    name: str
    kind: str
    right: str
    verdict: str
    state: str
    seconds: float
    harmed_seconds: float
    """From the engine's first answer after the change until it was back; 0 where the change stayed."""
    is_back: bool
    """Whether the engine has its old flags where it should, and new ones where the change was kept."""
    conclusion: str
    document: dict[str, Any]
    progress: list[str]

    @property
    def is_right(self) -> bool:
        return self.verdict == self.right


class Stand:
    """An engine under load, and the address at which a command restarts it."""

    def __init__(self, lab: Engines, change: DrawnChange, seed: int) -> None:
        self._lab = lab
        self._change = change
        self._seed = seed
        self._port = Port.take()
        self.running = "original"
        self.switched: list[tuple[str, float]] = []
        """What the engine was restarted with, and when it answered again."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """The engine's URL."""
        engine = await self._lab.start(ENGINE, None, **self._change.flags)
        app = web.Application()
        app.router.add_post("/{flags}", self._switch)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, self._port.number).start()
            async with Load([engine.url], (), seed="warm", drain_s=1.0) as load:
                await load.warm(self._change.load)
            async with Load([engine.url], self._change.load, seed=f"prove-{self._seed}", drain_s=1.0):
                await asyncio.sleep(3.0)
                yield engine.url
        finally:
            await runner.cleanup()
            self._port.release()
            await self._lab.stop(ENGINE)

    def command(self, flags: str) -> str:
        """The operator's command for these flags."""
        return f"{sys.executable} {Path(__file__).with_name('switch.py')} {self._port.url} {flags}"

    async def _switch(self, request: web.Request) -> web.Response:
        flags = request.match_info["flags"]
        old = {name: self._change.flags.get(name) for name in self._change.changed}
        await self._lab.restart(ENGINE, **(self._change.changed if flags == "changed" else old))
        self.running = flags
        self.switched.append((flags, time.time()))
        return web.Response(text=f"restarted with the {flags} flags")


async def play(lab: Engines, change: DrawnChange, seed: int, kvitals: Sequence[str], home: Path) -> Played:
    """Try one change to its end."""
    stand = Stand(lab, change, seed)
    begun = time.monotonic()
    async with stand.open() as url:
        process = await _prove(stand, url, change, kvitals, home)
        try:
            out, err = await asyncio.wait_for(process.communicate(), LONGEST_S)
        finally:
            await _end(process)
    try:
        document = json.loads(out)
    except ValueError as error:
        raise LabError(f"kvitals prove ended with {process.returncode}: {err.decode()[-2000:]}") from error
    kept = document["state"] == "kept"
    harmed = stand.switched[-1][1] - stand.switched[0][1] if len(stand.switched) > 1 else 0.0
    is_back = stand.running == ("changed" if kept else "original")
    return Played(
        change.name, change.kind, RIGHT[change.kind], document["verdict"], document["state"],
        time.monotonic() - begun, harmed, is_back, document["conclusion"], document,
        err.decode().splitlines(),
    )  # fmt: skip


async def kill(lab: Engines, change: DrawnChange, seed: int, kvitals: Sequence[str], home: Path) -> float:
    """Kill the prover in the middle; seconds until the engine has its old flags again. Raises LabError."""
    stand = Stand(lab, change, seed)
    async with stand.open() as url:
        process = await _prove(stand, url, change, kvitals, home)
        try:
            while stand.running == "original":
                if process.returncode is not None:
                    raise LabError(f"kvitals prove ended with {process.returncode} before it changed anything")
                await asyncio.sleep(0.2)
            await asyncio.sleep(KILL_AFTER_S)
            killed = time.monotonic()
            process.kill()
            while stand.running != "original":
                if time.monotonic() - killed > LONGEST_S:
                    raise LabError("the engine has the changed flags although its prover is dead")
                await asyncio.sleep(0.1)
            return time.monotonic() - killed
        finally:
            await _end(process)


async def _prove(
    stand: Stand, url: str, change: DrawnChange, kvitals: Sequence[str], home: Path
) -> asyncio.subprocess.Process:
    command = [
        *kvitals, "prove", url, "--apply", stand.command("changed"), "--rollback", stand.command("original"),
        "--before", BEFORE, "--for", MOST, "--timeout", LIMIT, "--slo", f"ttft={change.objective}s", "--slo", "itl=2s",
        "--json",
    ]  # fmt: skip
    return await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=REPO,
        env={**os.environ, "XDG_STATE_HOME": str(home)},
        start_new_session=True,
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
