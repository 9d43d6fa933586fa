"""The typed documents in short: what an assistant needs of a triage, a finding, an inspection, a review.

Each has a limit in characters. A builder is asked for fewer and shorter parts until the JSON fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from kvitals.app.comparison import ComparedSignal, ComparedSource
from kvitals.app.errors import UsageError
from kvitals.diagnoser.replay_worth import Worth
from kvitals.diagnoser.review.result import Review
from kvitals.diagnoser.text import render
from kvitals.kvcache.whatif import ReplayRow
from kvitals.rules.finding import Evidence, EvidenceLine, Finding, LeverAdvice, Triage, Unknown
from kvitals.rules.inspection import InspectedTarget, Inspection
from kvitals.series.json_text import encode_json
from kvitals.ui.mcp.quoting import NameQuoter, bounded_name, bounded_names

MAX_CHARACTERS = 1700
"""Of one structured answer. With its text, three answers stay below 2,000 tokens at three characters a token."""
MAX_TEXT = 280
"""Of the sentence beside it, without the notice about names."""


@dataclass(frozen=True)
class Sizes:
    """How much a document shows: items of a list, characters of a sentence."""

    items: int
    characters: int


_SIZES = [Sizes(items, characters) for items, characters in ((5, 260), (4, 200), (3, 160), (2, 120), (1, 80))]
_SENTENCES = [Sizes(items, characters) for items, characters in ((3, 300), (2, 300), (2, 220), (1, 300), (1, 120))]
"""For documents whose sentences say more than further items."""

Shortened = TypeVar("Shortened", bound=Struct)


class NotChecked(Struct, frozen=True, omit_defaults=True):
    """What could not be checked. rules: how many rules or judgements it concerns."""

    what: str
    why: str
    enable: str = ""
    rules: int = 1


class ShortFinding(Struct, frozen=True, omit_defaults=True):
    id: str
    code: str
    title: str
    severity: str
    confidence: str
    names: dict[str, str]
    conclusion: str = ""
    explains: list[str] = []
    lever: str = ""


class ShortTriage(Struct, frozen=True):
    """healthy: null where missing data leaves it open. not_listed: findings that fired and are not in this answer.
    warnings: what could not be read of the source."""

    source: str
    at: str
    window_seconds: float
    healthy: bool | None
    verdict: str
    causes: list[ShortFinding]
    symptoms: list[str]
    not_listed: int
    rules_clear: int
    rules_not_checked: int
    not_checked: list[NotChecked]
    warnings: list[str] = []


class ShortLever(Struct, frozen=True, omit_defaults=True):
    lever: str
    title: str
    setting: str = ""
    restart: bool = False
    why: str = ""
    expect: list[str] = []
    risk: str = ""
    does_not_fix: str = ""


class ExplainedFinding(Struct, frozen=True):
    """One finding: its numbers, what it explains, what it ruled out, what was not checked, and its levers in order."""

    id: str
    code: str
    title: str
    outcome: str
    names: dict[str, str]
    conclusion: str
    confidence: str
    measures: list[str]
    explains: list[str]
    ruled_out: list[str]
    not_checked: list[NotChecked]
    levers: list[ShortLever]
    next_check: str


class EvidenceSeries(Struct, frozen=True):
    """least, most, last: of the values in the window; points: a few of them, oldest first."""

    names: dict[str, str]
    least: float
    most: float
    last: float
    points: list[float]


class ShortEvidence(Struct, frozen=True):
    title: str
    value: str
    query: str
    series: list[EvidenceSeries]


class FindingEvidence(Struct, frozen=True):
    id: str
    code: str
    names: dict[str, str]
    from_time: str
    to_time: str
    evidence: list[ShortEvidence]
    not_checked: list[NotChecked]


class ComparedVerdict(Struct, frozen=True):
    """warnings: what could not be read of the source."""

    name: str
    verdict: str
    causes: list[str]
    warnings: list[str] = []


class ShortComparison(Struct, frozen=True):
    """signals: `title: A -> B (B is ...)`, objectives first, then the largest differences."""

    a: ComparedVerdict
    b: ComparedVerdict
    signals: list[str]
    not_listed: int


class WhatifRow(Struct, frozen=True):
    """blocks: of one node, null for endless. prefill_saved: share of the base's prefill work, null without any."""

    routing: str
    policy: str
    nodes: int
    blocks: int | None
    hit_rate: float
    prefill_saved: float | None
    is_base: bool


