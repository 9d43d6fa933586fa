"""What the judge remembers, kept over a restart of the agent: since when each finding has been open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvitals.agent.paths import state_directory
from kvitals.diagnoser.judgement import Memory
from kvitals.series.files import FileInUseError, lock_file, make_directory, read_regular, replace_file, too_large
from kvitals.series.undecodable import UNDECODABLE

MAX_BYTES = 16 << 20
MAX_GAP_SECONDS = 300.0
CLOSE_SECONDS = 1.0
"""A disk that does not answer for so long does not keep the agent from ending."""


def state_file() -> Path:
    """Where it is kept."""
    return state_directory() / "state.json"


def load_state(path: Path, now: float) -> dict[str, Memory]:
    """What was saved of troubles that were seen within `MAX_GAP_SECONDS` before `now`: nobody knows whether an
    older one went on. Nothing where there is no usable file, since the state can be seen anew."""
    try:
        saved = msgspec.json.decode(read_regular(path, MAX_BYTES), type=dict[str, Memory])
    except (OSError, *UNDECODABLE):
        return {}
    return {key: m for key, m in saved.items() if m.last_true is not None and 0 <= now - m.last_true < MAX_GAP_SECONDS}


class StateKeeper:
    """Saves the state of a running agent in a thread of its own, so that a slow disk holds up no cycle.

    One agent at a time uses a state file. A second one on the same directory says so and runs without: its findings
    begin anew with each restart, and nothing of the first one's state is overwritten.
    """

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """`report` is called, from any thread, with what a person should read: once for each change."""
        self._path = path
        self._report = report
        self._lock: int | None = None
        self._next: bytes | None = None
        self._saved: bytes | None = None
        self.problem = ""
        """Why the state is not saved, and what to do; empty while it is."""
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)

    def open(self, now: float) -> dict[str, Memory]:
        """Take the state file over; what was saved in it. Nothing where it cannot be used, which is reported."""
        self._thread.start()
        return load_state(self._path, now) if self._is_ours() else {}

    def save(self, memory: dict[str, Memory]) -> None:
        """Have the state saved soon. Where the disk is slow the newest state replaces one that waits."""
        content = _encoded(memory)
        with self._changed:
            self._next = content
            self._changed.notify()

    def close(self) -> None:
        """Save what waits and let the file go; returns after `CLOSE_SECONDS` in any case."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._ending)
                content, self._next = self._next, None
            if content is None:
                break
            if self._is_ours() and (content != self._saved or not self._path.exists()):
                self._save(content)
        if self._lock is not None:
            os.close(self._lock)

    def _is_ours(self) -> bool:
        """Whether this agent holds the lock, which it takes when it can."""
        if self._lock is not None:
            return True
        try:
            make_directory(self._path.parent)
            self._lock = lock_file(self._path.with_suffix(".lock"))
        except FileInUseError:
            self._failed(
                f"another agent uses {self._path.parent}, so this one keeps no state over a restart: give it "
                f"its own directory (XDG_STATE_HOME)"
            )
        except OSError as error:
            self._failed(
                f"{self._path.parent} cannot be used ({error.strerror}): give this user access to the directory"
            )
        return self._lock is not None

    def _save(self, content: bytes) -> None:
        try:
            _write(self._path, content)
        except OSError as error:
            self._failed(
                f"{self._path} cannot be saved ({error.strerror}): free disk space there, or give this user access "
                "to the directory."
                " After a restart findings start anew; the agent tries again every cycle"
            )
            return
        self._saved = content
        if self.problem:
            self.problem = ""
            self._report("state: saved again")

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._report(f"state: {problem}")


def _encoded(memory: dict[str, Memory]) -> bytes:
    return msgspec.json.encode({key: m for key, m in memory.items() if m.true_since is not None})


def _write(path: Path, content: bytes) -> None:
    if len(content) > MAX_BYTES:
        raise too_large(path, MAX_BYTES)
    make_directory(path.parent)
    replace_file(path, content)
