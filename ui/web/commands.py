"""Answers of the command line, as its JSON.

What takes seconds runs in a process of its own, bounded in time and number, so that other pages go on, and the numbers
are those of the terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvitals.app.page_settings import VARIABLE
from kvitals.series.files import FileRefusedError, read_regular
from kvitals.ui.web.failure import Failure, UnansweredError

SECONDS = 120.0
AT_ONCE = 2
MAX_BYTES = 32 << 20
MAX_WORDS = 1000
UNKNOWN = 3
"""Exit code of a command that answers, but has no prediction or verdict."""
OUT = "{out}"
"""In the arguments: a folder for what a command writes."""

_running = threading.BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True)
class CommandOutput:
    """What a command wrote to its output, and its files by name."""

    out: bytes
    files: dict[str, bytes] = field(default_factory=dict)


def run(arguments: Sequence[str]) -> CommandOutput:
    """`kvitals` with these arguments. Raises UnansweredError with what it said of why not."""
    if not _running.acquire(timeout=SECONDS):
        raise UnansweredError(_failed(arguments, "Others are waiting for such answers", "Try again in a minute."))
    try:
        with tempfile.TemporaryDirectory(prefix="kvitals-web-") as folder:
            return _run(arguments, Path(folder))
    finally:
        _running.release()


def command_text(arguments: Sequence[str]) -> str:
    """The same command, to be typed."""
    return f"kvitals {shlex.join(one.replace(OUT, 'DIR') for one in arguments)}"


def _run(arguments: Sequence[str], folder: Path) -> CommandOutput:
    out = folder / "out"
    command = [
        sys.executable,
        "-P",  # the current directory stays off Python's path: a file there must not replace a module
        "-m",
        "kvitals.ui.cli.main",
        *(one.replace(OUT, str(folder / "files")) for one in arguments),
    ]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | {"COLUMNS": "200"}
    try:
        with out.open("wb") as told:
            done = subprocess.run(  # noqa: S603 (our own command; what people typed follows an option's name and `=`)
                command,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.PIPE,
                env=environment,
                timeout=SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise UnansweredError(
            _failed(
                arguments,
                f"The answer takes longer than {SECONDS:.0f} s.",
                "Choose a shorter time range, or use a terminal.",
            )
        ) from None
    answered = done.returncode == 0 or (done.returncode == UNKNOWN and out.stat().st_size > 0)
    if not answered:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"]
        raise UnansweredError(_failed(arguments, said[-1].removeprefix("kvitals: ")[:MAX_WORDS], ""))
    files = {one.name: _read(one, arguments) for one in sorted((folder / "files").glob("*.*"))}
    return CommandOutput(_read(out, arguments), files)


def _read(path: Path, arguments: Sequence[str]) -> bytes:
    try:
        return read_regular(path, MAX_BYTES)
    except FileRefusedError:
        raise UnansweredError(_failed(arguments, "The answer is too large for a page.", "Ask in a terminal.")) from None


def _failed(arguments: Sequence[str], why: str, todo: str) -> Failure:
    return Failure("Not available", why, todo, (f"kvitals {arguments[0]} --help",))
