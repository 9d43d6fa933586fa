"""Follows files that others write line by line, over rotations, truncations and restarts of the agent.

    tail = Tail(Path("/var/log/nginx/llm*.jsonl"), places)     # places: as they were told before, None: never looked
    tail.look(t)                                               # find files that came, and files that went
    for line in tail.lines(budget): ...                        # whole lines, None for one that is too long
    tail.places                                                # to be kept

A file is known by its inode and by a hash of how it begins, so it keeps its place when it is renamed, and a new one
under an old name or inode begins at its start. A line that was handed out counts as read. A file that was rotated
away is read on for a while, since its writer may still have it open. Blocking.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path

import msgspec

MAX_FILES = 32
"""Files that are followed, those written last."""

MAX_ENTRIES = 10_000
"""Entries of a folder that are looked at for a pattern."""

MAX_LINE = 4 << 20
"""Bytes: a payload with a prompt of a million tokens in it is longer, and is skipped."""

CHUNK = 1 << 20
HEAD = 256
"""Bytes from the beginning of a file by which it is told from another with its inode."""

ROTATED_SECONDS = 60.0
"""For how long a file is read on after it was rotated away and nothing more came."""

NO_FILE = "it is not a regular file; name the file that the log is written to"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")


class TailPosition(msgspec.Struct, frozen=True):
    """How far a file was read."""

    inode: int
    offset: int
    head: str = ""  # hash of its first `head_bytes`
    head_bytes: int = 0
    skipping: bool = False  # within a line that is too long


@dataclass
class TailBudget:
    """What a look may cost."""

    left: int  # bytes


class Tail:
    """The files of one path, whose last part may be a pattern. For one thread at a time."""

    def __init__(self, path: Path, places: Sequence[TailPosition] | None) -> None:
        """`places`: where it was before the agent restarted. None: what is there now is not read, only what comes."""
        self.path = path
        self._is_pattern = any(c in path.name for c in "*?[")
        self._unclaimed = list(places or ())
        self._from_end = places is None
        self._first = True
        self._files: dict[tuple[int, int], _File] = {}  # by device and inode
        self.problems: list[str] = []
        """What kept the last look from seeing all, for people."""
        self._refused = False  # in the last look: something is there that cannot be followed

    @property
    def places(self) -> list[TailPosition] | None:
        """Where each file is, for after a restart; None as long as nobody looked."""
        if self._first:
            return None if self._from_end else self._unclaimed
        return [file.place for file in self._files.values()]

    @property
    def unusable(self) -> bool:
        """Whether what the path names cannot be followed: a pipe, a device, a file without permission. Waiting does not
        help then, as it does where no file is there yet."""
        return self._refused and not self._files

    @property
    def behind(self) -> int:
        """Bytes that are still to be read."""
        return sum(file.behind for file in self._files.values())

    def look(self, t: float) -> None:
        """Find what files there are. `t`: seconds of a clock that nobody sets."""
        self.problems, self._refused = [], False
        found = self._found()
        for file in self._files.values():
            file.check()
        for path, info in found:
            key = info.st_dev, info.st_ino
            if key not in self._files:
                self._open(path, at_end=self._from_end and self._first)
        if self._unclaimed and self._first:
            self._find_rotated()
        present = {(info.st_dev, info.st_ino) for _, info in found}
        for key, file in list(self._files.items()):
            file.seen(t, key in present)
            if file.idle_since is not None and t - file.idle_since >= ROTATED_SECONDS:
                file.close()
                del self._files[key]
        self._first, self._unclaimed = False, []

    def lines(self, budget: TailBudget) -> Iterator[bytes | None]:
        """What came since the last time, as far as the budget goes, the files that were rotated away first."""
        for file in sorted(self._files.values(), key=lambda one: one.is_present):
            yield from file.lines(budget)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _found(self) -> list[tuple[Path, os.stat_result]]:
        files: list[tuple[Path, os.stat_result]] = []
        try:
            if not self._is_pattern:
                return [(self.path, self.path.stat())]
            for path in self._siblings():
                if fnmatchcase(path.name, self.path.name):
                    with suppress(OSError):  # it went meanwhile, or is a link to nowhere
                        info = path.stat()
                        files += [(path, info)] if stat.S_ISREG(info.st_mode) else []
        except FileNotFoundError:
            self.problems.append(
                f"{self.path}: this file does not exist yet; the agent reads it from its start when it appears"
            )
            return []
        except OSError as error:
            self._refuse(self.path, str(error.strerror))
            return []
        if not files:
            self.problems.append(
                f"{self.path}: no file matches yet; the agent reads a matching file from its start when it appears"
            )
        if len(files) > MAX_FILES:
            self.problems.append(
                f"{self.path}: {len(files)} files match; only the {MAX_FILES} most recently written are read. "
                f"Match fewer"
            )
        return sorted(files, key=lambda one: one[1].st_mtime)[-MAX_FILES:]

    def _siblings(self) -> Iterator[Path]:
        with os.scandir(self.path.parent) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_ENTRIES:
                    self.problems.append(
                        f"{self.path.parent}: has more than {MAX_ENTRIES} entries; the rest were not read. Give the"
                        " log a folder of its own"
                    )
                    return
                yield Path(entry.path)

    def _open(self, path: Path, *, at_end: bool) -> None:
        try:
            file = _File(path)
        except (OSError, ValueError) as error:
            self._refuse(path, str(error.strerror if isinstance(error, OSError) else error))
            return
        if self._resume(file):
            return
        if at_end:
            file.go_to_end()
        self._files[file.key] = file

    def _refuse(self, path: Path, why: str) -> None:
        self._refused = True
        self.problems.append(f"{path}: cannot be read: {why}")

    def _find_rotated(self) -> None:
        """Open the files that were being read before a restart and have another name now."""
        wanted = {place.inode for place in self._unclaimed}
        with suppress(OSError):
            for path in self._siblings():
                with suppress(OSError, ValueError):
                    info = path.stat()
                    if info.st_ino in wanted and (info.st_dev, info.st_ino) not in self._files:
                        file = _File(path)
                        if not self._resume(file):
                            file.close()

    def _resume(self, file: _File) -> bool:
        """Go on in a file where it was left; whether it is one that was read before."""
        claimed = next((place for place in self._unclaimed if file.is_at(place)), None)
        if claimed is None:
            return False
        self._unclaimed.remove(claimed)
        file.go_to(claimed)
        self._files[file.key] = file
        return True


class _File:
    """An open file and the place in it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, or ValueError for what can not be followed."""
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: to open a device can have an effect
            raise ValueError(NO_FILE)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        info = os.fstat(self._fd)
        problem = "" if stat.S_ISREG(info.st_mode) else NO_FILE
        if not problem and os.pread(self._fd, 8, 0).startswith(_COMPRESSED):
            problem = "it is compressed; change the pattern so that it matches only files that are still written to"
        if problem:
            os.close(self._fd)
            raise ValueError(problem)
        self.key = info.st_dev, info.st_ino
        self.is_present = True
        self.idle_since: float | None = None  # since when it is gone and nothing more came
        self._size = info.st_size
        self._offset = 0
        self._begin = b""  # as far as it was read, and `HEAD` bytes at most
        self._skipping = False
        self._is_read = False  # to its end, but for a line that is half there

    @property
    def behind(self) -> int:
        return max(self._size - self._offset, 0)

    @property
    def place(self) -> TailPosition:
        octets = min(self._offset, len(self._begin))
        return TailPosition(self.key[1], self._offset, _hash(self._begin[:octets]), octets, self._skipping)

    def is_at(self, place: TailPosition) -> bool:
        """Whether a place is one of this file."""
        same = place.inode == self.key[1] and place.offset <= self._size and 0 <= place.head_bytes <= HEAD
        return same and _hash(os.pread(self._fd, place.head_bytes, 0)) == place.head

    def go_to(self, place: TailPosition) -> None:
        """Go on at a place that is one of this file."""
        self._begin = os.pread(self._fd, place.head_bytes, 0)
        self._offset, self._skipping = place.offset, place.skipping

    def go_to_end(self) -> None:
        """Read only what comes from now on, from the next line if one is half there."""
        self._begin = os.pread(self._fd, HEAD, 0)
        self._offset = self._size
        self._skipping = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"

    def check(self) -> None:
        """Begin anew where the file was truncated, even if as much was written since."""
        size, self._size = self._size, os.fstat(self._fd).st_size
        self._is_read = self._is_read and self._size == size
        octets = min(self._offset, len(self._begin))
        if self._size < self._offset or os.pread(self._fd, octets, 0) != self._begin[:octets]:
            self._offset, self._begin, self._skipping = 0, b"", False

    def seen(self, t: float, is_present: bool) -> None:
        """Whether it still has its name."""
        self.is_present = is_present
        if is_present or not self._is_read:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = t

    def lines(self, budget: TailBudget) -> Iterator[bytes | None]:
        rest = b""
        while budget.left > 0:
            chunk = os.pread(self._fd, CHUNK, self._offset + len(rest))
            if not chunk:
                self._is_read = True
                return
            budget.left -= len(chunk)
            data = rest + chunk
            if self._offset <= len(self._begin) < HEAD:
                self._begin = (self._begin[: self._offset] + data)[:HEAD]
            *whole, rest = data.split(b"\n")
            for line in whole:
                self._offset += len(line) + 1
                is_end, self._skipping = self._skipping, False
                if not is_end:
                    yield line if len(line) <= MAX_LINE else None
            if self._skipping or len(rest) > MAX_LINE:
                self._offset, rest = self._offset + len(rest), b""
                is_known, self._skipping = self._skipping, True
                if not is_known:
                    yield None

    def close(self) -> None:
        os.close(self._fd)


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
