"""What the shipped rules cost a Prometheus that has many engines.

    python -m benchmarks.rules                     1,000 engines, every 15 s, with agents and without
    python -m benchmarks.rules --engines 100 --only raw

The engines are looped recordings that a real Prometheus scrapes. The cost is the time that all groups of rules take for
one evaluation (`prometheus_rule_group_last_duration_seconds`), as a share of the interval; groups run one after another
or at the same time, so it is also the cores that they occupy. Exits with 1 above the budget.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from kvitals.dashboards.alerts_options import Options
from tests.oracle.oracle_server import Prometheus, prometheus
from tests.pipeline.incidents import healthy_fleet
from tests.pipeline.looped import agent_pages, engine_pages, serving
from tests.pipeline.stack import config, rules, targets

BUDGET = 0.3
"""Of a core."""

INTERVAL_SECONDS = 15.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--only", choices=("agents", "raw"), help="one of the two kinds of fleet")
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the run of each kind (120)")
    args = parser.parse_args()
    kinds = [args.only == "raw"] if args.only else [False, True]
    within = [_measure(raw, args.engines, args.seconds) for raw in kinds]
    return 0 if all(within) else 1


def _measure(raw: bool, size: int, seconds: float) -> bool:
    """Whether the rules stay within the budget. Prints a line for the groups that take most."""
    engines, started = healthy_fleet(raw, size), time.time()
    with tempfile.TemporaryDirectory(prefix="kvitals-rules-") as name:
        folder = Path(name)
        with serving((engine_pages if raw else agent_pages)(engines, started), started) as port:
            (folder / "targets.json").write_text(json.dumps(targets(raw, engines, port)))
            files = rules(raw, folder, Options(scrape_seconds=INTERVAL_SECONDS))
            with prometheus(folder, config(folder, files, seconds=INTERVAL_SECONDS)) as server:
                time.sleep(seconds)
                took = _durations(server)
    total = sum(took.values())
    kind = "without agents" if raw else "with agents"
    share = total / INTERVAL_SECONDS
    print(f"{kind}: {size} engines, {total:.2f} s per evaluation, {share:.0%} of a core (budget {BUDGET:.0%})")
    for group, duration in sorted(took.items(), key=lambda item: -item[1])[:5]:
        print(f"  {duration:6.2f} s  {group}")
    return share < BUDGET


def _durations(server: Prometheus) -> dict[str, float]:
    """Seconds of the last evaluation of each group, from the server's own page, less what it evaluates more rarely."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    took = _of_groups(lines, "prometheus_rule_group_last_duration_seconds")
    every = _of_groups(lines, "prometheus_rule_group_interval_seconds")
    return {group: duration * INTERVAL_SECONDS / every[group] for group, duration in took.items()}


def _of_groups(lines: list[str], metric: str) -> dict[str, float]:
    """Group -> value of a metric with the label `rule_group`, which is `FILE;GROUP`."""
    found = {}
    for line in lines:
        if line.startswith(f"{metric}{{"):
            series, _, value = line.rpartition(" ")
            found[series.rpartition(";")[2].removesuffix('"}')] = float(value)
    return found


if __name__ == "__main__":
    sys.exit(main())
