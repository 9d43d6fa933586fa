"""Texts that must not get onto a disk, and the search for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvitals.series.recordings import CaptureReader

MARK = "qzplanted"
PROMPT = f"{MARK}-prompt: my name is Ada and my diagnosis is a secret. "
ANSWER = f"{MARK}-answer"
KEY = f"sk-{MARK}-0123456789abcdef0123456789abcdef"
SESSION = f"{MARK}-session"
CHUNK = 1 << 20


def tenant(name: object) -> str:
    """A tenant's name in plain."""
    return f"{MARK}-tenant-{name}"


def found_in(folder: Path) -> list[str]:
    """The files below a folder with a mark in them, captures unpacked; each with what is around the mark."""
    return [f"{file.relative_to(folder)}: {around}" for file in _files(folder) if (around := _first(file)) is not None]


def size_of(folder: Path) -> tuple[int, int]:
    """Files below a folder, and bytes of them."""
    sizes = [file.stat().st_size for file in _files(folder)]
    return len(sizes), sum(sizes)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _first(file: Path) -> str | None:
    for data in _pieces(file):
        at = data.lower().find(MARK.encode())
        if at >= 0:
            return repr(data[max(at - 40, 0) : at + 60])
    return None


def _pieces(file: Path) -> Iterator[bytes]:
    """What a file holds, in pieces that overlap by more than a mark."""
    yield str(file).encode()
    with file.open("rb") as stream:
        rest = b""
        while chunk := stream.read(CHUNK):
            yield rest + chunk
            rest = chunk[-len(MARK) :]
    if file.suffix == ".kvcap":
        with CaptureReader.open(file) as records:
            for record in records:
                yield record.payload
