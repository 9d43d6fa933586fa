"""What the shipped rules and boards cost a Prometheus that has many engines.

    python -m benchmarks.rules                     1,000 engines, every 15 s, with agents and without
    python -m benchmarks.rules --engines 60 --boards

The engines are looped recordings that a real Prometheus scrapes. The cost of the rules is the CPU time of the server
with them, less that of a second server which scrapes the same and has no rules, as a share of a core. The cost of a
board is the samples that its queries touch in one load of its default range (`totalQueryableSamples`), measured at the
last step, which has a whole window of samples, and scaled to the range: every step costs the same. These are the
queries of the panels in open rows and of the marks; Grafana asks for a closed row when somebody opens it. Exits with 1
above a budget.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from kvitals.dashboards import boards
from kvitals.dashboards.alerts_options import Options
from kvitals.rules.loader import load
from tests.boards.asking import asked, marks_asked
from tests.oracle.oracle_server import Prometheus, prometheus
from tests.pipeline.incidents import healthy_fleet
from tests.pipeline.looped import agent_pages, engine_pages, serving
from tests.pipeline.stack import config, rules, targets
from tests.support import grafana

BUDGET = 0.3
"""Of a core."""

INTERVAL_SECONDS = 15.0
WARM_UP_SECONDS = 135.0
"""Until the windows of the signals are full."""

BOARD_SAMPLES = 50_000
"""Of one load of a board, at 60 engines."""

RANGE_SECONDS, PANEL_PIXELS = 1800.0, 600
"""The boards' default range, and the width of half a board on a laptop."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--only", choices=("agents", "raw"), help="one of the two kinds of fleet")
    parser.add_argument("--boards", action="store_true", help="the samples of a load of each board too")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the run of each kind (60)")
    args = parser.parse_args()
    kinds = [args.only == "raw"] if args.only else [False, True]
    within = [_measure(raw, args.engines, args.seconds, with_boards=args.boards) for raw in kinds]
    return 0 if all(within) else 1


def _measure(raw: bool, size: int, seconds: float, *, with_boards: bool) -> bool:
    """Whether the rules, and the boards if asked for, stay within the budget."""
    engines, started = healthy_fleet(raw, size), time.time()
    with tempfile.TemporaryDirectory(prefix="kvitals-rules-") as name, ExitStack() as stack:
        port = stack.enter_context(serving((engine_pages if raw else agent_pages)(engines, started), started))
        folder = Path(name)
        (folder / "targets.json").write_text(json.dumps(targets(raw, engines, port)))
        files = rules(raw, folder, Options(scrape_seconds=INTERVAL_SECONDS))
        servers = []
        for kind, loaded in (("with", files), ("without", [])):
            place = folder / kind
            place.mkdir()
            made = config(folder, loaded, seconds=INTERVAL_SECONDS)
            servers.append(stack.enter_context(prometheus(place, made)))
        time.sleep(WARM_UP_SECONDS)
        before = [_cpu(server) for server in servers]
        time.sleep(seconds)
        with_rules, without = (_cpu(server) - b for server, b in zip(servers, before, strict=True))
        samples = _board_samples(servers[0]) if with_boards else {}
    kind, share = "without agents" if raw else "with agents", (with_rules - without) / seconds
    print(
        f"{kind}: {size} engines, rules every {INTERVAL_SECONDS:g} s: {share:.1%} of a core (budget {BUDGET:.0%});"
        f" scrapes {without / seconds:.1%}"
    )
    for board, touched in sorted(samples.items(), key=lambda item: -item[1]):
        print(f"  {touched:9,.0f} samples in a load of {board} (budget {BOARD_SAMPLES:,})")
    return share < BUDGET and max(samples.values(), default=0.0) < BOARD_SAMPLES


def _board_samples(server: Prometheus) -> dict[str, float]:
    """Samples that one load of each board touches, as a Grafana asks that shows `RANGE_SECONDS`."""
    found: dict[str, float] = {}
    now, window = time.time(), Options(scrape_seconds=INTERVAL_SECONDS).fast_seconds
    made = boards.built(load(), "https://kvitals.example.com/runbooks", window)
    for query in [*(one for one in asked(made) if not one.closed), *marks_asked(made)]:
        step = grafana.step(RANGE_SECONDS, PANEL_PIXELS, query.least_step)
        path, form = query.parameters(now, now, step)
        answer = server.ask(path, stats="all", **form)
        if answer["status"] != "success":
            raise RuntimeError(f"{query.place}: {answer['error']}")
        touched = answer["data"]["stats"]["samples"]["totalQueryableSamples"]
        scale = 1.0 if query.instant else RANGE_SECONDS / step + 1
        found[query.board] = found.get(query.board, 0.0) + touched * scale
    return found


def _cpu(server: Prometheus) -> float:
    """CPU seconds of a server since its start, from its own page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_cpu_seconds_total "))


if __name__ == "__main__":
    sys.exit(main())
