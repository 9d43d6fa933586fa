"""Ports for the lab's servers, on loopback, from a range of its own."""

from __future__ import annotations

import fcntl
import socket
from typing import IO

from .paths import RUN, LabError

HOST = "127.0.0.1"
PORTS = range(8201, 8300)


class Port:
    """A port of the lab's range, held by a lock file so that two lab processes never pick the same one."""

    def __init__(self, number: int, lock: IO[str]) -> None:
        self.number = number
        self._lock = lock

    @classmethod
    def take(cls) -> Port:
        RUN.mkdir(parents=True, exist_ok=True)
        for number in PORTS:
            lock = (RUN / f"port-{number}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            if _is_free(number):
                return cls(number, lock)
            lock.close()
        raise LabError(f"no free port in {PORTS.start}..{PORTS.stop - 1}")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.number}"

    def release(self) -> None:
        self._lock.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
