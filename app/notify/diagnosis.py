"""The diagnosis of an alert's entity at an alert's moment: by this agent, from its history, or from a Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvitals.app.history_recorder import directory
from kvitals.app.identity import KnownEngine, address, known_engine, resolve, without_rank
from kvitals.app.notify.finding_match import DiagnosisRequest, lead, relates
from kvitals.app.notify.fleet_looks import LOOKS_AT_ONCE, FleetLooks
from kvitals.app.notify.notice_builder import Diagnosis, where
from kvitals.app.pipeline import SLOW_SECONDS, Pipeline, Setup
from kvitals.app.sources.history import judge_history
from kvitals.app.sources.prometheus_fleet import PrometheusVerdict, judge_server, server_engines
from kvitals.app.sources.recording import Moments, RecordingError
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.sources.prometheus import PrometheusAccess, ServerError
from kvitals.rules.finding import Triage
from kvitals.series.history.schema import FILE, HistoryError
from kvitals.series.promql import PromQLError
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp

FRESH_SECONDS = 30.0
"""A message as young as that is about what goes on now."""
FIRST_SECONDS, LOOK_SECONDS = 20.0, 0.5
"""An agent that has just begun judges within this."""
REUSE_SECONDS = 5.0
"""A storm of messages is one look at the server, also where the look names no cause. With a cause the look serves for
`FRESH_SECONDS`."""


@dataclass
class OfAgent:
    """What a running agent says: now, or of a moment that is past from its history."""

    pipeline: Pipeline
    clock: Callable[[], float] = time.time
    history: bool = True  # whether it keeps any
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKS_AT_ONCE), repr=False)

    async def __call__(self, about: DiagnosisRequest) -> Diagnosis:
        if self.clock() - about.received > FRESH_SECONDS and self.history:
            return await self._past(about)
        document = await self._now()
        if document is None:
            return Diagnosis("this agent has not evaluated any window yet")
        engines = engines_of_agent(self.pipeline, document.window.end)
        subject = resolve(about.entity, engines)
        if subject.named and not subject.engines:
            return Diagnosis(_elsewhere(about))
        how = f"diagnosed by the agent at {_utc(document.window.end)}, over {document.window.seconds:.0f} s"
        return _diagnosis(how, document, about, engines)

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
        targets = self.pipeline.node.watched.meta["targets"]
        async with self._turns:
            return await asyncio.to_thread(_judged_past, path, self.pipeline.setup, targets, about)


@dataclass
class OfFleet:
    """What a Prometheus has of a fleet."""

    access: PrometheusAccess
    setup: Setup
    _looks: FleetLooks[PrometheusVerdict] = field(init=False, repr=False)
    _lists: FleetLooks[list[KnownEngine]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._looks = FleetLooks(lambda place, at: judge_server(self.access, self.setup, at, place=place))
        self._lists = FleetLooks(lambda _, at: server_engines(self.access, self.setup, at))

    async def __call__(self, about: DiagnosisRequest) -> Diagnosis:
        place = await self._place(about)
        first = await self._judged(about.received, about, place)
        if first.lead is None and first.document is not None and about.received - about.began > FRESH_SECONDS:
            then = await self._judged(about.began, about, place)  # it may be over by now
            return then if then.lead is not None else first
        return first

    async def _place(self, about: DiagnosisRequest) -> Mapping[str, str]:
        """The pool that an alert is about, by its label or that of the engines that it names. Empty for the whole
        fleet: it is about several pools, or engines have none."""
        try:
            engines = await asyncio.shield(self._lists.at(about.received, {}, FRESH_SECONDS).answer)
        except (ServerError, PromQLError):
            return {}  # the look fails likewise, and the message has its reason
        found = resolve(about.entity, engines).engines
        pools = {one.place.get("pool", "") for one in found}
        if len(pools) != 1 or "" in pools:
            return {}
        clusters = {one.place.get("cluster", "") for one in found}
        place = {"pool": pools.pop(), "cluster": clusters.pop() if len(clusters) == 1 else ""}
        return {label: value for label, value in place.items() if value}

    async def _judged(self, at: float, about: DiagnosisRequest, place: Mapping[str, str]) -> Diagnosis:
        """An answer of the last seconds serves again if it has a cause; evidence of one may have come since."""
        found = Diagnosis("not judged")
        for age in (FRESH_SECONDS, REUSE_SECONDS):
            look = self._looks.at(at, place, age)
            try:
                judged = await asyncio.shield(look.answer)
            except (ServerError, PromQLError) as error:
                return Diagnosis(f"not judged: {error}")
            document = judged.document
            how = f"diagnosed from {self.access.url} at {_utc(look.moment)}, over {document.window.seconds:.0f} s"
            found = _diagnosis(how, document, about, judged.engines)
            if found.lead is not None:
                break
        return found


def _judged_past(path: Path, setup: Setup, targets: Sequence[Mapping[str, Any]], about: DiagnosisRequest) -> Diagnosis:
    try:
        judged = judge_history(path, setup, Moments(about.received))
    except (HistoryError, RecordingError, PromQLError) as error:
        return Diagnosis(f"not judged: {error}")
    document = judged.document
    how = f"diagnosed from the agent's history at {_utc(document.window.end)}, over {document.window.seconds:.0f} s"
    return _diagnosis(how, document, about, engines_of_agent(judged.pipeline, document.window.end, targets))


def engines_of_agent(
    pipeline: Pipeline, at: float, targets: Sequence[Mapping[str, Any]] | None = None
) -> list[KnownEngine]:
    """The engines in an agent's window, with the names and addresses of their targets. targets: those of the running
    agent, where the window was filled from its history."""
    watched = pipeline.node.watched.meta["targets"] if targets is None else targets
    names: dict[str, set[str]] = {}
    for target in watched:
        where = address(target["url"])
        every = {target["url"], where, target["name"]}
        for base in (where, target["name"]):
            names.setdefault(base, set()).update(every)
    matchers = [Matcher(METRIC_NAME, MatchOp.EQ, ENTITIES)]
    series = pipeline.label_sets(matchers, at - SLOW_SECONDS, at)
    return [known_engine(one, names.get(without_rank(one["engine"]), ())) for one in series]


def _diagnosis(how: str, document: Triage, about: DiagnosisRequest, engines: Sequence[KnownEngine]) -> Diagnosis:
    """What a document says of an alert. With too little history a document may be clear where an alert that has watched
    for longer fires: then it is no diagnosis, and is asked for again later."""
    found, pool = lead(document, about, engines), _pool(about, engines)
    if document.window.cold and (found is None or (about.codes and not relates(found, about.codes))):
        how = f"not diagnosed yet: kvitals has watched only {document.window.seconds:.0f} s, which is too little"
        return Diagnosis(how, pool=pool)
    return Diagnosis(how, document, found, pool)


def _pool(about: DiagnosisRequest, engines: Sequence[KnownEngine]) -> str:
    """The pool of the engine that an alert names; empty where it names none or the engines are of several pools."""
    subject = resolve(about.entity, engines)
    pools = subject.values("pool") if subject.named else frozenset()
    return next(iter(pools)) if len(pools) == 1 else ""


def _elsewhere(about: DiagnosisRequest) -> str:
    return (
        f"not diagnosed: this agent does not watch {where(about.entity)}; send alerts to the agent that does, "
        f"or to `kvitals notify --prometheus URL`, which diagnoses every engine"
    )


def _utc(moment: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))
