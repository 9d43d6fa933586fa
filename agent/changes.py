"""Notice that files have changed, by looking at them now and then. No events: they do not work on network file
systems, and a mounted ConfigMap changes by a link two folders up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """What tells one content of a file from another; None where there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class FileChanges:
    """Tells that files are others than they were, once they are at rest.

    A file that someone writes is empty first and whole at the end, and each state may make sense by itself. So a
    change counts when two looks in a row find the same.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known = self._before = _stamps(paths)

    def look(self, paths: Iterable[Path]) -> bool:
        """Whether there is a change at rest, that was not told yet."""
        now = _stamps(paths)
        at_rest, self._before = now == self._before, now
        if not at_rest or now == self._known:
            return False
        self._known = now
        return True

    def take(self, paths: Iterable[Path]) -> None:
        """The files are known as they are now."""
        self._known = self._before = _stamps(paths)


def _stamps(paths: Iterable[Path]) -> dict[Path, Stamp | None]:
    return {path: stamp(path) for path in paths}
