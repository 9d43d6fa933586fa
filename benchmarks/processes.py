"""The processes of a measurement: servers of changing pages, a Prometheus, and what a process has used."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

PROMETHEUS = shutil.which("prometheus") or "/usr/bin/prometheus"


class Page(Protocol):
    """Something with a metrics page that changes as time passes."""

    def advance(self) -> None:
        """Let a second pass."""

    def page(self) -> bytes:
        """The page now."""


class _Answers(asyncio.Protocol):
    """Answers every request on a connection with the page of the current second."""

    def __init__(self, answer: Callable[[], bytes]) -> None:
        self._answer = answer
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            request, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            path = request.split(b" ", 2)[1]
            self._transport.write(self._answer() if path == b"/metrics" else _NOT_FOUND)


_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def serve(pages: Sequence[Page], first_port: int) -> None:
    """Serve the pages on ports from `first_port` on, each second the next ones. Prints `ready`."""
    answers = [b""] * len(pages)

    def turn() -> None:
        for i, page in enumerate(pages):
            page.advance()
            body = page.page()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}"
            answers[i] = head.encode() + b"\r\n\r\n" + body

    turn()
    loop = asyncio.get_running_loop()
    for i in range(len(pages)):
        await loop.create_server(lambda i=i: _Answers(lambda: answers[i]), "127.0.0.1", first_port + i)
    print("ready", flush=True)
    while True:
        await asyncio.sleep(1.0)
        turn()


@contextmanager
def child(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python module as a process, ended with the context. It prints `ready` when it is."""
    with subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{module} {' '.join(arguments)} did not start")
            yield process
        finally:
            process.terminate()


@contextmanager
def prometheus(ports: Sequence[int], interval: float, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A Prometheus that scrapes the pages on these ports of loopback and listens on `port`."""
    targets = ", ".join(f'"127.0.0.1:{target}"' for target in ports)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "prometheus.yml")
        config.write_text(
            f"global: {{scrape_interval: {interval:g}s, scrape_timeout: {interval:g}s}}\n"
            f"scrape_configs: [{{job_name: pages, static_configs: [{{targets: [{targets}]}}]}}]\n"
        )
        command = [
            PROMETHEUS,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with subprocess.Popen(command) as process:
            try:
                wait(f"http://127.0.0.1:{port}/-/ready")
                yield process
            finally:
                process.terminate()


def wait(url: str) -> None:
    """Until `url` answers with 200, also on a machine that is busy. Raises RuntimeError after two minutes."""
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"nothing answers at {url}")


def ask(port: int, query: str, at: float) -> float:
    """The one value of a query, of a Prometheus or of an agent."""
    arguments = urllib.parse.urlencode({"query": query, "time": at})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{arguments}", timeout=10) as answer:
        return float(json.load(answer)["data"]["result"][0]["value"][1])


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process, all of its threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
