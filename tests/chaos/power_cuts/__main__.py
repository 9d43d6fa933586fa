"""python -m tests.chaos.power_cuts [--cuts 200] [--faults 0]: power cuts, then errors of the disk."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .checks import Promised, broken
from .disk import Disk
from .faults import all_faults
from .trace import Operation, operations, record

ROWS = 36
PLANTED: dict[str, Callable[[str], bool]] = {
    "history's log is never synced": lambda path: path.endswith("history.db-wal"),
    "history's file is never synced": lambda path: path.endswith("history.db"),
    "the queue's log is never synced": lambda path: path.endswith("notify.db-wal"),
    "state is never synced": lambda path: path.endswith("state.json.part"),
    "no directory is ever synced": lambda path: not Path(path).suffix,
}
"""Mistakes that must be found."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--faults", type=int, default=0, help="disk errors to try, spread evenly (0: every one)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if shutil.which("strace") is None:
        print("strace is missing: apt-get install strace", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kvitals-cuts-") as name:
        folder = Path(name)
        good = _cuts(folder, args.cuts, args.seed)
        return 0 if all_faults(folder, args.faults) and good else 1


def _cuts(folder: Path, cuts: int, seed: int) -> bool:
    """Whether nothing is lost by any cut, and every planted mistake is found."""
    root = folder / "recorded"
    root.mkdir()
    record(["tests.chaos.power_cuts.workload", str(root), str(ROWS)], folder / "trace")
    done = operations(folder / "trace", root)
    began = time.monotonic()
    lost = cut_at(done, root, folder / "cut", cuts, seed)
    kept = sum(one.data.startswith(b"kept") for one in done)
    print(
        f"{cuts} simulated power cuts over history, queue and state ({len(done)} operations, {kept} reports):"
        f" {len(lost)} lost something or did not open, {time.monotonic() - began:.0f} s"
    )
    for line in lost[:20]:
        print(f"  {line}")
    good = not lost
    for mistake, ignored in PLANTED.items():
        found = cut_at(done, root, folder / "cut", max(cuts // 5, 20), seed, ignored)
        print(f"  planted: {mistake}: {len(found)} of {max(cuts // 5, 20)} cuts show it")
        good = good and bool(found)
    return good


def cut_at(
    done: Sequence[Operation],
    root: Path,
    folder: Path,
    cuts: int,
    seed: int,
    ignored: Callable[[str], bool] = lambda _: False,
) -> list[str]:
    """Cut the power `cuts` times, spread over what was done; what does not hold then."""
    rng = random.Random(seed)
    moments = sorted(rng.choices(range(1, len(done) + 1), k=cuts))
    disk, promised, found = Disk(root, ignored), Promised(), []
    for number, operation in enumerate(done, 1):
        if operation.kind == "report":
            promised.add(operation.data.decode().splitlines())
        else:
            disk.do(operation)
        while moments and moments[0] == number:
            moments.pop(0)
            folder.mkdir()
            disk.after_cut(folder, rng)
            try:
                wrong = broken(folder, promised)
            except Exception as error:
                wrong = [f"{type(error).__name__}: {error}"]
            found += [f"cut after operation {number} ({operation.kind} {operation.path}): {'; '.join(wrong)}"] * bool(
                wrong
            )
            shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    sys.exit(main())