class ShortWhatif(Struct, frozen=True):
    """observed: share of lookups that were seen, null where it is unknown."""

    source: str
    requests: int
    observed: float | None
    rows: list[WhatifRow]
    not_listed: int


class ShortChange(Struct, frozen=True):
    at: str
    names: dict[str, str]
    changed: list[str]
    verdict: str
    conclusion: str
    effects: list[str]
    cleared: list[str]
    appeared: list[str]


class ShortReview(Struct, frozen=True):
    """usd: null where no price is known. seen_share: of the time asked for, in which an engine was watched."""

    start: str
    end: str
    seen_share: float
    gpu_hours: float
    usd: float | None
    busy_share: float | None
    output_tokens: float
    summary: list[str]
    levers: list[str]
    not_checked: list[NotChecked]


class ShortTarget(Struct, frozen=True):
    name: str
    system: str
    version: str
    model: str
    problems: list[str]
    scores: list[str]
    enable: list[str]


class ShortInspection(Struct, frozen=True):
    """ok: false where a target has a defect, null where no target could be read."""

    ok: bool | None
    targets: list[ShortTarget]
    not_listed: int


def fit(build: Callable[[Sizes], Shortened], choices: Sequence[Sizes] = _SIZES) -> Shortened:
    """The document with as much as fits into MAX_CHARACTERS of JSON. choices: the largest sizes first."""
    document = build(choices[0])
    for sizes in choices[1:]:
        if len(encode_json(document).decode()) <= MAX_CHARACTERS:
            break
        document = build(sizes)
    return document


