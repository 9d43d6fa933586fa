"""Histories that SQLite refused: renamed, and kept until somebody recovers or deletes them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

KEPT = 2
"""So many, the newest."""
_FORMAT = "%Y%m%dT%H%M%SZ"
_PARTS = ("", "-wal", "-shm")


@dataclass(frozen=True)
class SetAsideFile:
    """A damaged history. at: when it was renamed, seconds since the epoch; all that it has is older."""

    path: Path
    at: float

    def delete(self) -> None:
        """With its log."""
        for part in _PARTS:
            self.path.with_name(self.path.name + part).unlink(missing_ok=True)


def set_aside_files(history: Path) -> list[SetAsideFile]:
    """The damaged histories beside a history, the oldest first."""
    found = []
    for path in history.parent.glob(f"{history.name}.damaged-*Z"):
        with contextlib.suppress(ValueError):
            at = datetime.strptime(path.name.rpartition("-")[2], _FORMAT).replace(tzinfo=UTC)
            found.append(SetAsideFile(path, at.timestamp()))
    return sorted(found, key=lambda one: one.at)


def set_aside(history: Path) -> str:
    """Rename a damaged history and delete the oldest such files; its new name. Raises OSError."""
    for old in set_aside_files(history)[: -KEPT + 1 or None]:
        old.delete()
    name = f"{history.name}.damaged-{datetime.now(UTC):{_FORMAT}}"
    for part in _PARTS:
        with contextlib.suppress(FileNotFoundError):
            history.with_name(history.name + part).rename(history.with_name(name + part))
    return name


def set_aside_text(files: Sequence[SetAsideFile]) -> str:
    """What these files are and what to do, without a full stop; empty where there are none."""
    if not files:
        return ""
    names = " and ".join(str(one.path) for one in files)
    return (
        f"older data is in {names}, set aside because it is damaged: recover it (`sqlite3 FILE .recover`) or delete it"
    )
