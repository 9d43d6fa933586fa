"""Verdicts on a fleet whose series a Prometheus has, or another server that answers as it does."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from kvitals.agent import objectives
from kvitals.app.identity import KnownEngine, address, known_engine, without_rank
from kvitals.app.pipeline import Setup, mutes
from kvitals.app.sources.losses import SourceLoss, with_losses
from kvitals.app.sources.merged_engines import (
    ALL_MERGED,
    EngineKey,
    engine_key,
    merged_engines,
    merged_text,
    of_separate,
)
from kvitals.diagnoser.engine_rows import with_engines
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.sources.engine_pages import read_pages, scalers
from kvitals.diagnoser.sources.presence import Presence, presence
from kvitals.diagnoser.sources.prometheus import ONLY_OPTION, Prometheus, PrometheusAccess, PrometheusQuery, ServerError
from kvitals.diagnoser.sources.remote import RemoteSignals, judge_with_past
from kvitals.diagnoser.sources.served import Dialect, FamilyDialect, PartDialect, Rows, ServedFamilies
from kvitals.diagnoser.sources.survey import Survey, survey
from kvitals.diagnoser.triage import triage
from kvitals.rules.expressions import expression
from kvitals.rules.finding import DocumentSource, SloInForce, Triage
from kvitals.series.promql import Series
from kvitals.series.types import Labels

MAX_ENGINES = 2500
"""Engines that are read at once: with all rules they took 0.7 GB."""
PARTS = ("pool", "cluster", "node")
"""Labels by which a server with more engines is read in part."""
MAX_PARTS = 200
_OBJECTIVES = [expression(f'{which} by (slo, source) (kvitals_slo_seconds{{class=""}})') for which in ("min", "max")]


class NoEnginesError(ServerError):
    """A server has no engine's metrics at a moment."""


@dataclass(frozen=True)
class PrometheusVerdict:
    """A verdict, and what it took: questions, the seconds that were spent waiting for answers, their bytes."""

    document: Triage
    survey: Survey
    questions: int
    judging: int  # of these, those that it took to judge; the others are evidence of what was found
    waited: float
    received: int
    engines: list[KnownEngine] = field(default_factory=list)  # with all names that the server has for them
    merged: Mapping[EngineKey, Sequence[str]] = field(default_factory=dict)  # that stand for several sources


def judge_server(
    access: PrometheusAccess, setup: Setup, at: float, window: float = 0.0, place: Mapping[str, str] | None = None
) -> PrometheusVerdict:
    """The verdict at one moment. `window`: seconds that are judged, where not as many as samples ask for. `place`: the
    labels of the one place that is judged, such as {"pool": "chat"}; without any, the whole fleet.

    Raises ServerError where the server can not be asked, or has nothing to judge.
    """
    with Prometheus(access) as server, _without_collections():
        found = survey(server, at, window)
        served = ServedFamilies(server, dialect(server, found, setup, place))
        signals = RemoteSignals(setup.knowledge, served, found.interval)
        judge = Judge(setup.knowledge, signals, setup.config.params)
        merged = engines_of_several_sources(server, found, served.dialect)
        judgements = of_separate(judge_with_past(judge, signals, found.span), merged)
        judging = server.asked
        source = DocumentSource("prometheus", access.url)
        document = triage(judge, judgements, found.span, source, _slo(signals, setup, at), mutes(setup.config))
        document = with_engines(document, judge, judgements, found.span)
        if merged and not any(judgement.rule.core for judgement in judgements):
            document = msgspec.structs.replace(document, verdict=ALL_MERGED)
        losses = [SourceLoss(text) for text in (server.left_out, merged_text(merged, found.agents)) if text]
        losses += [SourceLoss(f"the server warned: {warning}") for warning in server.warnings]
        engines = _engines(server, signals, found)
        whole = with_losses(document, losses)
        return PrometheusVerdict(whole, found, server.asked, judging, server.waited, server.received, engines, merged)


def server_engines(access: PrometheusAccess, setup: Setup, at: float) -> list[KnownEngine]:
    """The engines of a server with their places and all names that it has for them: a few queries, and nothing is
    judged. Raises ServerError."""
    with Prometheus(access) as server:
        found = survey(server, at)
        served = ServedFamilies(server, dialect(server, found, setup))
        return _engines(server, RemoteSignals(setup.knowledge, served, found.interval), found)


def look_at_server(access: PrometheusAccess, setup: Setup, at: float) -> tuple[Survey, Presence]:
    """What a server has, family by family and pool by pool. Raises ServerError."""
    with Prometheus(access) as server:
        found = survey(server, at)
        served = ServedFamilies(server, dialect(server, found, setup))
        signals = RemoteSignals(setup.knowledge, served, found.interval)
        merged = merged_text(engines_of_several_sources(server, found, served.dialect), found.agents)
        found = replace(found, left_out=". ".join(filter(None, (server.left_out, merged))))
        return found, presence(setup.knowledge, signals, found.span)


def look_at_names(access: PrometheusAccess, setup: Setup, at: float) -> tuple[Survey, Dialect]:
    """What a server has, and how it says it: what `course_at_server` needs, and may be kept for a minute or so. Raises
    ServerError."""
    with Prometheus(access) as server:
        found = survey(server, at)
        return found, dialect(server, found, setup)


