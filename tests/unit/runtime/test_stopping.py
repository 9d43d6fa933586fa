"""A stop ends the process within five seconds, whatever its main thread does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import ended

ROOT = Path(__file__).parents[3]
BEGIN = """
import asyncio, ctypes, os, sys
from kvitals.agent import stopping

async def main():
    stopping.on_signals(asyncio.Event())
    print("ready", flush=True)
    hang()

{hangs}
asyncio.run(main())
"""
IN_C = """
def hang():  # a mutex that is locked twice: no signal handler of Python runs
    mutex = ctypes.create_string_buffer(256)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)
"""
IN_WRITE = """
def hang():  # standard error is a pipe that nobody reads
    while True:
        sys.stderr.write("x" * (1 << 20))
"""


def seconds_until_it_ends(hangs: str, stderr: int) -> float:
    command = [sys.executable, "-c", BEGIN.format(hangs=hangs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process, ended(process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(20.0)
        return time.monotonic() - began


@pytest.mark.system
def test_a_main_thread_within_a_call_of_c_code_stops_and_is_reported(tmp_path: Path) -> None:
    """Handlers of Python do not run there, so SIGTERM had no effect for good."""
    log = tmp_path / "log"
    with log.open("wb") as out:
        assert seconds_until_it_ends(IN_C, out.fileno()) < 5.5
    assert re.search(r"main thread: .*hang \(<string>:\d+\), main \(<string>:\d+\)", log.read_text())


@pytest.mark.system
def test_a_report_that_nobody_reads_keeps_nothing_from_stopping() -> None:
    reader, writer = os.pipe()
    try:
        assert seconds_until_it_ends(IN_WRITE, writer) < 5.5
    finally:
        os.close(reader)
        os.close(writer)


def test_nothing_takes_signals_from_the_thread_that_stops_the_agent() -> None:
    """asyncio's handlers of signals write to a file of the loop's, and there is one such file for the process."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("agent", "app", "ui", "diagnoser", "rules", "series", "config")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"add_signal_handler|set_wakeup_fd", path.read_text())
    }
    alone = {"ui/cli/tap.py", "ui/cli/record.py", "ui/cli/top_app.py"}  # commands that do not use agent.stopping
    assert found - alone == {"agent/stopping.py"}
