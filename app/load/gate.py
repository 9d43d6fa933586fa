"""`kvitals gate`: plays recorded incidents against a candidate engine and reports which of them return."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec

from kvitals.agent.node import Node
from kvitals.agent.records import ScrapeRecord, decode
from kvitals.app.errors import NoEngineError
from kvitals.app.load.extracted_load import BrokenLoadError, ExtractedLoad, NoLoadError
from kvitals.app.load.play import EngineAddress, LoadPlayer, PlayedLoad, PlayLimits, last_part
from kvitals.app.load.recorded_incident import GateFigures, RecordedIncident, judge_incident, judged_figures, read_load
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.series.promql import PromQLError, evaluate_range, parse
from kvitals.series.recordings import CaptureError, CaptureWriter

VERSION = "1.0"
SCRAPE_SECONDS = 1.0
LEAD_SECONDS = 2.0
"""Recorded before the first request: rates need pages before it."""
LATE_SECONDS = 1.0
"""A play whose slowest tenth of arrivals is later than this is not the recorded load."""
MAX_LOST_SHARE = 0.05
"""Of a load: more requests that the engine refuses, or that need an adapter, make it another load."""
MAX_INCIDENTS = 1000
SUFFIXES = (".kvcap", ".jsonl")
_RUNNING = parse("sum(kvitals_requests_running)")

GateOutcome = Literal["returns", "other cause", "does not return", "not judged"]
Tell = Callable[[str], None]


class PlayedFigures(msgspec.Struct, frozen=True):
    """How the requests of a play ended. late_p90: seconds by which nine of ten requests were late at most."""

    sent: int
    finished: int
    aborted: int
    refused: dict[str, int]
    failed: int
    unfinished: int
    late_p90: float


class GateAnswer(msgspec.Struct, frozen=True):
    """One incident. why: the reason of an answer `not judged`, otherwise empty."""

    incident: str
    outcome: GateOutcome
    why: str = ""
    recorded: GateFigures | None = None
    candidate: GateFigures | None = None
    played: PlayedFigures | None = None


class GateReport(msgspec.Struct, frozen=True):
    """The answer of the gate. candidate: URL of the engine."""

    candidate: str
    incidents: list[GateAnswer]
    version: str = VERSION

    def count(self, *outcomes: GateOutcome) -> int:
        """How many incidents have one of these outcomes."""
        return sum(answer.outcome in outcomes for answer in self.incidents)


@dataclass(frozen=True)
class GateRequest:
    """What is played where. keep: a directory for the recordings of the candidate; None: they are removed."""

    engine: EngineAddress
    limits: PlayLimits
    keep: Path | None = None


def incident_files(paths: Iterable[Path]) -> list[Path]:
    """The files that are named, and the recordings and loads of the directories that are. Raises NoLoadError."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise NoLoadError(f"{path}: no such file or directory; name recordings or extracted loads")
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise NoLoadError(f"{path} has no file {' or '.join(SUFFIXES)}; name recordings or extracted loads")
        files += inside
    if len(files) > MAX_INCIDENTS:
        raise NoLoadError(f"{len(files)} incidents; at most {MAX_INCIDENTS} are played at a time")
    return files


def read_incident(path: Path, setup: Setup) -> RecordedIncident:
    """A recording or an extracted load. Raises NoLoadError, CaptureError, RecordingError."""
    return read_load(path) if path.suffix == ".jsonl" else judge_incident(path, setup)


def read_incidents(
    paths: Iterable[Path], setup: Setup, named: Collection[Path] = ()
) -> Iterator[RecordedIncident | GateAnswer]:
    """Each incident that can be played, or the answer that states why it cannot. named: files that the user named one
    by one. Raises BrokenLoadError for a load file with a fault, and CaptureError for a named file that is no recording:
    the user wants to correct it before anything is played."""
    for path in paths:
        try:
            yield read_incident(path, setup)
        except BrokenLoadError:
            raise
        except CaptureError as error:
            if path in named:
                raise
            yield GateAnswer(path.name, "not judged", str(error))
        except (NoLoadError, RecordingError, PromQLError) as error:
            yield GateAnswer(path.name, "not judged", str(error))


def unplayable(incident: RecordedIncident) -> str:
    """Why the load of an incident cannot give an answer; empty where it can."""
    if incident.figures is None:
        return "the load states no verdict: extract it again, with kvitals gate extract FILE.kvcap"
    adapters = sum(bool(request.adapter) for request in incident.load.requests)
    if adapters > MAX_LOST_SHARE * len(incident.load.requests):
        return f"{adapters} requests use adapters, and a load does not contain the names of adapters"
    return ""


