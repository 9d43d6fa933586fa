"""Which finding of a triage document an alert is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvitals.app.notify.incoming import Alert
from kvitals.rules.finding import Finding, Triage

_IDENTITY = ("pool", "node", "engine")


@dataclass(frozen=True)
class DiagnosisRequest:
    """What a diagnosis is wanted of. Times are seconds since the epoch."""

    entity: Mapping[str, str]
    codes: frozenset[str]  # rules whose alerts fire
    symptomatic: bool  # whether any cause on the entity is of interest, and not only one that explains the codes
    began: float
    received: float


def diagnosis_request(alerts: Iterable[Alert], entity: Mapping[str, str], received: float) -> DiagnosisRequest:
    several = list(alerts)
    codes = frozenset(one.code for one in several if one.code)
    symptomatic = any(not one.code or one.labels.get("kind") == "symptom" for one in several)
    return DiagnosisRequest(
        entity, codes, symptomatic, min((one.began(received) for one in several), default=received), received
    )


def lead(document: Triage, about: DiagnosisRequest) -> Finding | None:
    """The first finding on the entity that is or explains what is told of; else, of a symptom, the first cause there.

    Causes stand in the document's order, so what explains most comes first.
    """
    near = [finding for finding in _told(document) if concerns(finding, about)]
    related = (finding for finding in near if _relates(finding, about.codes))
    causes = (finding for finding in near if about.symptomatic and finding.kind in ("cause", "symptom"))
    return next(related, None) or next(causes, None)


def concerns(finding: Finding, about: DiagnosisRequest) -> bool:
    """Whether a finding is of an alert's entity, of what that stands on, or of something in it."""
    mine, entity = finding.entity.labels, about.entity
    if any(entity.get(name) and value and entity[name] != value for name, value in mine.items()):
        return False
    if instance := entity.get("instance"):
        engine = mine.get("engine")
        return engine is None or engine == instance or engine.startswith(f"{instance}/")
    wanted = [name for name in _IDENTITY if entity.get(name)]
    if not wanted or any(name in mine for name in wanted) or finding.entity.kind == "fleet":
        return True
    return _relates(finding, about.codes)  # of an engine whose pool the finding does not tell


def _relates(finding: Finding, codes: frozenset[str]) -> bool:
    return finding.code in codes or not codes.isdisjoint(finding.explains)


def _told(document: Triage) -> Iterator[Finding]:
    yield from document.causes
    yield from document.telemetry
    yield from document.symptoms
    yield from document.notes
