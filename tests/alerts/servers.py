"""A chain of real processes on loopback: replaying agents, Prometheus, Alertmanager; and who is told, a stand-in."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.processes import ended, free_port

ROOT = Path(__file__).parents[2]
START_SECONDS = 30


@dataclass(frozen=True)
class Told:
    """One alert of one message, and when it came."""

    at: float
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def code(self) -> str:
        return self.labels.get("code", "")


@dataclass
class Receiver:
    """Takes Alertmanager's messages and keeps them."""

    port: int = 0
    told: list[Told] = field(default_factory=list)

    def of(self, cluster: str, status: str = "firing") -> list[Told]:
        return [one for one in self.told if one.labels.get("cluster") == cluster and one.status == status]


@contextmanager
def posted(take: Callable[[float, Any], None]) -> Iterator[int]:
    """A stand-in that gives each JSON body that is posted to it to `take`, with the time; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            take(time.time(), json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    def take(at: float, message: Any) -> None:
        found.told += [Told(at, a["status"], a["labels"], a["annotations"]) for a in message["alerts"]]

    with posted(take) as found.port:
        yield found


@contextmanager
def alertmanager(folder: Path, config: str) -> Iterator[int]:
    """A running Alertmanager with its port. Raises RuntimeError where there is none."""
    command = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if command is None:
        raise RuntimeError("no Alertmanager on PATH: install Debian's package prometheus-alertmanager")
    file = folder / "alertmanager.yml"
    file.write_text(config)
    port = free_port()
    arguments = [
        command,
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    log = folder / "alertmanager.log"
    with log.open("wb") as out, ended(subprocess.Popen(arguments, stdout=out, stderr=out)) as process:
        _wait_for_port(port, process, log)
        yield port


@dataclass(frozen=True)
class Replay:
    """A recording, in a cluster of its own name, and the objectives that it is judged by in seconds."""

    cluster: str
    path: str
    ttft: float
    itl: float


@contextmanager
def replaying(replay: Replay, folder: Path) -> Iterator[int]:
    """An agent that replays a recording from now on, with its port."""
    port = free_port()
    arguments = [ROOT / replay.path, port, replay.ttft, replay.itl]
    command = [sys.executable, "-m", "tests.alerts.replaying", *map(str, arguments)]
    log = folder / f"{replay.cluster}.log"
    with log.open("wb") as out, ended(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)) as process:
        _wait_for_port(port, process, log)
        yield port


def prometheus_config(targets: Mapping[str, int], rules: Sequence[Path], alertmanager_port: int) -> str:
    """Scrapes and evaluates each second. targets: cluster -> port."""
    scraped = [{"targets": [f"127.0.0.1:{port}"], "labels": {"cluster": name}} for name, port in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}]},
        "scrape_configs": [{"job_name": "kvitals", "honor_labels": True, "static_configs": scraped}],
    }
    return json.dumps(config)  # JSON is YAML


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as s:
            s.settimeout(1)
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"did not start:\n{log.read_text()[-2000:]}")
