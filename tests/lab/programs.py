"""Servers that are started as programs of their own, for as long as a `with` block lasts.

    async with Programs() as programs:
        port = programs.port()
        await programs.start("frontend", [python, "-m", "dynamo.frontend", ...], ready=f"{port.url}/health")

Each is held on a leash (`engine_side/leash.py`), so that nothing outlives the lab, however the lab ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp

from .engines import STOP_TIMEOUT_S, sweep
from .paths import ENGINE_SIDE, RUN, LabError
from .ports import Port

START_TIMEOUT_S = 150.0
ASK_EVERY_S = 0.2


def _answers(body: str) -> bool:
    return True


class Programs:
    """Leaving the block ends all of them, the last one started first."""

    def __init__(self) -> None:
        self.folder = RUN / str(os.getpid())
        self._leashes: dict[str, asyncio.subprocess.Process] = {}
        self._ports: list[Port] = []

    async def __aenter__(self) -> Self:
        sweep(RUN)
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            for leash in reversed(self._leashes.values()):
                await _let_go(leash)
        finally:
            self._leashes.clear()
            for port in self._ports:
                port.release()
            self._ports.clear()

    def port(self) -> Port:
        """A port that is this block's until it is left."""
        taken = Port.take()
        self._ports.append(taken)
        return taken

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    async def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        ready: str,
        env: Mapping[str, str] | None = None,
        is_ready: Callable[[str], bool] = _answers,
    ) -> None:
        """Start a program and wait until the URL `ready` answers 200 with a body that `is_ready` accepts."""
        if name in self._leashes:
            raise LabError(f"there is a program called {name!r} already")
        leash = [sys.executable, str(ENGINE_SIDE / "leash.py"), str(self.log(name)), *command]
        self._leashes[name] = await asyncio.create_subprocess_exec(
            *leash,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            cwd=self.folder,
            env=self._clean_environment() | dict(env or {}),
            start_new_session=True,  # Ctrl-C is for us: we end the programs in order
        )
        await self.until_ready(name, ready, is_ready)

    async def stop(self, name: str) -> None:
        """End one program as it is ended with the block, and wait for it."""
        await _let_go(self._leashes.pop(name))

    async def check(self) -> None:
        """Raise LabError, with its last log lines, when a program has died."""
        for name, leash in self._leashes.items():
            if leash.returncode is not None:
                raise LabError(f"{name} died:\n{self._log_tail(name)}")

    async def until_ready(self, name: str, url: str, is_ready: Callable[[str], bool]) -> None:
        """Wait until a URL of a program answers as it is to."""
        deadline = time.monotonic() + START_TIMEOUT_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while time.monotonic() < deadline:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(url) as answer:
                        if answer.status == 200 and is_ready(await answer.text()):
                            return
                await self.check()
                await asyncio.sleep(ASK_EVERY_S)
        raise LabError(f"{name} not ready in {START_TIMEOUT_S:.0f} s:\n{self._log_tail(name)}")

    def _clean_environment(self) -> dict[str, str]:
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
        return inherited | quiet | {"TMPDIR": str(self.folder)}

    def _log_tail(self, name: str, lines: int = 15) -> str:
        if not self.log(name).exists():
            return "(no log)"
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])


async def _let_go(leash: asyncio.subprocess.Process) -> None:
    """Close the leash's input: it ends its program, and then itself."""
    if leash.stdin is not None:
        leash.stdin.close()
    try:
        await asyncio.wait_for(leash.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        leash.terminate()
        await leash.wait()
