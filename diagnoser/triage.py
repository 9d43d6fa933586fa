"""The triage document: ranked causes, the symptoms they explain, and whether the system is healthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kvitals.diagnoser.evaluator import Judge, Judgement
from kvitals.diagnoser.findings import Findings, Mute
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.text import lower_title
from kvitals.rules.finding import (
    Coverage,
    DocumentSource,
    DocumentWindow,
    Finding,
    MissingData,
    RuledOut,
    SloInForce,
    Triage,
)
from kvitals.rules.origins import origins

MAX_OF_A_RULE = 20
"""Entities of which one rule's finding is told in full: all that it could not tell, its evidence, its levers."""

_WEIGHT = {"page": 4, "ticket": 2, "info": 0}


def triage(
    judge: Judge,
    judgements: Sequence[Judgement],
    span: EvaluationSpan,
    source: DocumentSource,
    slo: Sequence[SloInForce] = (),
    mutes: Sequence[Mute] = (),
) -> Triage:
    """Rank what was judged at one moment into the answer that people and pipelines read."""
    findings = Findings(judge, judgements, span)
    untold = _by_rule([j for j in judgements if j.outcome == "unknown"], MAX_OF_A_RULE)
    unknown = [finding for few in untold for finding in findings.of_rule(few, len(few))]
    true = _fired(findings, judgements)
    muted = [_muted(f, mutes, span.at) for f in true if _mute(f, mutes, span.at)]
    open_ = [f for f in true if not _mute(f, mutes, span.at)]
    causes, symptoms, telemetry = _sorted(open_)
    healthy = is_healthy(judge, judgements, open_)
    return Triage(
        source=source,
        window=DocumentWindow(span.start, span.at, round(span.fast, 3), span.cold),
        slo=list(slo),
        healthy=healthy,
        verdict=verdict(healthy, causes, symptoms, telemetry, judgements),
        causes=causes,
        symptoms=symptoms,
        telemetry=telemetry,
        notes=[f for f in open_ if f.kind == "note"],
        ruled_out=_ruled_out(symptoms),
        unknown=unknown,
        muted=muted,
        coverage=_coverage(judge, judgements, span, len(unknown)),
        lacking=_lacking(unknown),
    )


def true_findings(
    judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan, known: Container[str] = ()
) -> dict[str, Finding | None]:
    """The findings of the document that are true, muted ones included, by episode, for whoever does not ask about the
    others; None of those that are `known`."""
    findings = Findings(judge, judgements, span)
    found: dict[str, Finding | None] = {}
    for all_ in _true(findings, judgements):
        found |= findings.new_of_rule(all_, MAX_OF_A_RULE, known)
    return found


def _fired(findings: Findings, judgements: Sequence[Judgement]) -> list[Finding]:
    return [f for all_ in _true(findings, judgements) for f in findings.of_rule(all_, MAX_OF_A_RULE)]


def _true(findings: Findings, judgements: Sequence[Judgement]) -> list[list[Judgement]]:
    """What is true and said best, by rule."""
    return _in_order(_best(findings, judgements), findings)


def _best(findings: Findings, judgements: Sequence[Judgement]) -> list[Judgement]:
    return [j for j in judgements if j.outcome == "fired" and not findings.superseded(j)]


def headline(judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan, mutes: Sequence[Mute] = ()) -> str:
    """The verdict of the document alone, for whoever judges often and is rarely asked."""
    findings = Findings(judge, judgements, span)
    return _begun(judge, judgements, map(findings.outline, _best(findings, judgements)), mutes, span.at).verdict


@dataclass(frozen=True)
class Brief:
    """What a document says first: whether all is well, the verdict, and what is open, without evidence and levers."""

    healthy: bool | None
    verdict: str
    open: Sequence[Finding]


