"""Records incidents, one after another on one fork server, and has them diagnosed live."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engines import Engines
from ..paths import REPO, LabError
from ..product import Verdict, triage
from ..systems import ON_FORK_SERVER
from .incident import Incident
from .stand import ENVIRONMENT, stand

CAPTURES = REPO / "tests" / "captures" / "incidents"
MOST_BYTES = 300_000
LIMIT_S = 300.0
FELT = ("prefill", "slots")
"""Families whose incidents are nothing but too much load for a limit."""
LIVE_BASELINE_S, LIVE_INCIDENT_S, LOOK_S = 8.0, 10.0, 12.0


@contextlib.asynccontextmanager
async def fork_server(incidents: Sequence[Incident]) -> AsyncIterator[Engines | None]:
    """One for all that need one."""
    if any(one.scenario.system in ON_FORK_SERVER for one in incidents):
        async with Engines(ENVIRONMENT) as lab:
            yield lab
    else:
        yield None


@contextlib.asynccontextmanager
async def turn(lock: Path | None) -> AsyncIterator[None]:
    """With a lock file: one after another with whoever else measures something on this machine."""
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        yield


async def record_all(
    incidents: Sequence[Incident], kvitals: Sequence[str], out: Path, lock: Path | None = None
) -> list[str]:
    """Leaves RUN.kvcap and RUN.truth.json of each; what went wrong with some does not keep the others from it."""
    failed = []
    async with fork_server(incidents) as lab:
        for one in incidents:
            try:
                async with turn(lock), asyncio.timeout(LIMIT_S):
                    began = time.monotonic()
                    capture = await _record(one, lab, kvitals, out)
            except (LabError, TimeoutError) as error:
                failed.append(one.run)
                _say(f"{one.run}: FAILED {error or 'took too long'}")
                await _end_engines(lab)
                continue
            _say(f"{one.run}: {capture.stat().st_size // 1000} kB, {time.monotonic() - began:.0f} s")
    return failed


async def _record(incident: Incident, lab: Engines | None, kvitals: Sequence[str], out: Path) -> Path:
    capture = out / f"{incident.run}.kvcap"
    capture.unlink(missing_ok=True)
    async with stand(incident, lab, kvitals, capture) as it:
        await it.play(incident.baseline_s, incident.incident_s, end=it.end_recording)
        await it.settle()
        truth = it.truth()
    if why := not_as_labelled(incident, truth):
        raise LabError(f"recorded, and not what its label says: {why}")
    if capture.stat().st_size > MOST_BYTES:
        raise LabError(f"{capture.name} has {capture.stat().st_size} bytes, and {MOST_BYTES} are allowed")
    capture.with_suffix(".truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return capture


def not_as_labelled(incident: Incident, truth: Mapping[str, Any]) -> str:
    """Why a run is not one of its label, by the clients' clocks alone.

    On a machine that others keep busy a healthy engine misses its objectives, and whoever says so is right; on one that
    is all its own an engine has room for what was to be too much.
    """
    saw, slo = truth["phases"][-1], truth["slo"]
    missed = [
        f"p99 of {name} was {saw[seen]['p99']} s, and {slo[limit]:g} s are the objective"
        for name, seen, limit in (("first tokens", "ttft_s", "ttft_p99"), ("gaps", "itl_s", "itl_p99"))
        if saw[seen]["p99"] is None or saw[seen]["p99"] > slo[limit]
    ]
    if incident.label.healthy == "yes":
        return "; ".join(missed)
    return "" if missed or incident.family not in FELT else "no objective was missed"


async def diagnose_all(
    incidents: Sequence[Incident], kvitals: Sequence[str], lock: Path | None = None
) -> AsyncIterator[tuple[Incident, Verdict]]:
    """Each induced once more, and what `kvitals triage` says meanwhile; one that can not be induced is left out."""
    async with fork_server(incidents) as lab:
        for one in incidents:
            try:
                async with turn(lock), asyncio.timeout(LIMIT_S):
                    verdict = await _diagnose(one, lab, kvitals)
            except (LabError, TimeoutError) as error:
                _say(f"{one.run}: FAILED {error or 'took too long'}")
                await _end_engines(lab)
                continue
            _say(f"{one.run}: {', '.join(verdict.codes) or 'nothing'}")
            yield one, verdict


async def _diagnose(incident: Incident, lab: Engines | None, kvitals: Sequence[str]) -> Verdict:
    """Cold, of the engines; where a tap tells an agent what it sees, that agent is asked after as long."""
    found: list[Verdict] = []
    async with stand(incident, lab, kvitals) as it:

        async def ask() -> None:
            found.append(await triage(kvitals, it.site.watched, incident.scenario.slo, it.api))

        await it.play(LIVE_BASELINE_S, LIVE_INCIDENT_S + (LOOK_S if it.api else 0.0), end=ask)
        await it.settle()
    return found[0]


async def _end_engines(lab: Engines | None) -> None:
    if lab is not None:
        for engine in lab.running:
            with contextlib.suppress(LabError):
                await lab.stop(engine.name)


def _say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)
