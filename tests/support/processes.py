"""Processes and ports of tests that run real programs beside them."""

from __future__ import annotations

import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"
PATIENCE_SECONDS = 15.0


PORTS = range(12_000, 32_000)
"""Below those that the kernel gives to clients, so that no connection takes a port before its server does."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process, ended with the context."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_SECONDS)
