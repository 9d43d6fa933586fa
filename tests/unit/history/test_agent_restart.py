"""An agent that is killed during an incident goes on with the same finding, from its history."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvitals.app.agent_client import AgentClient, AgentError
from kvitals.app.demo import HEAVY_TENANT
from kvitals.rules.finding import Triage
from tests.support.processes import HOST, ended, free_port

PATIENCE = 150.0
FULL = "KVC01"


def kvitals(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", "kvitals", *arguments]
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def document(port: int, wanted: Callable[[Triage], bool]) -> Triage:
    """The first document that is wanted."""
    last: Triage | Exception | None = None
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            last = found = AgentClient(f"http://{HOST}:{port}").findings()
            if wanted(found):
                return found
        except (AgentError, OSError) as error:
            last = error
        time.sleep(0.5)
    raise AssertionError(last.verdict if isinstance(last, Triage) else last)


def fired(found: Triage) -> dict[str, float | None]:
    return {one.code: one.since for one in found.causes}


@pytest.mark.system
def test_a_killed_agent_goes_on_with_the_finding_and_its_beginning(tmp_path: Path) -> None:
    """For 15 minutes its verdict was another one than that of its history, and its longer windows held a part."""
    engine, api = free_port(), free_port()
    config = tmp_path / "kvitals.toml"
    config.write_text(
        f'[agent]\nlisten = "{HOST}:{api}"\ninterval = "2s"\ndiscover = false\n'
        f'[[target]]\nurl = "http://{HOST}:{engine}"\n[history]\nmin_free_bytes = 0\n'
    )
    run = ("run", "--no-web", f"--config={config}")
    with ended(kvitals(tmp_path, "record", "--replay", str(HEAVY_TENANT), "--serve", f"--port={engine}")):
        with ended(kvitals(tmp_path, *run)) as agent:
            before = document(api, lambda found: FULL in fired(found))
            time.sleep(6.0)  # the finding stands in the history
            agent.kill()
            agent.wait()
        time.sleep(3.0)
        with ended(kvitals(tmp_path, *run)):
            after = document(api, lambda found: found.window.end > before.window.end + 8)
    assert FULL in fired(after), after.verdict
    assert fired(after)[FULL] == pytest.approx(fired(before)[FULL], abs=3.0)
    figures = {one.signal: one.value for one in after.causes[0].measures if one.value is not None}
    assert figures["kv_usage_p90"] > 0.9
    assert min(figures.values()) >= 0, figures
