"""A triage of a simulated fleet in a real Prometheus: is it right, what does it take, of whom.

    python -m benchmarks.fleet                  1,000 engines for two hours, a sample a minute, 12 faults
    python -m benchmarks.fleet --engines 50
    python -m benchmarks.fleet --engines 50 --raw   the engines' own metrics, no agents

The engines are recordings of real ones that go on (`tests/fleet/loops.py`), written with promtool. Ours is the CPU time
of this process from the first question to the document, reading the answers included; it is what the budget is on,
since other work on the machine does not change it much. The server's is that of its process. With --raw, faults that
need the agent are not found and are listed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

from kvitals.app.pipeline import Setup
from kvitals.app.sources.prometheus_fleet import PrometheusVerdict, judge_server
from kvitals.config import Config, SloTable
from kvitals.diagnoser.sources.prometheus import PrometheusAccess
from kvitals.rules.loader import load
from tests.fleet.backfill import Fleet, backfill
from tests.fleet.right import first_causes, noticed
from tests.fleet.situations import of_families, of_pages
from tests.oracle.oracle_server import prometheus

PLANTED = 12
BUDGET_SECONDS = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--raw", action="store_true", help="the engines' own metrics, no agents")
    parser.add_argument("--times", type=int, default=3, help="triages; the median counts")
    args = parser.parse_args()
    fleet = (of_pages if args.raw else of_families)(args.engines, PLANTED)
    with tempfile.TemporaryDirectory(prefix="kvitals-fleet-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        began = time.monotonic()
        samples = backfill(fleet, folder / "data")
        print(f"{args.engines} engines, {samples:,} samples, written in {time.monotonic() - began:.0f} s")
        with prometheus(folder) as server:
            return 0 if _measure(fleet, server.port, args.times) else 1


def _measure(fleet: Fleet, port: int, times: int) -> bool:
    """Judge the fleet's end several times and say what it took; whether it was right and within the budget."""
    process = next(c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid)
    server = psutil.Process(process)
    setup = Setup(load(), Config(slo=SloTable(ttft_p99_seconds=0.5, itl_p99_seconds=0.5) if fleet.raw else SloTable()))
    ours = []
    for _ in range(times):
        before, wall, cpu = server.cpu_times(), time.monotonic(), time.process_time()
        judged = judge_server(PrometheusAccess(f"http://127.0.0.1:{port}", timeout=120.0), setup, fleet.end)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        after = server.cpu_times()
        theirs = after.user + after.system - before.user - before.system
        ours.append(cpu)
        print(
            f"{judged.questions} queries ({judged.judging} to judge), {judged.received / 1e6:.1f} MB; {wall:.1f} s:"
            f" {judged.waited:.1f} s waited, {wall - judged.waited:.2f} s not, {cpu:.2f} s CPU here,"
            f" {theirs:.1f} s there"
        )
    median = sorted(ours)[len(ours) // 2]
    right = _right(fleet, judged)
    print(f"ours: {median:.2f} s (budget {BUDGET_SECONDS:.0f} s); {'right' if right else 'WRONG'}")
    return right and median <= BUDGET_SECONDS


def _right(fleet: Fleet, judged: PrometheusVerdict) -> bool:
    """Whether every planted fault is the first cause of its engine, and nothing is said of another engine."""
    found = first_causes(judged.document)
    missed = {address: codes for address, codes in fleet.planted.items() if found.get(address) not in codes}
    more = noticed(judged.document) - fleet.planted.keys()
    print(f"planted {len(fleet.planted)}, found {len(fleet.planted) - len(missed)}, on other engines {len(more)}")
    for address, codes in missed.items():
        print(f"  {address}: {found.get(address, 'nothing')} and not {' or '.join(codes)}", file=sys.stderr)
    return not missed and not more


if __name__ == "__main__":
    sys.exit(main())