async def play_incident(incident: RecordedIncident, request: GateRequest, setup: Setup, tell: Tell) -> GateAnswer:
    """Play one incident and judge the candidate. Raises NoEngineError where the candidate's metrics cannot be
    read."""
    if why := unplayable(incident):
        return GateAnswer(incident.name, "not judged", why, incident.figures)
    load = last_part(incident.load, request.limits)
    with tempfile.TemporaryDirectory() as temporary:
        file = (request.keep or Path(temporary)) / f"{Path(incident.name).stem}.gate.kvcap"
        file.unlink(missing_ok=True)
        played = await _recorded_play(load, request, setup, file)
        tell(f"{incident.name}: {played.sent} requests sent, {played.finished} finished; judging")
        try:
            _, figures = await asyncio.to_thread(judged_figures, file, setup)
        except (RecordingError, PromQLError) as error:
            return GateAnswer(incident.name, "not judged", str(error), incident.figures, None, _figures(played))
    outcome, why = compare(incident.figures or GateFigures(None), figures, played, len(load.requests))
    return GateAnswer(incident.name, outcome, why, incident.figures, figures, _figures(played))


def compare(
    recorded: GateFigures, candidate: GateFigures, played: PlayedLoad, requests: int
) -> tuple[GateOutcome, str]:
    """The outcome of a play, and the reason where it is not judged."""
    refused = sum(count for status, count in played.refused.items() if status not in (429, 503))
    if refused > MAX_LOST_SHARE * requests:
        return "not judged", f"the candidate refused {refused} of {requests} requests (HTTP {_statuses(played)})"
    if played.late_p90 > LATE_SECONDS:
        return "not judged", (
            f"one request in ten was sent {played.late_p90:.1f} s late or more: raise --concurrency, or run the "
            f"gate on another machine than the engine"
        )
    if recorded.first and any(cause.code == recorded.first for cause in candidate.causes):
        return "returns", ""
    if candidate.causes:
        return "other cause", ""
    if played.failed > MAX_LOST_SHARE * requests:
        return (
            "not judged",
            f"{played.failed} of {requests} requests failed at the candidate, and no known cause explains it",
        )
    if candidate.healthy is None:
        return "not judged", "the candidate reports too little: kvitals check URL lists what is missing"
    return "does not return", ""


async def _recorded_play(load: ExtractedLoad, request: GateRequest, setup: Setup, file: Path) -> PlayedLoad:
    """Play a load while the candidate is recorded. The recording ends with the last arrival, as that of an incident
    does."""
    async with _watched(request.engine.url, setup) as node:
        with CaptureWriter(
            file, version=version("kvitals"), meta={**node.watched.meta, "every_seconds": SCRAPE_SECONDS}
        ) as writer:
            player = LoadPlayer(load, request.engine, request.limits)
            try:
                await _record(node, writer, asyncio.create_task(asyncio.sleep(LEAD_SECONDS)), check=True)
                await _record(node, writer, asyncio.create_task(player.send()))
                await player.drain()
            finally:
                await player.close()
            return player.played


@asynccontextmanager
async def _watched(url: str, setup: Setup) -> AsyncIterator[Node]:
    """The collectors that triage uses, on the candidate alone."""
    node = Node(setup.config)
    try:
        await node.open([url], once=True)
        yield node
    finally:
        await node.close()


async def _record(node: Node, writer: CaptureWriter, until: asyncio.Task[None], check: bool = False) -> None:
    """Record the candidate each second until a task ends, and once after it. check: refuse an engine that cannot be
    read or serves other requests."""
    try:
        while not until.done():
            begun = time.monotonic()
            await _read(node, writer, check)
            rest = max(0.0, SCRAPE_SECONDS - (time.monotonic() - begun))
            await asyncio.wait([until], timeout=rest)
        await _read(node, writer, check)
        until.result()
    finally:
        until.cancel()


async def _read(node: Node, writer: CaptureWriter, check: bool) -> None:
    for record in await node.read():
        writer.write(record)
        page = decode(record) if check else None
        if isinstance(page, ScrapeRecord) and not page.ok:
            raise NoEngineError(f"{page.target}: {page.message}")
        if check:
            node.ingest_recorded(record)
    if check and (running := _running(node)):
        raise NoEngineError(
            f"the candidate already serves {running:.0f} requests; the gate needs an engine that serves no "
            f"other requests"
        )


def _running(node: Node) -> float:
    now = time.time()
    series = evaluate_range(_RUNNING, node.window, now, now, SCRAPE_SECONDS)
    return float(series[0].values[-1]) if series else 0.0


def _statuses(played: PlayedLoad) -> str:
    return ", ".join(f"{status}: {count}" for status, count in sorted(played.refused.items()))


def _figures(played: PlayedLoad) -> PlayedFigures:
    refused = {str(status): count for status, count in sorted(played.refused.items())}
    return PlayedFigures(
        played.sent, played.finished, played.aborted, refused, played.failed, played.unfinished, played.late_p90
    )
