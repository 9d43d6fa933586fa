"""Recorded incidents in a fleet of 60 engines through the whole chain, and every message beside the truth.

    python -m tests.pipeline                      12 minutes, with agents and without at the same time
    python -m tests.pipeline --seconds 350 --only raw

Prometheus, Alertmanager and `kvitals notify` are real processes; Slack, PagerDuty and a webhook are stand-ins on
loopback. Twelve incidents begin one after another in six of eight pools; Slack is away for five of twelve minutes;
notify is killed in that time and started again. Shorter runs shorten all of that in proportion. Exits with 1 if a
message names a wrong pool or cause, a page is late, an incident stays without its cause, or a message is lost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.pipeline.judging import Verdict, judge
from tests.pipeline.stack import Stack, running

FULL_SECONDS = 720.0
FIRST, APART = 60.0, 6.0
"""Seconds until the first incident of a full run, and between two."""

SLACK_AWAY = (120.0, 420.0)
KILL, RESTART = 270.0, 285.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=FULL_SECONDS, help=f"length of the run ({FULL_SECONDS:g})")
    parser.add_argument("--only", choices=("agents", "raw"), help="one of the two kinds of fleet")
    parser.add_argument("--keep", type=Path, help="a folder for logs and messages (default: a temporary one)")
    args = parser.parse_args()
    kinds = [args.only == "raw"] if args.only else [False, True]
    with tempfile.TemporaryDirectory(prefix="kvitals-pipeline-") as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        verdicts: dict[str, Verdict] = {}
        runs = [threading.Thread(target=_run, args=(raw, folder, args.seconds, verdicts)) for raw in kinds]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join()
    if len(verdicts) < len(kinds):
        return 1
    for name, verdict in verdicts.items():
        _report(name, verdict)
    return 1 if any(verdict.wrong for verdict in verdicts.values()) else 0


def _run(raw: bool, folder: Path, seconds: float, verdicts: dict[str, Verdict]) -> None:
    scale = seconds / FULL_SECONDS
    place = folder / ("raw" if raw else "agents")
    with running(raw, place, FIRST * scale, APART * scale) as stack:
        _play(stack, scale)
        for name in ("webhook", "slack", "pagerduty"):
            kept = [{"at": m.at - stack.started, **m.body} for m in getattr(stack, name).messages]
            (place / f"{name}.json").write_text(json.dumps(kept, indent=1))
        verdicts[stack.name] = judge(stack)


def _play(stack: Stack, scale: float) -> None:
    """What is done during a run, each at its time. Returns at its end."""
    events = [
        (SLACK_AWAY[0], lambda: setattr(stack.slack, "alive", False)),
        (KILL, stack.notify.kill),
        (RESTART, stack.notify.start),
        (SLACK_AWAY[1], lambda: setattr(stack.slack, "alive", True)),
        (FULL_SECONDS, lambda: None),
    ]
    for at, act in events:
        time.sleep(max(0.0, stack.started + at * scale - time.time()))
        act()


def _report(name: str, verdict: Verdict) -> None:
    print(f"\n{name}: {', '.join(f'{count} {what}' for what, count in verdict.counts.items())}")
    rows = [("pool", "incident", "truth", "causes in messages", "messages", "cause after"), *verdict.table]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if verdict.latencies:
        median, worst = statistics.median(verdict.latencies), max(verdict.latencies)
        print(f"  {len(verdict.latencies)} alerts that page: median {median:.1f} s to PagerDuty, at most {worst:.1f} s")
    if verdict.links:
        drawn, panels = (sum(counts) for counts in zip(*verdict.links, strict=True))
        print(f"  {len(verdict.links)} links of firing alerts lead to {panels} panels, of which {drawn} draw")
    print(f"  {len(verdict.wrong)} wrong")
    for line in verdict.wrong:
        print(f"    {line}")


if __name__ == "__main__":
    sys.exit(main())
