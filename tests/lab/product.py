"""Runs the product as its user would: the `kvitals` command, in a process of its own.

Which command that is can be said with --kvitals or in KVITALS; by default it is the `kvitals` beside this
Python, and where there is none, `python -m kvitals.ui.cli.main`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .paths import REPO, RUN, LabError
from .scenario import Scenario, Slo
from .systems import Server

TRIAGE_TIMEOUT_S = 90.0
RECORD_MARGIN_S = 60.0
HEALTHY, FINDINGS = 0, 1


def kvitals_command(given: str | None = None) -> list[str]:
    """The product's command as arguments."""
    said = given or os.environ.get("KVITALS")
    if said:
        return shlex.split(said)
    beside = Path(sys.executable).parent / "kvitals"
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "kvitals.ui.cli.main"]


def configuration(servers: Sequence[Server]) -> str:
    """A kvitals.toml that tells each target's name and role."""
    tables = [
        f'[[target]]\nurl = "{server.url}"\nname = "{server.name}"\n'
        + (f'labels = {{role = "{server.role}"}}\n' if server.role else "")
        for server in servers
    ]
    return "\n".join(["[agent]\ndiscover = false\n", *tables])


def targets(servers: Sequence[Server]) -> list[str]:
    """What the product is to look at, as arguments; where servers have roles, it is told by a configuration."""
    urls = [server.url for server in servers]
    if not any(server.role for server in servers):
        return urls
    file = RUN / str(os.getpid()) / "kvitals.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(configuration(servers))
    return [*urls, "--config", str(file)]


def slo_arguments(slo: Slo) -> list[str]:
    return ["--slo", f"ttft={slo.ttft_p99:g}s", "--slo", f"itl={slo.itl_p99:g}s"]


@dataclass(frozen=True)
class Verdict:
    """What `kvitals triage --json` said."""

    healthy: bool | None
    codes: tuple[str, ...]
    """Codes of the causes, the first one first."""
    seconds: float
    document: dict[str, Any]

    @property
    def first(self) -> str:
        return self.codes[0] if self.codes else "-"

    def right_for(self, scenario: Scenario) -> bool:
        """The first cause is an expected one; where none is expected, there is none and all is well."""
        if not scenario.expect:
            return self.healthy is True and not self.codes
        return self.first in scenario.expect


def read_verdict(text: str, seconds: float) -> Verdict:
    """Reads a triage document."""
    try:
        document = json.loads(text)
        codes = tuple(cause["code"] for cause in document["causes"])
        return Verdict(document["healthy"], codes, seconds, document)
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"this is no triage document ({error!r}): {text[:300]!r}") from error


async def triage(kvitals: Sequence[str], servers: Sequence[Server], slo: Slo, agent: str = "") -> Verdict:
    """Diagnose live engines, or ask the agent that watches them. Raises LabError when the command fails, not when it
    finds something."""
    started = time.monotonic()
    asked = [agent] if agent else [*targets(servers), *slo_arguments(slo)]
    command = [*kvitals, "triage", *asked, "--json"]
    status, out, err = await _run(command, TRIAGE_TIMEOUT_S)
    try:
        return read_verdict(out, time.monotonic() - started)
    except LabError as error:
        raise LabError(f"{shlex.join(command)}: exit {status}\n{err[-1500:]}\n{error}") from error


async def record(kvitals: Sequence[str], servers: Sequence[Server], file: Path, seconds: float) -> None:
    """Record live engines into a capture."""
    command = [*kvitals, "record", *targets(servers), "--out", str(file), "--every", "1s", "--for", f"{seconds:g}s"]
    status, _, err = await _run(command, seconds + RECORD_MARGIN_S)
    if status != 0:
        raise LabError(f"{shlex.join(command)}: exit {status}\n{err[-1500:]}")


async def _run(command: Sequence[str], limit_s: float) -> tuple[int, str, str]:
    """Exit status, output and error output. However this ends, the process group is gone afterwards."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=REPO,
            start_new_session=True,
        )
    except OSError as error:
        raise LabError(f"cannot run {command[0]}: {error} (say which command with --kvitals)") from error
    try:
        out, err = await asyncio.wait_for(process.communicate(), limit_s)
    except TimeoutError as error:
        raise LabError(f"{shlex.join(command)}: not done in {limit_s:.0f} s") from error
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode(), err.decode()
