"""What the agent costs as its load grows: engines, tenants, series, KV events.

    python -m benchmarks.growth [engines tenants series events]

Each point is a process of its own, so that its memory is its own; what is counted is CPU time.

engines    the pages of so many loaded engines, parsed, translated, judged by all rules, a look every 5 s: milliseconds
           of CPU a look, once windows have a minute in them, and what that is of a core
tenants    20,000 requests and more of so many tenants, by the tap's part of each: microseconds of CPU a request, and
           the series that tell of them
series     windows of so many series of which a tenth moves: milliseconds of CPU a row in memory, a row in history, a
           p99 over all of them
events     a second of block operations at so many a second through sense and ledger: what they are of a core
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Point = dict[str, float]

ENGINES = (1, 2, 4, 8, 16, 32, 64)
TENANTS = (10, 100, 1_000, 10_000, 100_000)
SERIES = (1_000, 5_000, 20_000, 100_000, 200_000)
EVENTS = (1_000, 10_000, 100_000, 500_000)
INTERVAL_SECONDS = 5.0
LOOKS, MEASURED = 16, 8
REQUESTS = 20_480
"""At least; so many more that nearly every tenant has one."""
ROWS = 12


def engines(count: int) -> Point:
    """Looks at so many engines without HTTP, at the times that they would have."""
    from benchmarks.pages import Engine
    from kvitals.agent.records import ScrapeRecord, encode
    from kvitals.app.pipeline import Pipeline, Setup
    from kvitals.config import Config, TargetTable
    from kvitals.rules.finding import DocumentSource
    from kvitals.rules.loader import load

    urls = [f"http://10.0.{n // 250}.{n % 250 + 1}:8000" for n in range(count)]
    setup = Setup(load(), Config(targets=tuple(TargetTable(url=url) for url in urls)))
    pipeline = Pipeline(setup, DocumentSource("agent", "growth"))
    pipeline.node.expect({"targets": [{"url": url} for url in urls]})
    played = [Engine(n) for n in range(count)]
    t, spent = 1_790_000_000.0, dict.fromkeys(("parse", "evaluate", "document"), 0.0)
    for look in range(LOOKS):
        for one in played:
            for _ in range(int(INTERVAL_SECONDS)):
                one.advance()
        records = [
            encode(ScrapeRecord(t=t, target=f"{url}/metrics", reason="ok", message="", status=200,
                                content_type="text/plain", body=one.page(), duration=0.01))
            for url, one in zip(urls, played, strict=True)
        ]  # fmt: skip
        clock = [time.process_time()]
        pipeline.ingest_recorded(records)
        clock.append(time.process_time())
        pipeline.observe(t)
        clock.append(time.process_time())
        pipeline.verdict()
        clock.append(time.process_time())
        if look >= LOOKS - MEASURED:
            for part, begun, ended in zip(spent, clock, clock[1:], strict=False):
                spent[part] += ended - begun
        t += INTERVAL_SECONDS
    whole = sum(spent.values()) / MEASURED
    parts = {f"{part} ms": seconds / MEASURED * 1e3 for part, seconds in spent.items()}
    return {"cycle ms": whole * 1e3, **parts, "of a core %": whole / INTERVAL_SECONDS * 100, "MB": _resident()}


def tenants(count: int) -> Point:
    """Requests of so many tenants from parts to records and series."""
    import msgspec

    from benchmarks import requests as made_requests
    from kvitals.agent.engine_resolver import SeenEngines
    from kvitals.agent.records import PartsRecord
    from kvitals.agent.requests.request_pipeline import RequestSide
    from kvitals.series.window import Window

    chance, pattern = random.Random(1), made_requests.recorded()
    wanted = max(REQUESTS, 3 * count)
    batches = [made_requests.Made(chance, n, pattern) for n in range(0, wanted, made_requests.BATCH)]
    names = set()
    for batch in batches:
        for number, part in enumerate(batch.tap):
            name = f"t-{chance.randrange(count):010d}"
            names.add(name)
            batch.tap[number] = msgspec.structs.replace(part, tenant=name)
    window = Window(1800, 200_000, 20_000)
    known = SeenEngines(window)
    side = RequestSide(window, {"node": "growth"}, known, known.waited, 50)
    gc.collect()
    before, begun = _resident(), time.process_time()
    for batch in batches:
        side.feed(PartsRecord(t=batch.t, source="growth", parts=tuple(batch.tap)))
        side.advance(batch.t)
    side.flush()
    spent = time.process_time() - begun
    return {
        "us a request": spent / wanted * 1e6, "series": float(window.series), "tenants seen": float(len(names)),
        "MB more": _resident() - before,
    }  # fmt: skip


def series(count: int) -> Point:
    """Rows of so many series in a window and in history, and a quantile over all of them."""
    import numpy as np

    from kvitals.series.history import schema, wal
    from kvitals.series.history.new_rows import RowIntake
    from kvitals.series.promql import QueryLimits, evaluate
    from kvitals.series.types import METRIC_NAME, Labels
    from kvitals.series.window import Window

    rng, window = np.random.default_rng(1), Window(600.0, 2 * count + 1000)
    targets = max(count // 2500, 1)
    groups = []
    for target in range(targets):
        group = window.group(f"target {target}")
        columns = [
            group.column(Labels({METRIC_NAME: "w_bucket", "engine": f"e{target}-{n // 20}", "le": f"{(n % 20) / 10}"}))
            for n in range(count // targets)
        ]
        groups.append((group, np.array(columns), np.cumsum(rng.random(len(columns)))))
    t, append, keep = 1_790_000_000.0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        connection = schema.open_for_writing(Path(folder) / schema.FILE)
        writer, intake = wal.Log(connection), RowIntake({"": lambda: window})
        for row in range(ROWS):
            moved = [rng.choice(len(values), max(len(values) // 10, 1), replace=False) for _, _, values in groups]
            clock = [time.process_time()]
            for (group, columns, values), some in zip(groups, moved, strict=True):
                if row:
                    values[some] += 1.0
                    group.append(t, columns[some], values[some])
                else:
                    group.append(t, columns, values)
            clock.append(time.process_time())
            tick = intake.take(t + 0.1)
            assert tick is not None
            writer.write(tick)
            clock.append(time.process_time())
            if row:
                append += clock[1] - clock[0]
                keep += clock[2] - clock[1]
            t += INTERVAL_SECONDS
        connection.close()
    begun = time.process_time()
    evaluate(
        "histogram_quantile(0.99, sum by (le) (rate(w_bucket[1m])))", window, t, limits=QueryLimits(20_000_000, 500_000)
    )
    asked = time.process_time() - begun
    rows = ROWS - 1
    return {"row ms": append / rows * 1e3, "history ms": keep / rows * 1e3, "p99 ms": asked * 1e3, "MB": _resident()}


def events(rate: int) -> Point:
    """Block operations at so many a second, for some seconds, from the wire on."""
    from benchmarks.ledger import Fed, batches, later, mix, operations, rounded

    messages = mix()
    some = rounded(batches(messages, 0))
    each, each_read = operations(some), operations(batches(messages, 0))
    cycles = max(round(min(rate * 4, 400_000) / each), 1)
    told = [list(later(some, cycle, True)) for cycle in range(cycles)]
    made = Fed()
    begun = time.process_time()
    for one in told:
        made.take(one)
    ledger = (time.process_time() - begun) / (each * cycles)
    begun = time.process_time()
    for cycle in range(min(cycles, 10)):
        batches(messages, cycle)
    sense = (time.process_time() - begun) / (each_read * min(cycles, 10))
    return {"us an operation": (sense + ledger) * 1e6, "of a core %": (sense + ledger) * rate * 100, "MB": _resident()}


LOADS: Mapping[str, tuple[Callable[[int], Point], tuple[int, ...]]] = {
    "engines": (engines, ENGINES),
    "tenants": (tenants, TENANTS),
    "series": (series, SERIES),
    "events": (events, EVENTS),
}


def measured(load: str, point: int) -> Point:
    """A point, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--point", load, str(point)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(load: str) -> list[str]:
    """What a load costs as it grows, as lines of Markdown; printed as they come."""
    lines: list[str] = []
    for point in LOADS[load][1]:
        found = measured(load, point)
        if not lines:
            lines = [f"| {load} | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
            print("\n".join(["", *lines]), flush=True)
        lines.append(
            f"| {point:,} | "
            + " | ".join(f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in found.values())
            + " |"
        )
        print(lines[-1], flush=True)
    return lines


def _resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], metavar="LOAD", help=f"of {', '.join(LOADS)}")
    parser.add_argument("--point", nargs=2, metavar=("LOAD", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        load, point = options.point
        print(json.dumps(LOADS[load][0](int(point))))
        return 0
    for load in options.loads or LOADS:
        table(load)
    print(f"\nload of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
