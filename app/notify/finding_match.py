"""Which finding of a triage document an alert is about."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kvitals.app.identity import (
    KnownEngine,
    ResolvedEntity,
    known_engine,
    names_engine,
    names_engines,
    resolve,
    same_place,
)
from kvitals.app.notify.incoming import Alert
from kvitals.diagnoser.sources.engine_pages import page_maps
from kvitals.rules.finding import Finding, Triage, reached_from


@dataclass(frozen=True)
class DiagnosisRequest:
    """What a diagnosis is wanted of. Times are seconds since the epoch."""

    entity: Mapping[str, str]
    codes: frozenset[str]  # rules whose alerts fire
    symptomatic: bool  # whether any cause on the entity is of interest, and not only one that explains the codes
    began: float
    received: float
    of_engines: bool = True  # whether an alert is one of ours, or its expression reads a metric of engines


def diagnosis_request(alerts: Iterable[Alert], entity: Mapping[str, str], received: float) -> DiagnosisRequest:
    several = list(alerts)
    codes = frozenset(one.code for one in several if one.code)
    symptomatic = any(one.symptomatic for one in several)
    began = min((one.began(received) for one in several), default=received)
    of_engines = any(one.code or one.reads(engine_metrics()) for one in several)
    return DiagnosisRequest(entity, codes, symptomatic, began, received, of_engines)


def is_about_engines(about: DiagnosisRequest) -> bool:
    """Whether an alert may be about engines: by its rule, by its expression, or by a label that names one or its place.
    Others, such as one of a certificate or of another service, have no finding of ours."""
    return about.of_engines or names_engines(about.entity)


def is_of_engine(about: DiagnosisRequest) -> bool:
    """Whether an alert is about one engine, known or not: it names one, and is one of ours or reads a metric of
    engines."""
    return names_engine(about.entity) and (about.of_engines or "engine" in about.entity)


@cache
def engine_metrics() -> re.Pattern[str]:
    """Matches a text that names a metric of an engine or of kvitals."""
    prefixes = {prefix for known in page_maps() for prefix in known.recognise.prefixes} | {"kvitals_", "kvitals:"}
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(re.escape, sorted(prefixes)))})[a-z]", re.ASCII)


def lead(
    document: Triage,
    about: DiagnosisRequest,
    engines: Sequence[KnownEngine] = (),
    partial: Collection[str] = (),
) -> Finding | None:
    """The first finding on the entity that is or explains an alert's rule, by way of other causes too; else, of a
    symptom, the first cause or symptom there. What is for information is no answer to an alert of something else.

    Causes stand in the document's order, so what explains most comes first, and what is explained comes after what
    explains it. For an alert that names an engine, a cause on that engine, or one on its node that explains such a
    cause, comes before one that leaves open why, and before others on its pool or node: its peers' trouble is often an
    effect of it. engines: those that are known, with their names and places; without any, those that the document
    lists. partial: codes of causes that leave open why.
    """
    subject = resolve(about.entity, engines or engines_of(document))
    near = [finding for finding in _findings(document) if concerns(finding, about, subject)]
    own = [one for one in near if one.kind == "cause" and one.entity.kind == "engine"]
    if subject.named:
        near.sort(key=lambda one: (not (one in own or _is_behind(one, own)), leaves_open(one, own, partial)))
    related = (finding for finding in near if relates(finding, about.codes, document, near))
    others = (one for one in near if about.symptomatic and one.kind in ("cause", "symptom") and one.severity != "info")
    return next(related, None) or next(others, None)


def concerns(finding: Finding, about: DiagnosisRequest, subject: ResolvedEntity) -> bool:
    """Whether a finding is of an alert's entity, of what that stands on, or of something in it.

    A finding of a pool or a node needs the same pool or node: the alert's label, or that of the engine that it names.
    """
    mine, kind = finding.entity.labels, finding.entity.kind
    if not same_place(mine, about.entity):
        return False
    if kind == "fleet":
        return True
    if kind == "engine":
        if not subject.engines:
            return mine.get("engine", "") == about.entity.get("engine")
        return any(one.engine == mine.get("engine") and same_place(one.place, mine) for one in subject.engines)
    if about.entity.get(kind):
        return about.entity[kind] == mine.get(kind)
    places = subject.values(kind)
    if subject.named:
        return mine.get(kind) in places
    return places == {mine.get(kind)}  # an alert of everything, where there is one pool


def relates(finding: Finding, codes: frozenset[str], document: Triage, among: Iterable[Finding] = ()) -> bool:
    """Whether a finding is of one of these rules, or explains one. among: the findings through which it may explain
    one; without any, all of the document."""
    return finding.code in codes or not codes.isdisjoint(explained_codes(finding, document, among))


def explained_codes(finding: Finding, document: Triage, among: Iterable[Finding] = ()) -> list[str]:
    """The codes that a finding explains, then those that it explains by way of other causes."""
    reached = reached_from(finding, document.causes)
    further = (one.code for one in among or (*document.causes, *document.symptoms) if one.id in reached)
    return list(dict.fromkeys([*finding.explains, *further]))


def leaves_open(finding: Finding, causes: Iterable[Finding], partial: Collection[str]) -> bool:
    """Whether a finding states a condition and not why it is so. One that explains another cause of its engine is that
    engine's cause. causes: those beside it; partial: codes of rules that leave open why."""
    return finding.code in partial and not any(_explains(finding, one) for one in causes)


def _is_behind(finding: Finding, own: Iterable[Finding]) -> bool:
    """Whether a finding on a node explains a cause on its engine."""
    return finding.entity.kind == "node" and any(one.id in finding.explained for one in own)


def _explains(finding: Finding, other: Finding) -> bool:
    return other.code in finding.explains and other.entity.labels == finding.entity.labels


def engines_of(document: Triage) -> list[KnownEngine]:
    """The engines that a document lists. Their places are those that its findings name."""
    places: dict[str, dict[str, str]] = {}
    for finding in _findings(document):
        if finding.entity.kind == "engine":
            places.setdefault(finding.entity.labels.get("engine", ""), finding.entity.labels)
    listed = [one["engine"] for one in document.coverage.engines]
    return [known_engine({**places.get(engine, {}), "engine": engine}) for engine in listed]


def _findings(document: Triage) -> Iterator[Finding]:
    yield from document.causes
    yield from document.telemetry
    yield from document.symptoms
    yield from document.notes