def brief(
    judge: Judge,
    judgements: Sequence[Judgement],
    span: EvaluationSpan,
    mutes: Sequence[Mute] = (),
    before: Sequence[Finding] = (),
) -> Brief:
    """The document's beginning, for whoever looks at many moments and at what is open in them alone. `before`: what was
    open at the moment before; of what still is, the conclusion stays that of when it began."""
    findings = Findings(judge, judgements, span)
    concluded = {finding.id: finding.conclusion for finding in before}

    def told(judgement: Judgement) -> Finding:
        outline = findings.outline(judgement)
        if outline.id not in concluded:
            return findings.build(judgement, proven=False)
        return msgspec.structs.replace(outline, conclusion=concluded[outline.id])

    return _begun(judge, judgements, map(told, _best(findings, judgements)), mutes, span.at)


def _begun(
    judge: Judge, judgements: Sequence[Judgement], true: Iterable[Finding], mutes: Sequence[Mute], at: float
) -> Brief:
    """The document's beginning, of what is true."""
    open_ = [f for f in true if not _mute(f, mutes, at)]
    healthy = is_healthy(judge, judgements, open_)
    return Brief(healthy, verdict(healthy, *_sorted(open_), judgements), open_)


def _sorted(open_: Sequence[Finding]) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Causes, symptoms and what is wrong with the telemetry, each in order."""
    causes = rank([f for f in open_ if f.kind == "cause"], open_)
    symptoms = sorted((f for f in open_ if f.kind == "symptom"), key=lambda f: (-_WEIGHT[f.severity], f.code))
    return causes, symptoms, [f for f in open_ if f.kind == "telemetry"]


def rank(causes: Sequence[Finding], fired: Sequence[Finding]) -> list[Finding]:
    """Most likely cause first.

    One that is for information comes after those that ask for something, even where it explains them: that prompts
    share nothing is no answer to why their prefill is in the way of others. A cause that another one explains comes
    after all that none explains. Then: the weight of the open symptoms that it explains, its own severity, its
    confidence; the code settles the rest, so that equal evidence always gives the same order. The same cause on several
    entities stands together where it is strongest, in the order of their names: which engine of like ones has one
    symptom more changes from one look to the next.
    """
    severity = {f.id: _WEIGHT[f.severity] for f in fired}
    asking = {cause.code for cause in causes if _WEIGHT[cause.severity]}

    def group(cause: Finding) -> tuple[bool, bool, str]:
        weight = _WEIGHT[cause.severity]
        under = asking.intersection(cause.explained_by) if weight else cause.explained_by
        return (not weight, bool(under), cause.code)

    def strength(cause: Finding) -> tuple[float, int, float]:
        explained = sum(1 + severity.get(id_, 0) for id_ in cause.explained)
        return (explained, _WEIGHT[cause.severity], cause.confidence)

    strongest: dict[tuple[bool, bool, str], tuple[float, int, float]] = {}
    for cause in causes:
        strongest[group(cause)] = max(strongest.get(group(cause), (0.0, 0, 0.0)), strength(cause))

    def key(cause: Finding) -> tuple[bool, bool, float, int, float, str, str]:
        for_information, under, code = group(cause)
        explained, weight, confidence = strongest[group(cause)]
        return (for_information, under, -explained, -weight, -confidence, code, cause.entity.title)

    return sorted(causes, key=key)


def is_healthy(judge: Judge, judgements: Sequence[Judgement], open_: Sequence[Finding]) -> bool | None:
    """docs/decisions/0004: False, True, or None when it could not be told."""
    if any(f.kind != "note" and _WEIGHT[f.severity] > 0 for f in open_):
        return False
    core = [j for j in judgements if j.rule.core]
    if judge.crashed or not core or pending_judgements(judgements):
        return None
    return True if all(j.outcome in ("clear", "n/a", "fired") for j in core) else None


def pending_judgements(judgements: Sequence[Judgement]) -> list[Judgement]:
    """What would be trouble, is true, and was not watched for long enough to count; the gravest first."""
    early = [j for j in judgements if j.is_pending and j.rule.kind != "note" and _WEIGHT[j.rule.severity] > 0]
    return sorted(early, key=lambda j: (-_WEIGHT[j.rule.severity], j.rule.code, str(j.entity)))


def verdict(
    healthy: bool | None,
    causes: Sequence[Finding],
    symptoms: Sequence[Finding],
    telemetry: Sequence[Finding],
    judgements: Sequence[Judgement],
) -> str:
    """The whole answer in one sentence."""
    down = [f for f in telemetry if f.severity == "page"]
    unread = f"{down[0].title} ({', '.join(f.entity.title for f in down)})." if down else ""
    if causes:
        return f"{causes[0].title}. {unread}".rstrip()
    if down:
        return unread
    if any(_WEIGHT[s.severity] > 0 for s in symptoms):
        return f"Cause unknown: {lower_title(symptoms[0].title)}, and no known cause fired."
    if telemetry:
        return f"{telemetry[0].title}."
    core = [j for j in judgements if j.rule.core]
    if early := pending_judgements(judgements):
        return f"Too early to judge: “{early[0].rule.title}” is true, and counts after {early[0].rule.for_}."
    if healthy:
        return f"No trouble found: {len(core)} core checks clear or not applicable."
    if not core:
        return "Could not tell: no engine was seen."
    unknown = [j for j in core if j.outcome == "unknown"]
    if unknown:
        first = unknown[0].rule.title
        return f"Could not tell: {len(unknown)} of {len(core)} core checks lack data, first “{first}”."
    return "Could not tell: a rule failed."


def _mute(finding: Finding, mutes: Sequence[Mute], at: float) -> Mute | None:
    return next((m for m in mutes if m.covers(finding, at)), None)


def _muted(finding: Finding, mutes: Sequence[Mute], at: float) -> Finding:
    mute = _mute(finding, mutes, at)
    return msgspec.structs.replace(finding, muted=mute.reason if mute else "")


def _ruled_out(symptoms: Sequence[Finding]) -> list[RuledOut]:
    """Each ruled-out cause once; first those that could have explained most of what was seen."""
    found = [r for s in symptoms for r in s.ruled_out]
    could = Counter((r.code, r.entity) for r in found)
    each = {(r.code, r.entity): r for r in found}.values()
    return sorted(each, key=lambda r: -could[r.code, r.entity])


def _by_rule(judgements: Iterable[Judgement], most: int | None = None) -> list[list[Judgement]]:
    """The judgements of each rule, at most so many: that a thousand engines lack the same is told by a few."""
    found: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        found.setdefault(judgement.rule.code, []).append(judgement)
    return [several[:most] for several in found.values()]


def _in_order(fired: Sequence[Judgement], findings: Findings) -> list[list[Judgement]]:
    """The judgements of each rule, the first cause before the others: it has the choice of levers."""
    outlines = [findings.outline(judgement) for judgement in fired]
    causes, symptoms, telemetry = _sorted(outlines)
    place = {finding.id: i for i, finding in enumerate((*causes, *symptoms, *telemetry))}
    order = sorted(range(len(fired)), key=lambda i: place.get(outlines[i].id, len(place)))
    return _by_rule(fired[i] for i in order)


def _lacking(unknown: Sequence[Finding]) -> list[MissingData]:
    """What would have told them: each rule by the first thing that it lacks, most rules first."""
    brings = {origin.title: origin.brings for origin in origins().values()}
    codes: dict[str, set[str]] = {}
    for finding in unknown:
        if finding.unknowns and finding.unknowns[0].lacks in brings:
            codes.setdefault(finding.unknowns[0].lacks, set()).add(finding.code)
    found = [MissingData(what, brings[what], sorted(of_it)) for what, of_it in codes.items()]
    return sorted(found, key=lambda lacking: (-len(lacking.codes), lacking.what))


def _coverage(judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan, listed: int) -> Coverage:
    counts = Counter(j.outcome for j in judgements)
    engines = [
        {"engine": e.get("engine", ""), **{k: v for k, v in judge.info(e, span.at).items() if k in _SHOWN}}
        for e in judge.entities("engine", span.at)
    ]
    return Coverage(
        rules=len(judge.knowledge.rules),
        fired=counts["fired"],
        clear=counts["clear"],
        not_applicable=counts["n/a"],
        unknown=counts["unknown"],
        engines=engines,
        crashed=dict(judge.crashed),
        unknown_not_listed=counts["unknown"] - listed,
    )


_SHOWN = ("system", "version", "model", "role")
