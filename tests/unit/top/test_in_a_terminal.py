"""`kvitals top` in a real terminal: what stands there, how it ends, and that the terminal is as it was."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvitals.app.sources.recording_reader import span_of
from tests.support.fleet_documents import HEAVY, PAIR
from tests.support.terminal import ROOT, Terminal

STOPPED = "kvitals: stopped"


SYSTEM = pytest.mark.system


@pytest.mark.parametrize("columns", [60, pytest.param(80, marks=SYSTEM)])
def test_a_small_terminal_shows_who_is_sick_and_why(columns: int) -> None:
    with Terminal(["top", str(PAIR)], columns, 24) as terminal:
        text = terminal.wait_for("sorted by severity")
        terminal.wait_for("Allow more concurrent requests: --max-num-seqs 16")
        first = next(line for line in text.splitlines() if line.startswith("✗ decode"))
        assert "Requests wait for" in first
        assert "7.43 s!" in first
        terminal.press("enter")
        terminal.wait_for("Proof")
        terminal.wait_for("Then (restart or deploy)")
        terminal.press("esc")
        terminal.wait_for("sorted by severity")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.is_restored()


@pytest.mark.parametrize(
    "how", ["ctrl+c", pytest.param(signal.SIGINT, marks=SYSTEM), pytest.param(signal.SIGTERM, marks=SYSTEM)]
)
def test_it_ends_cleanly(how: str | signal.Signals) -> None:
    with Terminal(["top", str(HEAVY)]) as terminal:
        terminal.wait_for("sorted by severity")
        if isinstance(how, signal.Signals):
            terminal.signal(how)
        else:
            terminal.press(how)
        assert terminal.end() == 130
        assert terminal.is_restored()
        assert terminal.written.rstrip().endswith(STOPPED)
        assert "Traceback" not in terminal.written


def test_keys_that_are_not_utf_8_are_no_keys() -> None:
    with Terminal(["top", str(HEAVY)]) as terminal:
        terminal.wait_for("sorted by severity")
        terminal.type_bytes(b"\xff\xfe\x80\xc3")
        terminal.press("?")
        terminal.wait_for("Keys")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.is_restored()
        assert "Traceback" not in terminal.written


def test_a_defect_ends_with_a_message_and_a_code() -> None:
    """Of the thread that reads keys, which Textual ends with code 0."""
    broken = "from textual.drivers import linux_driver as d; d.XTermParser.feed = None"
    with Terminal(["top", str(HEAVY)], before=broken) as terminal:
        terminal.wait_for("sorted by severity")
        terminal.press("s")
        assert terminal.end() == 3
        assert terminal.is_restored()
        assert "because of a defect in kvitals" in " ".join(terminal.written.split())


def test_a_source_that_cannot_be_reached_is_one_line() -> None:
    with Terminal(["top", "http://127.0.0.1:9"]) as terminal:
        assert terminal.end() == 3
        assert terminal.is_restored()
        assert "no target can be reached" in terminal.written
        assert "Traceback" not in terminal.written


@pytest.mark.system
def test_an_engine_is_followed_and_recorded(tmp_path: Path) -> None:
    """The pages of a recording over HTTP; `r` begins a recording of its own and ends it."""
    port = 21480
    command = "from kvitals.ui.cli.launch import main; main()"
    served = subprocess.Popen(
        [sys.executable, "-c", command, "replay", str(HEAVY), "--serve", "--port", str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        assert str(port) in served.stdout.readline()
        with Terminal(["top", f"http://127.0.0.1:{port}"], 120, 30, folder=tmp_path) as terminal:
            terminal.wait_for("sorted by severity")
            terminal.press("r")
            terminal.wait_for("● REC top-")
            terminal.press("space")
            terminal.wait_for("FROZEN")
            terminal.press("space")
            terminal.wait(lambda text: "FROZEN" not in text)
            moment = _moment(terminal.text)
            terminal.wait(lambda text: _moment(text) != moment)
            terminal.press("r")
            terminal.wait(lambda text: "REC" not in text)
            terminal.press("q")
            assert terminal.end() == 0
        (recording,) = tmp_path.glob("top-*.kvcap")
        assert recording.name in terminal.written
        first, last = span_of(recording)
        assert last > first
    finally:
        served.terminate()
        served.wait()
        if served.stdout is not None:
            served.stdout.close()


def _moment(text: str) -> str:
    found = re.search(r"\d\d:\d\d:\d\d UTC", text)
    return found.group() if found else ""
