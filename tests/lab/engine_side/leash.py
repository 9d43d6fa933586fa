"""Keeps a server no longer than whoever started it: `python leash.py LOG COMMAND ...`.

The server runs in a process group of its own, its output goes to LOG. When this program's standard input ends, or it is
told to terminate, the group is asked to end, then killed; when the server ends by itself, what is left of its group is
killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

GRACE_S = 4.0


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _end(server: subprocess.Popen[bytes]) -> None:
    _signal_group(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal_group(server.pid, signal.SIGKILL)


def _end_with_input(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _end(server)


def main() -> int:
    log, *command = sys.argv[1:]
    with Path(log).open("wb") as written:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, start_new_session=True
        )
    signal.signal(signal.SIGTERM, lambda number, frame: _end(server))
    threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    status = server.wait()
    _signal_group(server.pid, signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(main())
