"""What strace recorded, as operations on files."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = "openat,write,writev,pwrite64,fsync,fdatasync,ftruncate,rename,unlink,mkdir"
RUN_SECONDS = 300.0
_LINE = re.compile(r"(\d+) +(.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)(?:<(\S*)>)?")
_TEXT = re.compile(r"(?:\\x[0-9a-f]{2})*")


@dataclass(frozen=True)
class Operation:
    """One call that succeeded. kind: report, create, truncate, write, append, sync, rename, unlink or mkdir."""

    kind: str
    path: str = ""
    to: str = ""
    data: bytes = b""
    offset: int = 0  # of a write; the size of a truncation


def record(command: Sequence[str], trace: Path, options: Sequence[str] = ()) -> str:
    """Run a Python module's `command` under strace; what it wrote to its output. Raises RuntimeError where it fails."""
    strace = [
        "strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", *options,
        "-o", str(trace),
    ]  # fmt: skip
    done = subprocess.run(
        [*strace, sys.executable, "-m", *command], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def operations(trace: Path, folder: Path) -> list[Operation]:
    """What happened in `folder`, in the order in which it was done, and the reports in between."""
    positions: dict[tuple[str, str], int] = {}
    found = (one for call in _calls(trace) for one in _operations(*call, positions))
    return [one for one in found if one.kind == "report" or Path(one.path).is_relative_to(folder)]


def _calls(trace: Path) -> Iterator[tuple[str, str, str, str]]:
    """Name, arguments, result and the path of the result of each call that succeeded, when it was over."""
    begun: dict[str, str] = {}
    with trace.open() as lines:
        for line in lines:
            matched = _LINE.match(line)
            if matched is None:
                continue
            process, text = matched.groups()
            if text.endswith("<unfinished ...>"):
                begun[process] = text.removesuffix("<unfinished ...>").rstrip()
                continue
            if resumed := _RESUMED.match(text):
                text = begun.pop(process, "") + text[resumed.end() :]
            call = _CALL.match(text)
            if call and not call[3].startswith("-"):
                yield call[1], call[2], call[3], _plain(call[4] or "").decode(errors="replace")


def _operations(
    name: str, arguments: str, result: str, opened: str, positions: dict[tuple[str, str], int]
) -> Iterator[Operation]:
    parts = arguments.split(", ")
    number, _, rest = parts[0].partition("<")
    path = _plain(rest.partition(">")[0]).decode(errors="replace")
    if name == "openat":
        positions[result, opened] = -1 if "O_APPEND" in arguments else 0
        if "O_CREAT" in arguments:
            yield Operation("create", opened)
        if "O_TRUNC" in arguments:
            yield Operation("truncate", opened)
    elif name == "writev":
        text = re.search(r'iov_base="([^"]*)"', arguments)
        yield Operation("report", data=_plain(text[1]) if text else b"")
    elif name == "write":
        at, count = positions.get((number, path), 0), int(result)
        data = _quoted(parts[1])[:count]
        if at < 0:
            yield Operation("append", path, data=data)
        else:
            positions[number, path] = at + count
            yield Operation("write", path, data=data, offset=at)
    elif name == "pwrite64":
        yield Operation("write", path, data=_quoted(parts[1])[: int(result)], offset=int(parts[3]))
    elif name == "ftruncate":
        yield Operation("truncate", path, offset=int(parts[1]))
    elif name in ("fsync", "fdatasync"):
        yield Operation("sync", path)
    elif name == "rename":
        yield Operation("rename", _quoted(parts[0]).decode(), _quoted(parts[1]).decode())
    elif name in ("unlink", "mkdir"):
        yield Operation(name, _quoted(parts[0]).decode())


def _quoted(text: str) -> bytes:
    return _plain(text.strip('"'))


def _plain(text: str) -> bytes:
    """Bytes that strace wrote as \\xNN. Raises ValueError where it cut them off."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"not a text of strace: {text[:80]}")
    return bytes.fromhex(text.replace("\\x", ""))
