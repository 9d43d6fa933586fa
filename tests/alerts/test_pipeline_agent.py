"""The agent as receiver: `kvitals run` on a recorded incident, a real Alertmanager, and somebody who is told; killed
with a message on its hands, and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvitals.app.demo import HEAVY_TENANT
from kvitals.dashboards.alertmanager import configuration
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from tests.alerts import promtool
from tests.alerts.servers import ROOT, alertmanager, ended, free_port
from tests.alerts.test_pipeline import Told, stand_in

ENGINE = "127.0.0.1:8201/0"
"""Of the recording of the heavy tenant."""


@contextmanager
def agent(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable, "-m", "kvitals.ui.cli.main", "run", "--demo", str(HEAVY_TENANT), "--no-web",
        "--listen", f"127.0.0.1:{port}",
        "--config", str(folder / "kvitals.toml"),
    ]  # fmt: skip
    with (
        (folder / "agent.log").open("ab") as out,
        ended(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)) as process,
    ):
        until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 60)
        yield process


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def until(there: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


def fire(manager: int) -> None:
    """What a Prometheus tells its Alertmanager."""
    labels = {"alertname": "LAT01-ttft-slo-breach", "severity": "ticket", "kind": "symptom"}
    labels |= {"kvitals_code": "LAT01", "code": "LAT01"}
    alert = {"labels": {**labels, "engine": ENGINE}, "annotations": {"summary": "First tokens are late"}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{manager}/api/v2/alerts", json.dumps([alert]).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 200


def configure(folder: Path, url: str) -> None:
    (folder / "kvitals.toml").write_text(f'[notify]\ndirectory = "spool"\n[[notify.webhook]]\nurl = "{url}"\n')


def waiting(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/notify", timeout=5) as response:
        return int(json.load(response)["data"]["targets"]["webhook-1"]["waiting"])


def test_an_alert_comes_back_with_its_cause_even_over_a_kill(tmp_path: Path) -> None:
    port, nobody = free_port(), free_port()
    configure(tmp_path, f"http://127.0.0.1:{nobody}/")
    config = configuration(promtool.knowledge(), Options(receiver=f"http://127.0.0.1:{port}/api/v1/notify"))
    with alertmanager(tmp_path, dump(config)) as manager:
        with agent(tmp_path, port) as process:
            fire(manager)
            until(lambda: waiting(port) == 1, 60)
            process.kill()
            process.wait()
        told: Told
        with stand_in() as told:
            configure(tmp_path, f"http://127.0.0.1:{told.port}/")
            with agent(tmp_path, port):
                until(lambda: told.came, 60)
    message = told.came[0][1]
    assert (message["code"], message["change"]) == ("KVC01", "new")
    assert message["verdict"].startswith("KV usage p90 is 100 %")
    assert message["actions"][1]["setting"] == "--num-gpu-blocks-override 278 (now 129) (restart)"
    assert message["alerts"][0]["summary"] == "First tokens are late"