def utc(seconds: float) -> str:
    """A time as RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def short_triage(document: Triage, quoter: NameQuoter) -> ShortTriage:
    """The verdict, the leading causes, and what was not checked."""
    leading = [one for one in document.leading if one not in document.symptoms]  # the first is the verdict's
    engines = {one.entity.labels.get("engine") for one in document.symptoms}

    def build(sizes: Sizes) -> ShortTriage:
        causes = leading[: min(sizes.items, 3)]
        symptoms = document.symptoms[: sizes.items + 1]
        return ShortTriage(
            source=bounded_name(document.source.name),
            at=utc(document.window.end),
            window_seconds=round(document.window.seconds, 1),
            healthy=document.healthy,
            verdict=quoter.sentence(document.verdict, sizes.characters),
            causes=[_short_finding(one, quoter, sizes) for one in causes],
            symptoms=[_symptom_text(one, several=len(engines) > 1) for one in symptoms],
            not_listed=document.coverage.fired - len(causes) - len(symptoms),
            rules_clear=document.coverage.clear,
            rules_not_checked=document.coverage.unknown,
            not_checked=[
                NotChecked(one.what, "missing data", quoter.sentence(one.brings, sizes.characters // 2), len(one.codes))
                for one in document.lacking[: min(sizes.items, 3)]
            ],
            warnings=[quoter.sentence(one, sizes.characters) for one in document.coverage.warnings[: sizes.items]],
        )

    return fit(build)


def explained_finding(finding: Finding, quoter: NameQuoter) -> ExplainedFinding:
    """One finding with its levers."""

    def build(sizes: Sizes) -> ExplainedFinding:
        most, length = min(sizes.items, 3), sizes.characters
        text = finding.conclusion or finding.reason
        return ExplainedFinding(
            id=finding.id,
            code=finding.code,
            title=finding.title,
            outcome="not checked" if finding.outcome == "unknown" else finding.outcome,
            names=bounded_names(finding.entity.labels),
            conclusion=quoter.sentence(text, length),
            confidence=finding.confidence_words,
            measures=[quoter.sentence(f"{m.signal}: {m.text}", 80) for m in finding.measures[: most + 2]],
            explains=finding.explains[:6],
            ruled_out=[
                quoter.sentence(f"{one.code} {one.title}: {one.because}", length // 2)
                for one in finding.ruled_out[:most]
            ],
            not_checked=_not_checked(finding.unknowns[:most], quoter, length // 2),
            levers=[_short_lever(one, quoter, length) for one in finding.levers[:most]],
            next_check=quoter.sentence(finding.next_check, length // 2),
        )

    return fit(build, _SENTENCES)


def finding_evidence(finding: Finding, document: Triage, quoter: NameQuoter) -> FindingEvidence:
    """The series that tripped a finding, with a few points of each."""

    def build(sizes: Sizes) -> FindingEvidence:
        shown = finding.evidence[: min(sizes.items, 3)]
        return FindingEvidence(
            id=finding.id,
            code=finding.code,
            names=bounded_names(finding.entity.labels),
            from_time=utc(document.window.start),
            to_time=utc(document.window.end),
            evidence=[_short_evidence(one, quoter, sizes) for one in shown],
            not_checked=_not_checked(finding.unknowns[: min(sizes.items, 3)], quoter, sizes.characters // 2),
        )

    return fit(build)


def short_comparison(a: ComparedSource, b: ComparedSource, rows: Sequence[ComparedSignal]) -> ShortComparison:
    """Both verdicts, and the signals that differ most."""

    def build(sizes: Sizes) -> ShortComparison:
        shown = rows[: 2 * sizes.items]
        signals = [
            f"{row.title} of {row.of}: {row.a} -> {row.b}" + (f" (B is {row.how})" if row.how else "") for row in shown
        ]
        return ShortComparison(_side(a, sizes), _side(b, sizes), signals, len(rows) - len(shown))

    return fit(build)


def short_whatif(
    title: str, requests: int, observed: float | None, rows: Sequence[ReplayRow], worths: Sequence[Worth], base: int
) -> ShortWhatif:
    """The rows of a replay; base: the index of the row that the others are compared with."""

    def build(sizes: Sizes) -> ShortWhatif:
        made = [
            WhatifRow(
                row.routing,
                row.policy,
                row.nodes,
                row.capacity_blocks,
                round(row.token_hit_rate, 4),
                None if gain.prefill_saved is None else round(gain.prefill_saved, 4),
                at == base,
            )
            for at, (row, gain) in enumerate(zip(rows, worths, strict=True))
        ][: 2 * sizes.items]
        share = None if observed is None else round(observed, 4)
        return ShortWhatif(bounded_name(title), requests, share, made, len(rows) - len(made))

    return fit(build)


def short_change(document: Triage, quoter: NameQuoter) -> ShortChange:
    """The latest configuration change and its effect."""
    change = document.since_change
    if change is None:
        raise UsageError("the source reports no configuration change")

    def build(sizes: Sizes) -> ShortChange:
        length, items = sizes.characters, sizes.items
        return ShortChange(
            at=utc(change.at),
            names=bounded_names(change.entity.labels),
            changed=[quoter.sentence(one, length) for one in change.changed[:items]],
            verdict=change.verdict,
            conclusion=quoter.sentence(change.conclusion, length),
            effects=[f"{one.title}: {one.text} ({one.verdict})" for one in change.effects[: items + 1]],
            cleared=change.gone[:items],
            appeared=change.come[:items],
        )

    return fit(build)


def short_review(review: Review, quoter: NameQuoter) -> ShortReview:
    """Totals, the summary in sentences, and the levers by money."""
    total = review.total

    def build(sizes: Sizes) -> ShortReview:
        levers = [f"{one.lever}: {quoter.sentence(one.why, sizes.characters)}" for one in review.levers[: sizes.items]]
        missing = [NotChecked("chargeback", review.chargeback.missing)] if review.chargeback.missing else []
        return ShortReview(
            start=utc(review.start),
            end=utc(review.end),
            seen_share=round(review.coverage.seen_share, 4),
            gpu_hours=round(total.gpu_hours, 2),
            usd=None if total.usd is None else round(total.usd, 2),
            busy_share=None if total.busy_share is None else round(total.busy_share, 4),
            output_tokens=round(total.output_tokens),
            summary=[quoter.sentence(one, sizes.characters) for one in review.story[: sizes.items]],
            levers=levers,
            not_checked=missing,
        )

    return fit(build)


def short_inspection(inspection: Inspection, quoter: NameQuoter) -> ShortInspection:
    """Each target: defects first, then what its telemetry is enough for and the flags that enable more."""

    def build(sizes: Sizes) -> ShortInspection:
        shown = inspection.targets[: sizes.items]
        targets = [_short_target(one, quoter, sizes) for one in shown]
        return ShortInspection(inspection.ok, targets, len(inspection.targets) - len(shown))

    return fit(build)


def _side(side: ComparedSource, sizes: Sizes) -> ComparedVerdict:
    quoter, document = NameQuoter.of_document(side.document), side.document
    verdict = quoter.sentence(document.verdict, sizes.characters)
    causes = [f"{one.code} {one.title}" for one in document.leading_causes[: sizes.items]]
    warnings = [quoter.sentence(one, sizes.characters) for one in document.coverage.warnings[: sizes.items]]
    return ComparedVerdict(bounded_name(side.name), verdict, causes, warnings)


def _symptom_text(symptom: Finding, *, several: bool) -> str:
    """several: symptoms are of more than one engine, so each names its own."""
    whose = f" ({bounded_name(symptom.entity.title)})" if several else ""
    return f"{symptom.code_and_severity} {symptom.title}{whose}"


def _short_finding(finding: Finding, quoter: NameQuoter, sizes: Sizes) -> ShortFinding:
    lever = next(iter(finding.levers), None)
    return ShortFinding(
        finding.id,
        finding.code,
        finding.title,
        finding.severity,
        finding.confidence_words,
        bounded_names(finding.entity.labels, 3),
        quoter.sentence(finding.conclusion, sizes.characters),
        finding.explains[: sizes.items],
        _lever_text(lever, quoter, sizes.characters // 2) if lever is not None else "",
    )


def _lever_text(lever: LeverAdvice, quoter: NameQuoter, most: int) -> str:
    setting = f": {lever.setting.text}" if lever.setting is not None else ""
    return quoter.sentence(f"{lever.title}{setting}", most)


def _short_lever(lever: LeverAdvice, quoter: NameQuoter, most: int) -> ShortLever:
    return ShortLever(
        lever.lever,
        lever.title,
        quoter.sentence(lever.setting.text, most) if lever.setting is not None else "",
        lever.restart,
        quoter.sentence(lever.why, most // 2),
        [quoter.sentence(f"{one.title}: {one.text}", most // 2) for one in lever.predicted[:2]],
        quoter.sentence(lever.risk, most // 2),
        quoter.sentence(lever.does_not_fix, most // 2),
    )


def _not_checked(unknowns: Iterable[Unknown], quoter: NameQuoter, most: int) -> list[NotChecked]:
    return [
        NotChecked(quoter.sentence(u.what, most), quoter.sentence(u.why, most), quoter.sentence(u.remedy, most))
        for u in unknowns
    ]


def _short_evidence(shown: Evidence, quoter: NameQuoter, sizes: Sizes) -> ShortEvidence:
    lines = [_series(one, sizes) for one in shown.lines[: min(sizes.items, 2)] if one.points]
    return ShortEvidence(shown.title, shown.text, quoter.sentence(shown.query, sizes.characters), lines)


def _series(line: EvidenceLine, sizes: Sizes) -> EvidenceSeries:
    values = [float(f"{point.value:.4g}") for point in line.points]
    step = max(1, -(-len(values) // (sizes.items + 3)))
    return EvidenceSeries(bounded_names(line.labels, 3), min(values), max(values), values[-1], values[::-step][::-1])


def _short_target(target: InspectedTarget, quoter: NameQuoter, sizes: Sizes) -> ShortTarget:
    length = sizes.characters // 2
    ordered = sorted(target.problems, key=lambda one: not one.defect)
    problems = [f"{'defect: ' if one.defect else ''}{one.what}: {one.remedy}" for one in ordered]
    return ShortTarget(
        name=bounded_name(target.engine),
        system=bounded_name(target.system),
        version=bounded_name(target.version),
        model=bounded_name(target.model),
        problems=[quoter.sentence(one, length) for one in problems[: sizes.items]],
        scores=[f"{one.journey}: {one.have} of {one.of}" for one in target.scores],
        enable=[quoter.sentence(f"{one.flag}: {one.brings}", length) for one in target.switches if not one.on][
            : sizes.items
        ],
    )


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The JSON schema of one short document, whose root is the object itself."""
    (root,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    name = root["$ref"].rpartition("/")[2]
    own = components.pop(name)
    return {**own, "$defs": components} if components else own


def percent(share: float) -> str:
    """A share in per cent."""
    return render(share, "ratio")
