"""The commands that make a change and take it back: words without a shell, each with a time limit, output bounded."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_WORDS, MAX_WORD_BYTES = 256, 32_768
OUTPUT_BYTES = 4_000
"""Of what a command prints, from its end."""
GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL, for a command that is ended."""
READ_BYTES, MAX_READS = 65_536, 256
POLL_SECONDS = 0.05


class CommandError(ValueError):
    """A command cannot be used; the message says why and what to write."""


@dataclass(frozen=True)
class CommandRun:
    """How a command ended. code: its exit status, negative for a signal, None where it could not be started."""

    code: int | None
    seconds: float
    output: str
    ended: str = ""  # why it was ended from outside; empty where it ended by itself

    @property
    def succeeded(self) -> bool:
        return self.code == 0 and not self.ended

    @property
    def sentence(self) -> str:
        """How it ended, for people, with the last line that it printed."""
        last = self.output.strip().rpartition("\n")[2]
        how = self.ended or (last if self.code is None else f"exit status {self.code}")
        return f"{how} after {self.seconds:.0f} s" + (f": {last}" if last and last != how else "")


def parse_command(text: str, option: str) -> tuple[str, ...]:
    """The words of a command, split as a shell does; nothing in them is expanded. Raises CommandError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise CommandError(f"{option} {text!r}: {error}; close each quote") from None
    if not words:
        raise CommandError(f"{option} is empty: write a command, such as 'systemctl restart vllm'")
    if len(words) > MAX_WORDS or any(len(word.encode(errors="replace")) > MAX_WORD_BYTES for word in words):
        raise CommandError(f"{option} is too long: at most {MAX_WORDS} words; write a script and name it")
    return words


def run_command(words: Sequence[str], limit: float, stopped: Callable[[], bool] = lambda: False) -> CommandRun:
    """Run a command to its end, in a process group of its own.

    limit: seconds after which it is ended. stopped: asked often; the command is ended as soon as it is true.
    """
    begun = time.monotonic()
    try:
        process = subprocess.Popen(  # noqa: S603 (the operator names the command; no shell reads it)
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = f"{words[0]} cannot be started: {getattr(error, 'strerror', None) or error}"
        return CommandRun(None, time.monotonic() - begun, why)
    output, ended = bytearray(), ""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    with process.stdout as pipe:
        while process.poll() is None and not ended:
            _drain(pipe.fileno(), output)
            if stopped():
                ended = "stopped"
            elif time.monotonic() - begun > limit:
                ended = f"stopped at its limit of {limit:.0f} s"
            else:
                time.sleep(POLL_SECONDS)
        if ended:
            _end(process)
        _drain(pipe.fileno(), output)  # what it left running may keep the pipe open, and is not waited for
    text = bytes(output[-OUTPUT_BYTES:]).decode(errors="replace")
    return CommandRun(process.wait(), time.monotonic() - begun, text, ended)


def _drain(pipe: int, output: bytearray) -> None:
    """Add what a command has printed so far, and keep its end."""
    for _ in range(MAX_READS):
        try:
            part = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return
        if not part:
            return
        output += part
        del output[:-OUTPUT_BYTES]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command with all that it started in its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return
