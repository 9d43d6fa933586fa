"""Standard output and standard error of every command. A command prints as usual; a failure to print ends here.

An answer that standard output does not take in full is an `OutputError`, whatever the command is and whoever prints.
Notes are lossy: that a note cannot be shown does not change how a command ends.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any

from kvitals.ui.cli import letters


class OutputError(Exception):
    """Standard output does not take the answer. No subclass of OSError, which libraries suppress when they print.

    closed_by_reader: a program such as `head` reads no further, which is no failure."""

    def __init__(self, why: str, closed_by_reader: bool = False) -> None:
        super().__init__(f"the answer cannot be written to standard output: {why}. Send it to another file or program.")
        self.closed_by_reader = closed_by_reader


class _Lossy(io.FileIO):
    """A file on which nothing fails: that a message cannot be shown does not change what a command ends with."""

    def write(self, data: Any) -> int:
        """As much as there is room for; the rest is lost."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(memoryview(data))


class _Answer(io.FileIO):
    """A file on which the first failure is an OutputError; what is left in buffers is dropped after it.

    unusable: why nothing can be written from the start; empty: it is tried."""

    def __init__(self, number: int, unusable: str) -> None:
        super().__init__(number, "w", closefd=False)
        self._unusable = unusable
        self._failed = False

    def write(self, data: Any) -> int:
        """Bytes written; it waits where the reader is slow. Raises OutputError."""
        if self._failed:
            return len(memoryview(data))
        try:
            if self._unusable:
                raise OSError(0, self._unusable)
            while (written := super().write(data)) is None:  # the other end made it non-blocking
                select.select((), (self,), ())
            return written
        except OSError as error:
            self._failed = True
            raise OutputError(str(error.strerror), isinstance(error, BrokenPipeError)) from None


def prepare(notes_only: bool) -> None:
    """Make the standard streams of this process fail as described above.

    A stream that the caller closed becomes /dev/null, since files would get its number. Letters that an encoding lacks
    are replaced. notes_only: standard output has no answer either, as of a server."""
    unusable = ""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            opened = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)
            setattr(sys, f"__{name}__", opened)
            unusable = "it is closed" if number == 1 else unusable
    letters.register()
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _text(_Lossy(2, "w", closefd=False), sys.stderr, line_buffering=True)
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = lossy_output(sys.stdout) if notes_only else answer_output(sys.stdout, unusable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=letters.NAME)


def answer_output(stream: io.TextIOWrapper, unusable: str = "") -> io.TextIOWrapper:
    """A stream to the same file that raises OutputError. unusable: why it takes nothing; empty: it is tried."""
    return _text(_Answer(stream.fileno(), unusable), stream)


def lossy_output(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """A stream to the same file that raises nothing."""
    return _text(_Lossy(stream.fileno(), "w", closefd=False), stream)


def _text(raw: io.FileIO, like: io.TextIOWrapper, line_buffering: bool = False) -> io.TextIOWrapper:
    lines = line_buffering or like.line_buffering or like.write_through  # PYTHONUNBUFFERED
    return io.TextIOWrapper(io.BufferedWriter(raw), like.encoding, line_buffering=lines)
