"""The diagnosis of an alert's entity at an alert's moment: by this agent, from its history, or from a Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvitals.app.bounded_process import WorkLimitError, WorkLimits, WorkRefusedError, run_bounded
from kvitals.app.history_recorder import directory
from kvitals.app.identity import KnownEngine, ResolvedEntity, address, known_engine, resolve, without_rank
from kvitals.app.notify.finding_match import DiagnosisRequest, is_about_engines, lead, leaves_open, relates
from kvitals.app.notify.fleet_looks import FleetLooks, LookBudget, TooManyLooksError
from kvitals.app.notify.notice_builder import Diagnosis, where
from kvitals.app.notify.notice_text import moment
from kvitals.app.pipeline import FAST_SECONDS, SLOW_SECONDS, Pipeline, Setup
from kvitals.app.sources.history import judge_history
from kvitals.app.sources.merged_engines import engine_key, merged_text
from kvitals.app.sources.prometheus_fleet import NoEnginesError, PrometheusVerdict, judge_server, server_engines
from kvitals.app.sources.recording import Moments
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.sources.engine_pages import page_metrics
from kvitals.diagnoser.sources.prometheus import PrometheusAccess, ServerError
from kvitals.diagnoser.sources.survey import NothingScrapedError
from kvitals.rules.finding import Finding, Triage
from kvitals.rules.loader import Knowledge
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

MAX_NOT_JUDGED = 5
"""Causes that could not be judged, in one message with the reason."""
MAX_ALIKE = 3
"""Engines that one alert may mean, in a message."""
NEEDS_AGENT = "needs the agent"

NOT_WATCHED = (
    "this agent does not watch {}; send alerts to the agent that does, or to `kvitals notify --prometheus URL`, which "
    "diagnoses every engine"
)
NOT_OF_ENGINES = "not diagnosed: no label of the alert names an engine, a pool or a node"
"""Of alerts that are no rule of ours and read no metric of an engine."""
PAST_LIMITS = WorkLimits(60.0)
"""Of one moment of history."""


@dataclass(frozen=True)
class PastVerdict:
    """The document of a moment that is past, and the engines of then."""

    document: Triage
    engines: list[KnownEngine]


@dataclass
class OfAgent:
    """What a running agent says: now, or of a moment that is past from its history."""

    pipeline: Pipeline
    clock: Callable[[], float] = time.time
    history: bool = True  # whether it keeps any
    _looks: FleetLooks[PastVerdict] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._looks = FleetLooks(lambda _, at: self._judge_past(at), cost=time.monotonic)  # in another process

    async def __call__(self, about: DiagnosisRequest) -> Diagnosis:
        if not is_about_engines(about):
            return Diagnosis(NOT_OF_ENGINES)
        if self.clock() - about.received > FRESH_SECONDS and self.history:
            return await self._past(about)
        document = await self._now()
        if document is None:
            return Diagnosis("this agent has not evaluated any window yet")
        engines = engines_of_agent(self.pipeline, document.window.end)
        how = f"diagnosed by the agent at {_when(document, about)}"
        return _diagnosis(how, document, about, engines, self.pipeline.setup.knowledge, elsewhere=_not_watched(about))

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
        look = self._looks.at(about.received, {}, REUSE_SECONDS)
        try:
            judged = await asyncio.shield(look.answer)
        except (WorkLimitError, WorkRefusedError, TooManyLooksError) as error:
            return Diagnosis(f"not judged from history: {error}")
        document = judged.document
        how = f"diagnosed from the agent's history at {_when(document, about)}"
        known = self.pipeline.setup.knowledge
        return _diagnosis(how, document, about, judged.engines, known, elsewhere=_not_watched(about))

    def _judge_past(self, at: float) -> PastVerdict:
        path = directory(self.pipeline.setup.config) / FILE
        targets = self.pipeline.node.watched.meta["targets"]
        return run_bounded(judge_past, path, self.pipeline.setup, targets, at, limits=PAST_LIMITS)


@dataclass
class OfFleet:
    """What a Prometheus has of a fleet."""

    access: PrometheusAccess
    setup: Setup
    _looks: FleetLooks[PrometheusVerdict] = field(init=False, repr=False)
    _lists: FleetLooks[list[KnownEngine]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        budget = LookBudget()
        self._looks = FleetLooks(lambda place, at: judge_server(self.access, self.setup, at, place=place), budget)
        self._lists = FleetLooks(lambda _, at: server_engines(self.access, self.setup, at), budget)

    async def __call__(self, about: DiagnosisRequest) -> Diagnosis:
        if not is_about_engines(about):
            return Diagnosis(NOT_OF_ENGINES)
        at, engines = await self._seen(about)
        subject = resolve(about.entity, engines or ())
        if engines is not None and not subject.engines and (subject.named or not about.of_engines):
            return Diagnosis(f"not diagnosed: {self._elsewhere(about)}", elsewhere=True)
        place = _place(subject)
        first = await self._judged(about.received, about, place)
        if at < about.received and first.lead is None:
            return await self._before(at, about, place)
        if first.lead is not None or first.document is None:
            return first
        if first.elsewhere or about.received - about.began > FRESH_SECONDS:  # it may be over or gone by now
            then = await self._judged(about.began, about, place)
            return then if first.elsewhere or then.lead is not None else first
        return first

    async def _seen(self, about: DiagnosisRequest) -> tuple[float, list[KnownEngine] | None]:
        """The latest moment at which the server has an engine that an alert is about, and the engines of then: when its
        message came, when it began, a window earlier. Without any, the first; None where the server does not answer:
        the look fails likewise, and the message has its reason."""
        latest = None
        moments = [(about.received, FRESH_SECONDS), (about.received, REUSE_SECONDS)]  # a list may be too old
        moments += [(at, REUSE_SECONDS) for at in (about.began, about.began - FAST_SECONDS)]
        for at, age in moments:
            try:
                engines = await asyncio.shield(self._lists.at(at, {}, age).answer)
            except (NoEnginesError, NothingScrapedError):
                continue  # the last engine of a server may be the one that is gone
            except (ServerError, PromQLError, TooManyLooksError):
                break
            if resolve(about.entity, engines).engines:
                return at, engines
            latest = latest or (at, engines)
        return latest or (about.received, None)

    async def _before(self, at: float, about: DiagnosisRequest, place: Mapping[str, str]) -> Diagnosis:
        """What was so of an engine that is gone, before it was. Any cause is of interest: of its end, no rule of an
        engine that still ran states anything."""
        found = await self._judged(at, replace(about, symptomatic=True), place)
        return replace(found, how=f"{found.how}; the engine is gone since", gone=True)

    def _elsewhere(self, about: DiagnosisRequest) -> str:
        return f"{self.access.url} has no engine with these labels: {where(about.entity)}"

    async def _judged(self, at: float, about: DiagnosisRequest, place: Mapping[str, str]) -> Diagnosis:
        """An answer of the last seconds serves again if it has a cause; evidence of one may have come since."""
        found = Diagnosis("not judged")
        for age in (FRESH_SECONDS, REUSE_SECONDS):
            look = self._looks.at(at, place, age)
            try:
                judged = await asyncio.shield(look.answer)
            except (ServerError, PromQLError, TooManyLooksError) as error:
                return Diagnosis(f"not judged: {error}")
            document = judged.document
            how = f"diagnosed from {self.access.url} at {_when(document, about)}"
            known, agents = self.setup.knowledge, judged.survey.agents
            if merged := _merged(about, judged):
                return Diagnosis(f"not diagnosed: {merged}", document, elsewhere=True)
            found = _diagnosis(
                how, document, about, judged.engines, known, agents=agents, elsewhere=self._elsewhere(about)
            )
            if found.lead is not None and not found.partial:
                break
        return found


def judge_past(path: Path, setup: Setup, targets: Sequence[Mapping[str, Any]], at: float) -> PastVerdict:
    """The verdict at a moment of history. Hours of many engines take hundreds of megabytes: for `run_bounded`. Raises
    WorkRefusedError."""
    try:
        judged = judge_history(path, setup, Moments(at))
    except (HistoryError, RecordingError, PromQLError) as error:
        raise WorkRefusedError(str(error)) from error
    end = judged.document.window.end
    return PastVerdict(judged.document, engines_of_agent(judged.pipeline, end, targets))


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


def _when(document: Triage, about: DiagnosisRequest) -> str:
    return f"{moment(document.window.end, about.received)}, over {document.window.seconds:.0f} s"


def _not_watched(about: DiagnosisRequest) -> str:
    return NOT_WATCHED.format(where(about.entity))


def _place(subject: ResolvedEntity) -> Mapping[str, str]:
    """The pool that an alert is about, by its label or that of the engines that it names. Empty for the whole fleet: it
    is about several pools, or engines have none."""
    pools = {one.place.get("pool", "") for one in subject.engines}
    if len(pools) != 1 or "" in pools:
        return {}
    clusters = {one.place.get("cluster", "") for one in subject.engines}
    place = {"pool": pools.pop(), "cluster": clusters.pop() if len(clusters) == 1 else ""}
    return {label: value for label, value in place.items() if value}


def _diagnosis(
    how: str,
    document: Triage,
    about: DiagnosisRequest,
    engines: Sequence[KnownEngine],
    knowledge: Knowledge,
    *,
    elsewhere: str,
    agents: bool = True,
) -> Diagnosis:
    """What a document says of an alert. With too little history a document may be clear where an alert that has watched
    for longer fires: then it is no diagnosis, and is asked for again later. elsewhere: what is said where the alert
    names what is not known; agents: whether engines have any."""
    subject = resolve(about.entity, engines)
    if not subject.engines and (subject.named or not about.of_engines):
        return Diagnosis(f"not diagnosed: {elsewhere}", document, elsewhere=True)
    if alike := subject.alike:
        names = ", ".join(where({**one.place, "engine": one.engine}) for one in alike[:MAX_ALIKE])
        how = f"{len(alike)} engines match its labels ({names}). Add the label `cluster` or `node` to the alert"
        return Diagnosis(f"not diagnosed: {how}", document, elsewhere=True)
    codes = frozenset(rule.code for rule in knowledge.rules.values() if rule.partial)
    found = lead(document, about, engines, codes)
    pool, engine = _pool(subject), _engine(subject, found)
    if document.window.cold and (found is None or (about.codes and not relates(found, about.codes, document))):
        how = f"not diagnosed yet: kvitals has watched only {document.window.seconds:.0f} s, which is too little"
        return Diagnosis(how, pool=pool, engine=engine)
    if found is None or found.kind not in ("cause", "symptom"):
        return Diagnosis(how, document, found, pool, engine=engine)
    of_many = found.entity.kind in ("pool", "fleet") and subject.named
    partial = found.kind == "cause" and (of_many or leaves_open(found, document.causes, codes))
    unknown = _not_judged(document, found, knowledge, agents=agents) if partial or found.kind == "symptom" else ()
    return Diagnosis(how, document, found, pool, partial, unknown, engine=engine)


def _not_judged(document: Triage, found: Finding, knowledge: Knowledge, *, agents: bool) -> Sequence[str]:
    """The causes of a finding that could not be judged, with the reason; of a symptom, which has many, those that need
    agents by their codes."""
    known = {one.code: one.reason for one in document.unknown}
    if not agents:
        having = ((rule.code, rule.applies.having) for rule in knowledge.rules.values() if rule.applies.having)
        known |= {code: f"{metric} {NEEDS_AGENT}" for code, metric in having if metric not in page_metrics()}
    blind = [rule for rule in knowledge.rules.values() if rule.code in known and found.code in rule.explains]
    if found.kind == "symptom":
        codes = [] if agents else [rule.code for rule in blind if NEEDS_AGENT in known[rule.code]]
        return [f"causes that are not checked without agents: {', '.join(codes)}"] if codes else []
    return [f"{rule.code} {rule.title}: not checked, {known[rule.code]}" for rule in blind[:MAX_NOT_JUDGED]]


def _pool(subject: ResolvedEntity) -> str:
    """The pool of the engine that an alert names; empty where it names none or the engines are of several pools."""
    pools = subject.values("pool") if subject.named else frozenset()
    return next(iter(pools)) if len(pools) == 1 else ""


def _engine(subject: ResolvedEntity, found: Finding | None) -> str:
    """The engine that an alert names, or else the one that a finding is of; empty where there is none or several."""
    if subject.named and len(subject.engines) == 1:
        return subject.engines[0].engine
    return found.entity.labels.get("engine", "") if found is not None else ""


def _merged(about: DiagnosisRequest, judged: PrometheusVerdict) -> str:
    """What is wrong with the engines that an alert names, where each stands for several sources; else empty."""
    subject = resolve(about.entity, judged.engines)
    keys = {engine_key({**one.place, "engine": one.engine}) for one in subject.engines} if subject.named else set()
    if not keys or not keys <= judged.merged.keys():
        return ""
    return merged_text({key: judged.merged[key] for key in keys}, judged.survey.agents)
