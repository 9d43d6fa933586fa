"""Each write, sync, rename, truncation and removal fails once, in turn, with EIO and with ENOSPC."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from .checks import Promised, broken
from .trace import record

ROWS = 5
ERRORS = ("ENOSPC", "EIO")
CALLS = ("write", "pwrite64", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "mkdir")
_ENTERED = re.compile(r"(\d+) +(\w+)\((.*)")


def all_faults(folder: Path, most: int) -> bool:
    """Whether the product goes on after each of them and keeps what it reports. most: so many of them, 0: every one."""
    root = folder / "faults"
    began = time.monotonic()
    output = _run(root, folder / "trace", [])
    several = [(*call, error) for call in _counted(folder / "trace", root) for error in ERRORS]
    several = several[:: max(len(several) // most, 1)] if most else several
    wrong = [f"without a fault: {line}" for line in _wrong(root, output)]
    refused = 0
    for call, number, error in several:
        shutil.rmtree(root)
        output = _run(root, folder / "trace", ["-e", f"inject={call}:error={error}:when={number}"])
        refused += "refused" in output
        wrong += [f"{call} number {number} fails with {error}: {line}" for line in _wrong(root, output)]
        if "(INJECTED)" not in (folder / "trace").read_text():
            wrong.append(f"{call} number {number} was not reached")
    print(
        f"{len(several)} disk errors, each once: {len(wrong)} lost something reported as kept or stopped it;"
        f" {refused} refused something and said so, {time.monotonic() - began:.0f} s"
    )
    for line in wrong[:20]:
        print(f"  {line}")
    return not wrong


def _run(root: Path, trace: Path, options: list[str]) -> str:
    root.mkdir()
    try:
        return record(["tests.chaos.power_cuts.workload", str(root), str(ROWS), "--faults"], trace, options)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"LOST everything: {error}"


def _wrong(root: Path, output: str) -> list[str]:
    """What does not hold of a run: it goes on at the end, says what it refuses, and keeps what it reported."""
    promised = Promised()
    lines = output.splitlines()
    promised.add(lines)
    found = [*promised.lost]
    for line in lines:
        kind = line.split()[1] if line.startswith("refused") else ""
        if kind and not any(one.startswith(f"said {kind}:") for one in lines):
            found.append(f"{line}, and nobody was told")
    try:
        return found + broken(root, promised)
    except Exception as error:
        return [*found, f"{type(error).__name__}: {error}"]


def _counted(trace: Path, root: Path) -> list[tuple[str, int]]:
    """Which calls are about our files: the name, and the how manieth of its thread it is, which strace counts by."""
    hexed = "".join(f"\\x{byte:02x}" for byte in str(root).encode())
    seen: Counter[tuple[str, str]] = Counter()
    found: dict[tuple[str, int], None] = {}
    for line in trace.read_text().splitlines():
        entered = _ENTERED.match(line)
        if entered is None or entered[2] not in CALLS:
            continue
        seen[entered[1], entered[2]] += 1
        if hexed in entered[3]:
            found[entered[2], seen[entered[1], entered[2]]] = None
    return list(found)