def course_at_server(
    access: PrometheusAccess, setup: Setup, seen: tuple[Survey, Dialect], query: str, times: tuple[float, float, float]
) -> list[Series]:
    """The course of an expression over families and signals, whether the server has the signals recorded or not. times:
    start, end and step in seconds. Raises ServerError, also where the server refuses the query; PromQLError."""
    found, said_as = seen
    expr = expression(query)
    with Prometheus(access) as server:
        served = ServedFamilies(server, said_as)
        signals = RemoteSignals(setup.knowledge, served, found.interval)
        signals.define(found.span)
        lines = signals.course(expr, *times)
        if not lines and (why := next(iter(served.failed.values()), "")):
            raise ServerError(why)
        return lines


@contextmanager
def _without_collections() -> Iterator[None]:
    """A fleet is hundreds of thousands of small objects in no circles, and to look for circles takes long."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def dialect(server: Prometheus, found: Survey, setup: Setup, place: Mapping[str, str] | None = None) -> Dialect:
    """How the server names families, for at most MAX_ENGINES engines: those of the place and of the user's choice, or
    else the largest part of them that is small enough; `server.left_out` states the rest. Raises ServerError."""
    chosen = _whole_dialect(server, found, setup)
    if place:
        chosen = PartDialect(chosen, {label: (value,) for label, value in place.items()})
    if server.access.only:
        chosen = PartDialect(chosen, server.access.only, patterns=True)
    engines = [labels for labels, _ in _entities(server, chosen, found.at)]
    if not engines and server.access.only:
        raise ServerError(f"no engine of this server has {_named(server.access.only)}; give another {ONLY_OPTION}")
    if len(engines) <= MAX_ENGINES:
        return chosen
    counted = f"{len(engines):,} engines; at most {MAX_ENGINES:,} are read at once"
    part = _part(engines)
    if part is None:
        raise ServerError(
            f"{counted}, and no {', '.join(PARTS)} has so few: read a part with {ONLY_OPTION}. `*` is any text"
        )
    label, texts, count = part
    chosen = PartDialect(chosen, {label: texts})
    server.left_out = (
        f"{counted}. Read: {count:,} of {_named({label: texts})}. Left out: {len(engines) - count:,} engines; read "
        f"them with {ONLY_OPTION}"
    )
    return chosen


def engines_of_several_sources(server: Prometheus, found: Survey, of: Dialect) -> dict[EngineKey, list[str]]:
    """The engines that a dialect reads whose figures are those of several sources together -> the labels in which the
    sources differ. Raises ServerError."""
    return merged_engines(server, found, {engine_key(labels) for labels, _ in _entities(server, of, found.at)})


def _entities(server: Prometheus, of: Dialect, at: float) -> Rows:
    """The engines that a dialect reads."""
    expr = expression(ENTITIES)
    return ServedFamilies(server, of).instant([expr], at)[expr]


def _part(engines: Sequence[Labels]) -> tuple[str, tuple[str, ...], int] | None:
    """A label, values of it, and how many engines have one of these, or none, at most MAX_ENGINES; None: no such
    part."""
    for label in PARTS:
        counts = Counter(labels.get(label, "") for labels in engines)
        count = counts.pop("", 0)
        texts: list[str] = []
        for text, number in counts.most_common(MAX_PARTS):
            if count + number <= MAX_ENGINES:
                count, texts = count + number, [*texts, text]
        if texts:
            return label, tuple(texts), count
    return None


def _named(part: Mapping[str, Collection[str]]) -> str:
    """A part in words, without most of a long list."""
    return ", ".join(f"{label}={text}" for label, texts in part.items() for text in list(texts)[:10])


def _whole_dialect(server: Prometheus, found: Survey, setup: Setup) -> Dialect:
    if found.agents:
        return FamilyDialect(found.names, scalers(found.names))

    def of_engine(model: str, role: str) -> list[tuple[str, float, str]]:
        said = objectives.of_engine(setup.config, None, model, role, setup.slo_sources)
        return [(one.name, one.seconds, one.source) for one in said if not one.class_]

    pages = read_pages(server, found.names, found.at, of_engine)
    if not pages.rows[ENTITIES]:
        raise NoEnginesError(
            "this server has no engine metrics: neither families of agents (kvitals_target_up) nor an engine's "
            "names (vllm:, sglang:, ...); is it the server that scrapes the engines?"
        )
    return pages


def _engines(server: Prometheus, signals: RemoteSignals, found: Survey) -> list[KnownEngine]:
    """The engines and the names of their pods, which a Prometheus has beside the instance that it scrapes itself."""
    rows = signals.ask([expression(ENTITIES)], found.at, shared=True).values()
    engines = [labels for some in rows for labels, _ in some]
    names: dict[str, set[str]] = {}
    if "up" in found.names:
        for target in server.one(PrometheusQuery("group by (instance, namespace, pod) (up)", found.at)):
            labels = target.metric
            pod = "/".join(filter(None, (labels.get("namespace"), labels.get("pod"))))
            names.setdefault(labels.get("instance", ""), set()).update((pod, labels.get("pod", "")))
    return [
        known_engine(one, {name, address(name), *names.get(name, ())})
        for one in engines
        for name in (without_rank(one.get("engine", "")),)
    ]


def _slo(signals: RemoteSignals, setup: Setup, at: float) -> list[SloInForce]:
    """The objectives of the fleet, the least and the greatest where they differ."""
    answers = signals.ask(_OBJECTIVES, at, shared=True).values()
    said = {(labels["slo"], value, labels["source"]) for rows in answers for labels, value in rows}
    general = objectives.general(setup.config, setup.slo_sources)
    return [SloInForce(*one) for one in sorted(said or {(g.name, g.seconds, g.source) for g in general})]
