"""A command in a terminal of its own: what stands on its screen, keys, and whether the terminal is as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
"""For everything that is waited for: the machine may be busy."""

KEYS = {
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "enter": "\r",
    "space": " ",
    "esc": "\x1b",
    "ctrl+c": "\x03",
}
ALTERNATE_SCREEN, NORMAL_SCREEN, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Terminal:
    """Runs `kvitals` with arguments in a pseudo-terminal, and emulates the screen."""

    def __init__(
        self, arguments: Sequence[str], columns: int = 80, lines: int = 24, folder: Path = ROOT, before: str = ""
    ) -> None:
        """folder: where the command runs. before: Python that its process runs first."""
        self.screen = pyte.Screen(columns, lines)
        self.written = ""
        self._stream = pyte.ByteStream(self.screen)
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.attributes = termios.tcgetattr(side)
        self._side = side
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{before}\nfrom kvitals.ui.cli.launch import main; main()", *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._main)
        os.close(self._side)

    @property
    def text(self) -> str:
        """The screen, line by line."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def press(self, *keys: str) -> None:
        """Types keys: names of `KEYS`, or characters."""
        for key in keys:
            os.write(self._main, KEYS.get(key, key).encode())

    def type_bytes(self, typed: bytes) -> None:
        """Types what need not be text."""
        os.write(self._main, typed)

    def wait(self, condition: Callable[[str], bool]) -> str:
        """The screen once a condition holds. Raises AssertionError with the screen where it never does."""
        until = time.monotonic() + SECONDS
        while not condition(self.text):
            assert time.monotonic() < until, f"not within {SECONDS} s:\n{self.text}"
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.written[-4000:]}"
            self._take(0.1)
        return self.text

    def wait_for(self, words: str) -> str:
        """The screen once it has these words."""
        return self.wait(lambda text: words in text)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command."""
        self.process.send_signal(number)

    def end(self) -> int:
        """The exit code, once it ended by itself."""
        until = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < until, f"does not end:\n{self.text}"
            self._take(0.1)
        self._take(0.1)
        return self.process.returncode

    def is_restored(self) -> bool:
        """Whether the terminal's modes are those from before, on its normal screen with a cursor."""
        same = termios.tcgetattr(self._side) == self.attributes
        normal = self.written.rfind(NORMAL_SCREEN) > self.written.rfind(ALTERNATE_SCREEN)
        return same and normal and self.written.rfind(SHOW_CURSOR) > self.written.rfind("\x1b[?25l")

    def _take(self, seconds: float) -> None:
        """Read what the command writes, at most so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._main], [], [], left)
            if not ready:
                return
            data = os.read(self._main, 1 << 16)
            self.written += data.decode("utf-8", "replace")
            self._stream.feed(data)
