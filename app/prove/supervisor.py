"""The process that acts: it applies a change, and takes it back when it is asked to or when the prover is gone.

    python -m kvitals.app.prove.supervisor

It has its own session, so Ctrl-C in the prover's terminal does not reach it. Standard input has one JSON document a
line: first an `Assignment`, then `"apply"`, `"rollback"` or `"leave"`. Standard output answers each with a
`SupervisorAnswer`. The end of standard input without `"leave"` is the prover's death: a running apply is ended, and the
rollback is run, three times where it fails. The journal says at each moment what stands.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from kvitals.app.prove.actuator import CommandRun, run_command
from kvitals.app.prove.journal import Journal, JournalState, write_journal
from kvitals.series.undecodable import UNDECODABLE

ATTEMPTS = 3
BETWEEN_SECONDS = 5.0
MAX_LINE_BYTES = 1 << 20


class Assignment(msgspec.Struct, frozen=True):
    """What a supervisor may do. limit: seconds for each command. journal: the file that says what stands."""

    apply: tuple[str, ...]
    rollback: tuple[str, ...]
    limit: float
    journal: str
    engine: str = ""


class SupervisorAnswer(msgspec.Struct, frozen=True):
    """How what was asked for went."""

    code: int | None
    seconds: float
    output: str
    ended: str = ""


class Supervisor:
    """One assignment, until it is left or gone back on."""

    def __init__(self, assignment: Assignment, stopped: threading.Event) -> None:
        self._assignment = assignment
        self._stopped = stopped
        self._applied = False

    def apply(self) -> CommandRun:
        """Make the change. It counts as made from here on, whatever becomes of the command."""
        self._applied = True
        self._write("applied")
        return run_command(self._assignment.apply, self._assignment.limit, self._stopped.is_set)

    def rollback(self) -> CommandRun:
        """Take the change back, with further attempts where that fails."""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(BETWEEN_SECONDS)
            done = run_command(self._assignment.rollback, self._assignment.limit)
            if done.succeeded:
                self._applied = False
                self._write("rolled back")
                return done
        self._write("rollback failed", done.sentence)
        return done

    def leave(self) -> CommandRun:
        """The change stays, or is taken back already."""
        if self._applied:
            self._write("kept")
        self._applied = False
        return CommandRun(0, 0.0, "")

    def abandoned(self) -> None:
        """Nobody asks any more: what was changed is taken back."""
        if not self._applied:
            return
        done = self.rollback()
        words = shlex.join(self._assignment.rollback)
        if done.succeeded:
            _tell(f"kvitals prove ended early. kvitals reverts the change: {words}")
        else:
            _tell(f"kvitals prove ended early, and the rollback failed ({done.sentence}). Run it: {words}")

    def _write(self, state: JournalState, note: str = "") -> None:
        given = self._assignment
        journal = Journal(state, given.engine, given.apply, given.rollback, time.time(), os.getpid(), note)
        with contextlib.suppress(OSError):  # a full disk keeps nobody from going back
            write_journal(Path(given.journal), journal)


def supervise() -> None:
    """Serve standard input until it ends."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    gone = threading.Event()

    def end(*_: object) -> None:
        gone.set()
        lines.put(b"")

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=_read, args=(lines, gone), daemon=True).start()
    try:
        supervisor = Supervisor(msgspec.json.decode(lines.get(), type=Assignment), gone)
    except UNDECODABLE:
        return
    while not gone.is_set() and (line := lines.get()):
        do = {b'"apply"': supervisor.apply, b'"rollback"': supervisor.rollback, b'"leave"': supervisor.leave}
        done = do[line.strip()]()
        _answer(SupervisorAnswer(done.code, done.seconds, done.output, done.ended))
    supervisor.abandoned()


def _read(lines: queue.SimpleQueue[bytes], gone: threading.Event) -> None:
    with contextlib.suppress(OSError, ValueError):
        while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
            lines.put(line)
    gone.set()
    lines.put(b"")


def _answer(answer: SupervisorAnswer) -> None:
    with contextlib.suppress(OSError):  # the prover is gone, which the end of standard input says
        os.write(1, msgspec.json.encode(answer) + b"\n")


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="replace"))


if __name__ == "__main__":
    supervise()
