"""What is demanded of the operating point on a real engine, and whether it is so.

The product fits the history of one sweep. Other sweeps' clients are its judges, by arithmetic of their own: the knee is
the most that they got done times how long one alone took (operational analysis' two bounds), C_max where the line
through their p99 crosses the objective.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..paths import LabError
from ..requests.checks import Check
from .sweep import LONG_S, TTFT_SLO_S, Level, measured, sweep

SWEEPS = 3
LIMIT = 0.15
HISTORY = "history"
STEP = "10s"
"""Of the product's: two rows. Steps in which clients changed, and those beside them, tell nothing; a level has more."""
TOP = 3
"""Levels with the most throughput that are averaged: a single one is the luckiest."""


def prove(out: Path, kvitals: Sequence[str]) -> list[Check]:
    """Sweep where no sweep lies in the folder, and compare."""
    if not (out / HISTORY / "clients.json").exists():
        asyncio.run(sweep(HISTORY, out, kvitals, 0, LONG_S))
    for number in range(1, SWEEPS + 1):
        if not (out / f"clients-{number}" / "clients.json").exists():
            asyncio.run(sweep(f"clients-{number}", out, kvitals, number))
    told = fitted(out / HISTORY, kvitals)
    sweeps = [measured(out / f"clients-{number}") for number in range(1, SWEEPS + 1)]
    limit = next(one for one in told["limits"] if one["objective"] == "ttft_p99")
    found = {
        "knee": (told["knee"] and told["knee"]["concurrency"], [knee(levels) for levels in sweeps]),
        "C_max": (limit["concurrency"], [c_max(levels, TTFT_SLO_S) for levels in sweeps]),
    }
    return [compared(name, value, others, told["missing"]) for name, (value, others) in found.items()]


def fitted(folder: Path, kvitals: Sequence[str]) -> dict[str, Any]:
    """What `kvitals knee` says of a history. Raises LabError."""
    command = [*kvitals, "knee", str(folder), "--json", "--step", STEP, "--slo", f"ttft={TTFT_SLO_S}s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise LabError(f"kvitals knee ended with {done.returncode}: {done.stderr[-500:]}")
    points: list[dict[str, Any]] = json.loads(done.stdout)
    return points[0]


def compared(name: str, told: dict[str, float] | None, others: Sequence[float | None], missing: Sequence[str]) -> Check:
    """A figure of the product beside those of other sweeps."""
    known = [value for value in others if value is not None]
    if told is None or len(known) < len(others):
        return Check(
            name, False, f"not told: {'; '.join(missing)}" if told is None else "clients never met or missed it"
        )
    middle = statistics.median(known)
    off = told["value"] / middle - 1
    several = ", ".join(f"{value:.1f}" for value in known)
    said = f"{told['value']:.1f} ({told['low']:.1f} to {told['high']:.1f}); sweeps {several}: {off:+.1%} of the median"
    return Check(name, abs(off) <= LIMIT, said)


def knee(levels: Sequence[Level]) -> float:
    """Requests at a time at which one request's share of an empty engine adds up to all that it can do."""
    most = statistics.fmean(sorted(level.tokens_per_second for level in levels)[-TOP:])
    one = min(levels, key=lambda level: level.clients)
    return most / (one.tokens_per_second / one.clients)


def c_max(levels: Sequence[Level], limit: float) -> float | None:
    """Clients at which p99 of first tokens crosses a limit for good; None where it does not."""
    ordered = sorted(levels, key=lambda level: level.clients)
    over = next((i for i in range(len(ordered)) if all(level.ttft_p99 > limit for level in ordered[i:])), None)
    if not over:
        return None
    below, above = ordered[over - 1], ordered[over]
    share = (limit - below.ttft_p99) / (above.ttft_p99 - below.ttft_p99)
    return below.clients + share * (above.clients - below.clients)
