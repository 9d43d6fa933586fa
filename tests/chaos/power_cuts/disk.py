"""A disk, and what it can hold after the power was cut.

Durable is what was synced: a file's content by `fsync` of the file, a name by `fsync` of its directory and by nothing
else. Of the rest anything can be there: each sector that was written since has the old content or the new, in any
order, each change of a size and of a name was done or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .trace import Operation

SECTORS = (512, 4096)


@dataclass
class _File:
    """A file apart from its name. pending: writes (offset, data) and truncations (size, None) since the last sync."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Change:
    """A change of names in a directory: `name` is `file` from now on (None: nothing), and `gone` is no more."""

    name: str
    file: _File | None
    gone: str = ""


class Disk:
    """The disk below `root`, which is durable and empty at first."""

    def __init__(self, root: Path, ignored: Callable[[str], bool] = lambda _: False) -> None:
        """ignored: whether a sync of a path is left out, to see that this is found."""
        self._root = root
        self._ignored = ignored
        self._names: dict[str, _File | None] = {}  # None: a directory
        self._durable: dict[str, _File | None] = {}
        self._pending: dict[str, list[_Change]] = {}

    def do(self, operation: Operation) -> None:
        """Do what was recorded."""
        path = operation.path
        if operation.kind == "create":
            if path not in self._names:
                self._change(_Change(path, _File()))
        elif operation.kind == "mkdir":
            self._names[path] = None
            self._pending.setdefault(str(Path(path).parent), []).append(_Change(path, None))
        elif operation.kind == "unlink":
            del self._names[path]
            self._pending.setdefault(str(Path(path).parent), []).append(_Change("", None, path))
        elif operation.kind == "rename":
            self._change(_Change(operation.to, self._names.pop(path), path))
        elif operation.kind == "sync":
            self._sync(path)
        elif (file := self._names.get(path)) is not None:
            self._write(file, operation)

    def _change(self, change: _Change) -> None:
        self._names[change.name] = change.file
        self._pending.setdefault(str(Path(change.name).parent), []).append(change)

    def _write(self, file: _File, operation: Operation) -> None:
        if operation.kind == "truncate":
            change: tuple[int, bytes | None] = operation.offset, None
        else:
            change = len(file.content) if operation.kind == "append" else operation.offset, operation.data
        file.pending.append(change)
        _apply(file.content, *change)

    def _sync(self, path: str) -> None:
        if self._ignored(path):
            return
        if path == str(self._root) or (path in self._names and self._names[path] is None):
            for change in self._pending.pop(path, []):
                _rename(self._durable, change)
        elif (file := self._names.get(path)) is not None:
            file.durable, file.pending = bytes(file.content), []

    def after_cut(self, to: Path, rng: random.Random) -> None:
        """Write what can be left of it below `to`. Raises OSError."""
        kept = rng.choice((0.0, 0.1, 0.5, 0.9))  # how much of what was not synced is there
        sector = rng.choice(SECTORS)
        names = dict(self._durable)
        for changes in self._pending.values():
            for change in changes:
                if rng.random() < kept:
                    _rename(names, change)
        for name, file in sorted(names.items()):
            parents = Path(name).relative_to(self._root).parents
            if any(str(self._root / one) not in names for one in parents if one != Path()):
                continue  # its directory is not there
            path = to / Path(name).relative_to(self._root)
            if file is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_content(file, kept, sector, rng))


def _content(file: _File, kept: float, sector: int, rng: random.Random) -> bytes:
    content = bytearray(file.durable)
    for offset, data in file.pending:
        if data is None:
            if rng.random() < kept:
                _apply(content, offset, None)
            continue
        at = offset
        while at < offset + len(data):
            end = min((at // sector + 1) * sector, offset + len(data))
            if rng.random() < kept:
                _apply(content, at, data[at - offset : end - offset])
            at = end
    return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write `data` at `offset`; without data make `offset` the size."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _rename(names: dict[str, _File | None], change: _Change) -> None:
    names.pop(change.gone, None)
    if change.name:
        names[change.name] = change.file
