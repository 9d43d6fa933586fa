"""`kvitals run` as a process: what hangs is reported, health is what cycles do, and a stop takes five seconds."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.processes import HOST, ended, free_port

PATIENCE = 60.0
BEGIN = """
import sys, threading, time
{inject}
from kvitals.ui.cli.main import main
main(sys.argv[1:])
"""
HANGS = """
import kvitals.agent.collectors.host as host
host.HostSense.read = lambda *_: time.sleep(600)
import kvitals.agent.node_collectors
kvitals.agent.node_collectors.NODE_DEADLINE = 1.0
"""
HOLDS_LOOP = """
import kvitals.app.pipeline
observe = kvitals.app.pipeline.Pipeline.observe_steps
def held(self, span):
    time.sleep(600 if threading.active_count() and time.monotonic() - begun > 6.0 else 0.0)
    return observe(self, span)
begun = time.monotonic()
kvitals.app.pipeline.Pipeline.observe_steps = held
"""
CYCLES_STOP = """
import kvitals.agent.health, kvitals.agent.node, asyncio
kvitals.agent.health.SLACK_SECONDS = 0.5
async def never(*_):
    await asyncio.sleep(600)
kvitals.agent.node.Node.collect = never
"""


def start(folder: Path, port: int, inject: str) -> "subprocess.Popen[bytes]":
    pipe, targets = folder / "pipe", folder / "targets"
    os.mkfifo(pipe)
    targets.write_text("http://127.0.0.1:9\n")
    config = folder / "kvitals.toml"
    config.write_text(
        f'[agent]\nlisten = "{HOST}:{port}"\ninterval = "500ms"\ndiscover = false\n'
        f'targets_file = ["{pipe}", "{targets}"]\n[history]\nmin_free_bytes = 0\n'
    )
    env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-c", BEGIN.format(inject=inject), "run", "--no-web", f"--config={config}"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=5.0) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def until(port: int, path: str, wanted: str) -> tuple[int, str]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        status, text = answer(port, path)
        if wanted in text:
            return status, text
        time.sleep(0.1)
    raise AssertionError(f"{path} did not answer {wanted!r} but {status} {text[-800:]}")


def stops(process: "subprocess.Popen[bytes]") -> float:
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(30.0)
    return time.monotonic() - began


def test_a_collector_that_hangs_is_reported_others_go_on_and_a_stop_takes_seconds(tmp_path: Path) -> None:
    port = free_port()
    with ended(start(tmp_path, port, HANGS)) as process:
        _, page = until(port, "/metrics", 'reason="hung"')
        assert 'kvitals_collector_success{collector="host"' in page and 'engine="127.0.0.1:9"' in page
        assert answer(port, "/-/healthy")[0] == 200
        assert "not a regular file" in (tmp_path / "log").read_text()
        assert stops(process) < 5.5
        assert process.returncode == 0


@pytest.mark.system
def test_a_loop_that_is_held_up_does_not_keep_the_process_from_stopping(tmp_path: Path) -> None:
    port = free_port()
    with ended(start(tmp_path, port, HOLDS_LOOP)) as process:
        until(port, "/-/healthy", "is Healthy")
        end = time.monotonic() + PATIENCE
        while answer(port, "/-/healthy")[0] and time.monotonic() < end:
            time.sleep(0.2)
        assert stops(process) < 5.5
        assert "the process ends now" in (tmp_path / "log").read_text()


@pytest.mark.system
def test_health_turns_red_when_cycles_do_not_complete(tmp_path: Path) -> None:
    port = free_port()
    with ended(start(tmp_path, port, CYCLES_STOP)) as process:
        status, _ = until(port, "/-/healthy", "no cycle has completed")
        assert status == 503
        assert stops(process) < 5.5


HANGUP_AT_THE_START = """
import os, signal
class HangsUp:  # as `systemctl reload` does right after `systemctl start`
    def find_spec(self, name, path=None, target=None):
        if name == "kvitals.ui.cli.main":
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, HangsUp())
from kvitals.ui.cli.launch import main as launch
sys.exit(launch())
"""


def test_a_hangup_while_the_agent_starts_loads_the_configuration_once_it_runs(tmp_path: Path) -> None:
    """It ended the process in its first two seconds."""
    port = free_port()
    with ended(start(tmp_path, port, HANGUP_AT_THE_START)) as process:
        until(port, "/-/healthy", "is Healthy")
        end = time.monotonic() + PATIENCE
        while "configuration loaded" not in (tmp_path / "log").read_text() and time.monotonic() < end:
            time.sleep(0.1)
        assert "configuration loaded" in (tmp_path / "log").read_text()
        assert stops(process) < 5.5
        assert process.returncode == 0
