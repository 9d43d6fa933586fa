"""Plays drawn incidents on real engines, arm by arm, and keeps what came of each; an interrupted run goes on."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Finding, Triage
from tests.captures.looks import setup

from ..engines import Engines
from ..incidents.judging import in_order
from ..incidents.recording import fork_server
from ..incidents.stand import stand
from ..paths import REPO, LabError
from .arms import Play, lever_play, plays
from .grammar import Drawn
from .plan import incident_of
from .truth import Arm, Harm, Truth, harm, truth_of

RESULTS = REPO / "tests" / "captures" / "drawn"
JUDGING = ("agent", "app", "config", "diagnoser", "kvcache", "rules", "series")
ARM_BASELINE_S, LIMIT_S, SETTLE_S = 3.0, 300.0, 3.0
BACK_S = 5.0
"""After a restarted engine serves again: what piled up before its door is answered first."""


class Played(msgspec.Struct):
    """One drawn incident and its arms. lever: the arm that is the verdict's first lever, or in brackets why none is."""

    seed: int
    system: str
    faults: list[tuple[str, float]]
    slo: tuple[float, float]
    date: str
    load: float
    digest: str
    began: float
    harm: Harm
    arms: list[Arm] = []
    lever: str = ""
    lever_of: str = ""

    @property
    def truth(self) -> Truth:
        return truth_of(self.harm, self.arms)

    @property
    def name(self) -> str:
        return f"drawn-{self.seed}"


def setup_of(played: Played) -> Setup:
    """The rules that ship, under the objectives of the incident."""
    return setup(*played.slo)


def verdict(capture: Path, played: Played) -> Triage:
    """At the end of the recording, with what was before the incident as history."""
    _, last = span_of(capture)
    return judge_recording(capture, setup_of(played), Moments(at=last, start=played.began + SETTLE_S)).document


def leading(document: Triage) -> Finding | None:
    """What the verdict names first: a cause, else trouble with the telemetry, else a symptom."""
    return next(iter(in_order(document)), None)


async def play_all(drawn: Sequence[Drawn], kvitals: Sequence[str], out: Path) -> list[str]:
    """Leaves NAME.kvcap and NAME.json of each; returns those that could not be played, with why."""
    failed = []
    incidents = [incident_of(d.name, d.seed, d.before(), d.plan()) for d in drawn]
    async with fork_server(incidents) as lab:
        for one in drawn:
            try:
                await _play_one(one, lab, kvitals, out)
            except (LabError, TimeoutError) as error:
                failed.append(f"{one.name}: {error or 'took too long'}")
                for engine in lab.running if lab else ():
                    with suppress(LabError):
                        await lab.stop(engine.name)
    return failed


async def _play_one(drawn: Drawn, lab: Engines | None, kvitals: Sequence[str], out: Path) -> None:
    file, capture = out / f"{drawn.name}.json", out / f"{drawn.name}.kvcap"
    if file.exists():
        played = msgspec.json.decode(file.read_bytes(), type=Played)
    else:
        capture.unlink(missing_ok=True)
        played = await _as_drawn(drawn, lab, kvitals, capture)
        _keep(file, played)
    if played.harm.state != "breached" or played.lever:
        return
    for play in plays(drawn):
        if play.name not in {arm.name for arm in played.arms}:
            played.arms.append(await _arm(drawn, play, lab, kvitals))
            _keep(file, played)
    await _first_lever(drawn, played, lab, kvitals, out)
    _keep(file, played)


async def _first_lever(drawn: Drawn, played: Played, lab: Engines | None, kvitals: Sequence[str], out: Path) -> None:
    cause = leading(verdict(out / f"{drawn.name}.kvcap", played))
    if cause is None:
        played.lever = "(no cause)"
        return
    played.lever_of = f"{cause.code} {cause.levers[0].lever}" if cause.levers else cause.code
    play = lever_play(drawn, cause, [arm.name for arm in played.arms])
    if isinstance(play, Play):
        played.arms.append(await _arm(drawn, play, lab, kvitals))
        played.lever = play.name
    else:
        played.lever = play


async def _as_drawn(drawn: Drawn, lab: Engines | None, kvitals: Sequence[str], capture: Path) -> Played:
    load = os.getloadavg()[0]
    as_drawn = Play("as drawn", "fault", drawn.before(), drawn.plan())
    began, seen = await _played(drawn, as_drawn, lab, kvitals, capture)
    return Played(
        seed=drawn.seed,
        system=drawn.system,
        faults=[(fault.name, strength) for fault, strength in drawn.faults],
        slo=(drawn.calm.slo.ttft_p99, drawn.calm.slo.itl_p99),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        load=round(load, 1),
        digest=digest(),
        began=began,
        harm=seen,
    )


async def _arm(drawn: Drawn, play: Play, lab: Engines | None, kvitals: Sequence[str]) -> Arm:
    """The product records in every arm, as it does in the first, and what it records of the others is thrown away."""
    with tempfile.TemporaryDirectory(prefix="kvitals-") as folder:
        scratch = Path(folder) / "arm.kvcap"
        _, seen = await _played(drawn, play, lab, kvitals, scratch, ARM_BASELINE_S)
    return Arm(play.name, play.kind, seen)


async def _played(
    drawn: Drawn,
    play: Play,
    lab: Engines | None,
    kvitals: Sequence[str],
    capture: Path,
    baseline_s: float = 0.0,
) -> tuple[float, Harm]:
    """When the incident began, and what its clients saw: where the play restarts an engine, once that is back."""
    incident = incident_of(drawn.name, drawn.seed, play.before, play.plan)
    async with asyncio.timeout(LIMIT_S), stand(incident, lab, kvitals, capture) as it:
        await it.play(
            baseline_s or incident.baseline_s, incident.incident_s, end=it.end_recording, after_acts=play.recovers
        )
        await it.settle()
    load = it.phases[-1].load
    assert load.started is not None and load.ended is not None
    since = it.acted + BACK_S if play.recovers and it.acted is not None else 0.0
    return round(load.started, 3), harm(load.samples, load.ended, drawn.calm.slo, since)


def _keep(file: Path, played: Played) -> None:
    """Written whole or not at all."""
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(played), indent=1) + b"\n")
    part.replace(file)


def digest() -> str:
    """Of the rules and the code that judge, so that a result says which ones it was played under."""
    total = hashlib.sha256()
    for folder in JUDGING:
        for file in sorted((REPO / folder).rglob("*")):
            if file.suffix in (".py", ".yaml"):
                total.update(f"{file.relative_to(REPO)}\0".encode() + file.read_bytes())
    return total.hexdigest()[:12]
