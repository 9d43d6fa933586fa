"""A real Prometheus on loopback in a temporary folder: start, fill with exact samples, ask, end."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kvitals.series.types import Frame, Labels
from tests.support.processes import ended, free_port

BATCH_SECONDS = 1200  # Prometheus refuses samples more than an hour older than its newest
START_SECONDS = 30


@dataclass
class Prometheus:
    """A running server. Requests reuse one connection per thread."""

    port: int
    _local: threading.local = field(default_factory=threading.local)
    _open: list[http.client.HTTPConnection] = field(default_factory=list)

    def close(self) -> None:
        """Closes all connections; the server is not asked any more."""
        for connection in self._open:
            connection.close()

    def request(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        for attempt in (0, 1):
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                self._local.connection = connection
                self._open.append(connection)
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                return response.status, response.read()
            except (http.client.HTTPException, OSError):
                connection.close()  # an idle connection that the server has closed; once more with a new one
                self._local.connection = None
                if attempt:
                    raise
        raise AssertionError

    def ask(self, kind: str, **parameters: str) -> dict[str, Any]:
        """The answer of /api/v1/query or query_range, whether it is a success or an error."""
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        _, body = self.request(f"/api/v1/{kind}", urlencode(parameters).encode(), form)
        answer: dict[str, Any] = json.loads(body)
        return answer

    def write(self, frames: Sequence[Frame]) -> None:
        """Stores every cell of the frames, stale markers and NaN bit by bit, oldest first."""
        start = min(f.times[0] for f in frames)
        end = max(f.times[-1] for f in frames)
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        while start <= end:
            body = _snappy(_write_request(frames, start, start + BATCH_SECONDS))
            status, answer = self.request("/api/v1/write", body, headers)
            if status not in (200, 204):
                raise RuntimeError(f"Prometheus refused the samples: {status} {answer!r}")
            start += BATCH_SECONDS


@contextmanager
def prometheus(folder: Path, config: str = "global: {}\n", flags: Sequence[str] = ()) -> Iterator[Prometheus]:
    """A server with an empty database in `folder`. Raises RuntimeError when there is none to start."""
    command = shutil.which("prometheus")
    if command is None:
        raise RuntimeError("the command `prometheus` is not on PATH: install Debian's package prometheus")
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    log = folder / "log"
    arguments = [
        command,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--query.lookback-delta=5m",
        "--log.level=warn",
        *flags,
    ]
    env = {**os.environ, "GOMAXPROCS": "2"}
    with log.open("wb") as out, ended(subprocess.Popen(arguments, stdout=out, stderr=out, env=env)) as process:
        _wait_until_ready(process, port, log)
        running = Prometheus(port)
        yield running
        running.close()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/-/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise RuntimeError(f"Prometheus did not become ready:\n{log.read_text()[-2000:]}")


def _write_request(frames: Sequence[Frame], start: float, end: float) -> bytes:
    """The protobuf message WriteRequest with the samples in start <= t < end."""
    out = []
    for frame in frames:
        rows = [i for i, t in enumerate(frame.times.tolist()) if start <= t < end]
        stamps = [_varint(0x10) + _varint(round(frame.times[i] * 1000)) for i in rows]
        for column, labels in enumerate(frame.labels):
            series = [_message(1, _label(name, value)) for name, value in labels.items()]
            for i, stamp in zip(rows, stamps, strict=True):
                cell = b"\x09" + struct.pack("<d", frame.values[i, column]) + stamp
                series.append(_message(2, cell))
            if rows:
                out.append(_message(1, b"".join(series)))
    return b"".join(out)


def _label(name: str, value: str) -> bytes:
    return _message(1, name.encode()) + _message(2, value.encode())


def _message(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _snappy(data: bytes) -> bytes:
    """The snappy block format with literals only: valid, and as long as the data."""
    out = [_varint(len(data))]
    for i in range(0, len(data), 65536):
        piece = data[i : i + 65536]
        out.append(bytes([61 << 2]) + struct.pack("<H", len(piece) - 1) + piece)
    return b"".join(out)


def labels_of(metric: dict[str, str]) -> Labels:
    """A label set as the HTTP API writes it."""
    return Labels(metric)
