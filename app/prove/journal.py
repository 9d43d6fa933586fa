"""What stands of a change that is being tried, in a file that outlives all processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from kvitals.agent.paths import state_directory
from kvitals.series.files import FileInUseError, lock_file, make_directory, read_regular, replace_file
from kvitals.series.undecodable import UNDECODABLE

JournalState = Literal["applied", "rolled back", "rollback failed", "kept"]
OPEN_STATES: tuple[JournalState, ...] = ("applied", "rollback failed")
MAX_BYTES = 1 << 20
_FILE, _LOCK = "trial.json", "trial.lock"


class Journal(msgspec.Struct, frozen=True):
    """The last change that was tried on this machine. at: when the state began, seconds since the epoch. pid: of the
    supervisor."""

    state: JournalState
    engine: str
    apply: tuple[str, ...]
    rollback: tuple[str, ...]
    at: float
    pid: int
    note: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the change may still be in force, without anybody who watches it."""
        return self.state in OPEN_STATES


def prove_directory() -> Path:
    """Where the journal is. Created where it is missing. Raises OSError."""
    directory = state_directory() / "prove"
    make_directory(directory, 0o700)
    return directory


def journal_file(directory: Path) -> Path:
    return directory / _FILE


def write_journal(path: Path, journal: Journal) -> None:
    """Replace the journal; durable when this returns. Raises OSError."""
    replace_file(path, msgspec.json.encode(journal), 0o600)


def read_journal(path: Path) -> Journal | None:
    """The journal; None where there is none, or nothing that can be read. Raises OSError."""
    try:
        return msgspec.json.decode(read_regular(path, MAX_BYTES), type=Journal)
    except (FileNotFoundError, *UNDECODABLE):
        return None


def forget_journal(path: Path) -> None:
    """Somebody has seen to the change. Raises OSError."""
    path.unlink(missing_ok=True)


def lock_trials(directory: Path) -> int | None:
    """The right to try changes on this machine, until the descriptor is closed; None where another trial has it."""
    try:
        descriptor = lock_file(directory / _LOCK)
    except FileInUseError:
        return None
    os.set_inheritable(descriptor, True)  # a supervisor that outlives its prover keeps it until it is done
    return descriptor
