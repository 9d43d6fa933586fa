"""The processes of the scenario: Prometheus, Alertmanager and `kvitals notify`, and stand-ins for who gets messages."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kvitals.dashboards.alertmanager import configuration
from kvitals.dashboards.alerts_files import with_agents, without_agents
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from kvitals.rules.loader import load
from tests.alerts.servers import ROOT, alertmanager
from tests.oracle.oracle_server import Prometheus, prometheus
from tests.pipeline.incidents import PlannedIncident, fleet
from tests.pipeline.looped import LoopedEngine, agent_pages, engine_pages, serving
from tests.support.processes import PATIENCE_SECONDS, free_port

SCRAPE_SECONDS = 10.0
OBJECTIVE_SECONDS = 0.5
"""Of the 99th percentiles of TTFT and ITL where no agent exports an objective."""


@dataclass(frozen=True)
class ReceivedMessage:
    """A request that a stand-in accepted, and when."""

    at: float
    body: dict[str, Any]


@dataclass
class StandIn:
    """Records JSON that is posted to it; while it is not alive it answers 503."""

    port: int = 0
    alive: bool = True
    messages: list[ReceivedMessage] = field(default_factory=list)
    refused: int = 0


@contextmanager
def stand_in() -> Iterator[StandIn]:
    recorder = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if recorder.alive:
                recorder.messages.append(ReceivedMessage(time.time(), json.loads(body)))
            else:
                recorder.refused += 1
            self.send_response(200 if recorder.alive else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    recorder.port = server.server_address[1]
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class NotifyProcess:
    """`kvitals notify`, which may be killed and started again on the same queue."""

    folder: Path
    port: int
    prometheus_port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "kvitals.ui.cli.main", "notify", "--listen", f"127.0.0.1:{self.port}",
            "--prometheus", f"http://127.0.0.1:{self.prometheus_port}", "--config", str(self.folder / "kvitals.toml"),
        ]  # fmt: skip
        with (self.folder / "notify.log").open("ab") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


@dataclass(frozen=True)
class Stack:
    """One running chain over a fleet. started: seconds since the epoch."""

    raw: bool
    started: float
    engines: Sequence[LoopedEngine]
    sick: dict[str, PlannedIncident]
    server: Prometheus
    notify: NotifyProcess
    slack: StandIn
    pagerduty: StandIn
    webhook: StandIn  # the notice as it is: which incident a message is about

    @property
    def name(self) -> str:
        return "without agents" if self.raw else "with agents"


@contextmanager
def running(raw: bool, folder: Path, first: float, apart: float) -> Iterator[Stack]:
    """A chain over 60 engines, with agents or, if raw, without. first, apart: of `incidents.fleet`."""
    folder.mkdir()
    engines, sick = fleet(raw, first, apart)
    with ExitStack() as stack:
        slack, pagerduty, webhook = (stack.enter_context(stand_in()) for _ in range(3))
        hook = free_port()
        options = Options(
            scrape_seconds=SCRAPE_SECONDS,
            receiver=f"http://127.0.0.1:{hook}/api/v1/notify",
            slo_ttft_seconds=OBJECTIVE_SECONDS,
            slo_itl_seconds=OBJECTIVE_SECONDS,
        )
        manager = stack.enter_context(alertmanager(folder, dump(configuration(load(), options))))
        started = time.time()
        pages = (engine_pages if raw else agent_pages)(engines, started)
        port = stack.enter_context(serving(pages, started))
        (folder / "targets.json").write_text(json.dumps(targets(raw, engines, port)))
        server = stack.enter_context(prometheus(folder, config(folder, rules(raw, folder, options), manager)))
        _configure_notify(folder, slack, pagerduty, webhook)
        notify = NotifyProcess(folder, hook, server.port)
        notify.start()
        stack.callback(notify.kill)
        yield Stack(raw, started, engines, sick, server, notify, slack, pagerduty, webhook)


def targets(raw: bool, engines: Sequence[LoopedEngine], port: int) -> list[dict[str, Any]]:
    """What Prometheus scrapes: all at one port, each page with the labels that service discovery adds."""
    target = [f"127.0.0.1:{port}"]
    if raw:
        return [
            {
                "targets": target,
                "labels": {
                    "__metrics_path__": f"/engine/{engine.number}",
                    "instance": engine.address,
                    "pool": engine.pool,
                    "node": engine.node,
                },
            }
            for engine in engines
        ]
    nodes = {engine.pool: engine.node for engine in engines}
    return [
        {
            "targets": target,
            "labels": {"__metrics_path__": f"/agent/{pool}", "instance": f"{node}:9477", "pool": pool, "node": node},
        }
        for pool, node in nodes.items()
    ]


def rules(raw: bool, folder: Path, options: Options) -> list[Path]:
    """The generated rules as they ship, for this interval and receiver."""
    made = without_agents(load(), options)[:2] if raw else with_agents(load(), options)
    files = [folder / "recording.yaml", folder / "alerts.yaml"]
    for path, groups in zip(files, made, strict=True):
        path.write_text(dump(groups))
    return files


def config(folder: Path, files: Sequence[Path], manager: int | None = None, seconds: float = SCRAPE_SECONDS) -> str:
    """Prometheus' configuration. files: of rules; manager: the port of an Alertmanager; seconds: between scrapes."""
    interval = f"{seconds:g}s"
    managers = [] if manager is None else [f"127.0.0.1:{manager}"]
    made = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(path) for path in files],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": managers}]}]},
        "scrape_configs": [
            {
                "job_name": "kvitals",
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(folder / "targets.json")]}],
            }
        ],
    }
    return json.dumps(made)  # JSON is YAML


def _configure_notify(folder: Path, slack: StandIn, pagerduty: StandIn, webhook: StandIn) -> None:
    (folder / "slack-url").write_text(f"http://127.0.0.1:{slack.port}/")
    (folder / "pagerduty-key").write_text("0123456789abcdef0123456789abcdef")
    (folder / "kvitals.toml").write_text(
        f"""\
[slo]
ttft_p99_seconds = {OBJECTIVE_SECONDS}
itl_p99_seconds = {OBJECTIVE_SECONDS}
[notify]
directory = "{folder / "spool"}"
[[notify.slack]]
url_file = "{folder / "slack-url"}"
[[notify.pagerduty]]
key_file = "{folder / "pagerduty-key"}"
url = "http://127.0.0.1:{pagerduty.port}/"
severities = ["page"]
[[notify.webhook]]
url = "http://127.0.0.1:{webhook.port}/"
"""
    )
