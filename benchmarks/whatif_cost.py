"""A replay of 100 million block references: CPU and memory, beside an LRU cache in C++ over the same file.

    python -m benchmarks.whatif_cost [--references 100000000] [--chain 40]

The file holds requests of conversations whose turns repeat all earlier blocks, drawn by Zipf's law, and new blocks at
the end of each. Each replay is a process of its own; its CPU time and peak memory are the system's (`getrusage`). The
C++ program is one hash table and one list, for one capacity; the replay counts three. Exits with 1 above 1 GB or 0.3
CPU seconds a million references.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from kvitals.kvcache.accesses import COLUMNS, SOURCES, UNKNOWN, in_order
from kvitals.kvcache.whatif import ReplayPlan, what_if

MAX_BYTES = 1_000_000_000
MAX_SECONDS = 0.3
CAPACITIES = (100_000, 1_000_000, 5_000_000)
CONVERSATIONS = 400_000

LRU = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <unordered_map>
#include <vector>
int main(int argc, char** argv) {
  size_t chain = atoi(argv[2]), capacity = atoi(argv[3]), hits = 0;
  FILE* file = fopen(argv[1], "rb");
  std::list<int32_t> order;
  std::unordered_map<int32_t, std::list<int32_t>::iterator> held;
  held.reserve(capacity);
  std::vector<int32_t> row(chain);
  while (fread(row.data(), 4, chain, file) == chain) {
    for (size_t i = 0; i < chain && held.count(row[i]); i++) hits++;
    for (size_t i = chain; i-- > 0;) {
      auto at = held.find(row[i]);
      if (at != held.end()) { order.splice(order.begin(), order, at->second); continue; }
      if (held.size() >= capacity) { held.erase(order.back()); order.pop_back(); }
      order.push_front(row[i]);
      held[row[i]] = order.begin();
    }
  }
  printf("%zu\\n", hits);
}
"""


def write_requests(path: Path, references: int, chain: int) -> None:
    """Chains of 32-bit ids. A turn repeats the first half of its conversation's latest chain and goes on anew."""
    chance = np.random.default_rng(0)
    latest = np.full((CONVERSATIONS, chain), -1, dtype=np.int32)
    following = 0
    with path.open("wb") as file:
        for _ in range(0, references, chain * 10_000):
            of = chance.zipf(1.2, size=10_000) % CONVERSATIONS
            rows = np.empty((len(of), chain), dtype=np.int32)
            for row, conversation in enumerate(of.tolist()):
                keep = chain // 2 if latest[conversation, 0] >= 0 else 0
                rows[row, :keep] = latest[conversation, :keep]
                rows[row, keep:] = np.arange(following, following + chain - keep)
                latest[conversation] = rows[row]
                following += chain - keep
            file.write(rows.tobytes())


def replay(path: Path, chain: int) -> None:
    """The replay to measure: prints blocks hit at each capacity."""
    block = np.fromfile(path, dtype=np.int32)
    rows = len(block) // chain
    columns = dict.fromkeys(COLUMNS, np.broadcast_to(np.int64(UNKNOWN), rows))
    columns["tokens"] = np.broadcast_to(np.int64(chain * 16), rows)
    columns["source"] = np.broadcast_to(np.int64(SOURCES.index("trace")), rows)
    start = np.arange(rows + 1, dtype=np.int64) * chain
    accesses = in_order(columns | {"time": np.arange(rows) / 10.0}, start, block, 16)  # type: ignore[arg-type]
    for row in what_if(accesses, ReplayPlan(CAPACITIES)):
        print(round(row.block_hit_rate * accesses.references))


def measured(command: list[str]) -> tuple[list[int], float, int]:
    """What a process prints, its CPU seconds and its peak bytes."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}")
    return [int(line) for line in printed.split()], used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=int, default=100_000_000)
    parser.add_argument("--chain", type=int, default=40)
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.replay:
        replay(args.replay, args.chain)
        return
    sys.exit(not compare(args.references, args.chain))


def compare(references: int, chain: int) -> bool:
    """Print the figures of both programs; whether the replay is within its limits and both agree."""
    millions = references / 1e6
    with tempfile.TemporaryDirectory() as folder:
        path, source, program = (Path(folder) / name for name in ("requests", "lru.cpp", "lru"))
        write_requests(path, references, chain)
        command = [sys.executable, "-m", "benchmarks.whatif_cost", "--chain", str(chain), "--replay", str(path)]
        hits, seconds, peak = measured(command)
        _print("replay, 3 capacities", seconds, peak, millions, hits)
        good = seconds / millions <= MAX_SECONDS and peak <= MAX_BYTES
        if shutil.which("g++"):
            source.write_text(LRU)
            subprocess.run(["g++", "-O2", "-o", str(program), str(source)], check=True)
            for capacity, expected in zip(CAPACITIES, hits, strict=True):
                found, taken, held = measured([str(program), str(path), str(chain), str(capacity)])
                _print(f"C++, {capacity:,} blocks", taken, held, millions, found)
                good &= found == [expected]
    return good


def _print(name: str, seconds: float, peak: int, millions: float, hits: list[int]) -> None:
    print(f"{name:24} {seconds / millions:.3f} CPU s a million, {peak / 1e6:,.0f} MB, hits {hits}", flush=True)


if __name__ == "__main__":
    main()
