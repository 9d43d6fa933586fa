"""The diagnosis of an alert's entity at an alert's moment: by this agent, from its history, or from a Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvitals.app.history_recorder import directory
from kvitals.app.notify.finding_match import DiagnosisRequest, lead
from kvitals.app.notify.notice_builder import Diagnosis
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.history import judge_history
from kvitals.app.sources.prometheus import judge_server
from kvitals.app.sources.recording import Moments, RecordingError
from kvitals.diagnoser.sources.prometheus import PrometheusAccess, ServerError
from kvitals.rules.finding import Triage
from kvitals.series.history.schema import FILE, HistoryError
from kvitals.series.promql import PromQLError

FRESH_SECONDS = 30.0
"""A message as young as that is about what goes on now."""
FIRST_SECONDS, LOOK_SECONDS = 20.0, 0.5
"""An agent that has just begun judges within this."""
REUSE_SECONDS = 5.0
"""A storm of messages is one look at the server."""


@dataclass
class OfAgent:
    """What a running agent says: now, or of a moment that is past from its history."""

    pipeline: Pipeline
    clock: Callable[[], float] = time.time
    history: bool = True  # whether it keeps any

    async def __call__(self, about: DiagnosisRequest) -> Diagnosis:
        if self.clock() - about.received > FRESH_SECONDS and self.history:
            return await self._past(about)
        document = await self._now()
        if document is None:
            return Diagnosis("this agent has not judged anything yet")
        found = lead(document, about)
        if found is None and not _watches(document, about):
            return Diagnosis(_elsewhere(about))
        how = f"judged by the agent at {_utc(document.window.end)}, over {document.window.seconds:.0f} s"
        return Diagnosis(how, document, found)

    async def _now(self) -> Triage | None:
        """The document of the last moment that was judged; the first comes some seconds after the start."""
        deadline = time.monotonic() + FIRST_SECONDS
        while self.pipeline.span is None and time.monotonic() < deadline:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(LOOK_SECONDS)
        if self.pipeline.span is None:
            return None
        try:
            return await self.pipeline.settled(self.pipeline.triage)
        except PromQLError:
            return None

    async def _past(self, about: DiagnosisRequest) -> Diagnosis:
        path = directory(self.pipeline.setup.config) / FILE
        return await asyncio.to_thread(_judged_past, path, self.pipeline.setup, about)


@dataclass
class OfFleet:
    """What a Prometheus has of a fleet."""

    access: PrometheusAccess
    setup: Setup
    _last: tuple[float, Triage] | None = field(default=None, repr=False)

    async def __call__(self, about: DiagnosisRequest) -> Diagnosis:
        first = await self._judged(about.received, about)
        if first.lead is None and first.document is not None and about.received - about.began > FRESH_SECONDS:
            then = await self._judged(about.began, about)  # it may be over by now
            return then if then.lead is not None else first
        return first

    async def _judged(self, at: float, about: DiagnosisRequest) -> Diagnosis:
        if self._last is None or not 0 <= at - self._last[0] < REUSE_SECONDS:
            try:
                judged = await asyncio.to_thread(judge_server, self.access, self.setup, at)
            except (ServerError, PromQLError) as error:
                return Diagnosis(f"not judged: {error}")
            self._last = (at, judged.document)
        document = self._last[1]
        how = f"judged from {self.access.url} at {_utc(self._last[0])}, over {document.window.seconds:.0f} s"
        return Diagnosis(how, document, lead(document, about))


def _judged_past(path: Path, setup: Setup, about: DiagnosisRequest) -> Diagnosis:
    try:
        document = judge_history(path, setup, Moments(about.received)).document
    except (HistoryError, RecordingError, PromQLError) as error:
        return Diagnosis(f"not judged: {error}")
    how = f"judged from the agent's history at {_utc(document.window.end)}, over {document.window.seconds:.0f} s"
    return Diagnosis(how, document, lead(document, about))


def _watches(document: Triage, about: DiagnosisRequest) -> bool:
    """Whether an alert's engine is among those that are looked at."""
    engine = about.entity.get("engine") or about.entity.get("instance")
    known = [one["engine"] for one in document.coverage.engines]
    return not engine or any(one == engine or one.startswith(f"{engine}/") for one in known)


def _elsewhere(about: DiagnosisRequest) -> str:
    engine = about.entity.get("engine") or about.entity.get("instance")
    return (
        f"not judged: this agent does not watch {engine}; send alerts to the agent that does, or to"
        " `kvitals notify --prometheus URL`, which looks at all"
    )


def _utc(moment: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))
