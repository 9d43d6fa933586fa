"""The triage document: ranked causes, the symptoms they explain, and whether the system is healthy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kvitals.diagnoser.entities import entity_titles
from kvitals.diagnoser.evaluator import SEVERAL_PROCESSES, TRAFFIC, UNREADABLE, Judge
from kvitals.diagnoser.findings import Findings, Mute
from kvitals.diagnoser.judgement import Judgement, harmless, is_halt, seconds
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.text import clock_text, last_true_text, lower_title, render
from kvitals.diagnoser.undecided import MAX_NAMES, is_too_short, just_restarted, unknown_load, why_undecided
from kvitals.diagnoser.unusable import impossible, sentence
from kvitals.rules.finding import (
    Coverage,
    DocumentSource,
    DocumentWindow,
    Finding,
    MissingData,
    RuledOut,
    SloInForce,
    Triage,
    reached_from,
)
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import SCOPES
from kvitals.rules.origins import origins

MAX_OF_A_RULE = 20
"""Entities of which one rule's finding is told in full: all that it could not tell, its evidence, its levers."""
MAX_UNKNOWN = 1000
"""Unknown findings of a document, as many of each rule: of 250 engines they were 5.6 MB."""

TTFT_OBJECTIVE = "LAT01"
"""The rule of the objective for first tokens."""

UNREAD = (UNREADABLE, SEVERAL_PROCESSES)
"""The rules of pages from which nothing is known of their engine."""

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
    core_first = sorted((j for j in judgements if j.outcome == "unknown"), key=lambda j: not j.rule.core)
    unknown = [finding for few in _listed_unknown(core_first) for finding in findings.of_rule(few, len(few))]
    true = _fired(findings, judgements)
    muted = [_muted(f, mutes, span.at) for f in true if _mute(f, mutes, span.at)]
    open_ = [f for f in true if not _mute(f, mutes, span.at)]
    ordered = _ordered(open_, judge.knowledge)
    healthy = is_healthy(judge, judgements, open_, span)
    return Triage(
        source=source,
        window=DocumentWindow(span.at - span.watched, span.at, round(span.watched, 3), span.cold),
        slo=list(slo),
        healthy=healthy,
        verdict=_answer(judge, judgements, span, healthy, ordered),
        causes=ordered.causes,
        symptoms=ordered.symptoms,
        telemetry=ordered.telemetry,
        notes=ordered.notes,
        ruled_out=_ruled_out(ordered.symptoms),
        unknown=unknown,
        muted=muted,
        coverage=_coverage(judge, judgements, span, len(unknown), ordered, len(muted)),
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
    return _begun(judge, judgements, map(findings.outline, _best(findings, judgements)), mutes, span).verdict


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

    return _begun(judge, judgements, map(told, _best(findings, judgements)), mutes, span)


def _begun(
    judge: Judge, judgements: Sequence[Judgement], true: Iterable[Finding], mutes: Sequence[Mute], span: EvaluationSpan
) -> Brief:
    """The document's beginning, of what is true."""
    open_ = [f for f in true if not _mute(f, mutes, span.at)]
    healthy = is_healthy(judge, judgements, open_, span)
    return Brief(healthy, _answer(judge, judgements, span, healthy, _ordered(open_, judge.knowledge)), open_)


@dataclass(frozen=True)
class FindingOrder:
    """Open findings as a document lists them, each list in its order.

    causes: those that ask for something, and informational ones that explain an open symptom which does. notes: notes,
    the informational causes that explain no such symptom, and what has ended and `keep` holds open. Nothing of that is
    felt now.
    """

    causes: list[Finding]
    symptoms: list[Finding]
    telemetry: list[Finding]
    notes: list[Finding]
    faults: frozenset[str]  # ids of `pages_by_themselves`

    @property
    def worst(self) -> list[Finding]:
        """As the function of that name."""
        return _worst(self.symptoms)

    def is_answer(self, cause: Finding) -> bool:
        """Whether a cause explains one of the worst open symptoms, over other open causes or directly, or there is none
        that is worse than the cause itself."""
        worst = [s.id for s in self.worst]
        return not worst or not reached_from(cause, self.causes).isdisjoint(worst) or cause.id in self.faults


def _ordered(open_: Sequence[Finding], knowledge: Knowledge) -> FindingOrder:
    """What has ended is noted, but for causes of a symptom that is open and began before they ended: the window of a
    symptom holds what was before, too."""
    symptoms = [f for f in open_ if f.kind == "symptom" and not f.ended]
    felt = {s.id for s in symptoms if _WEIGHT[s.severity] > 0}
    every = [f for f in open_ if f.kind == "cause"]
    idle = [c for c in every if not _WEIGHT[c.severity] or c.ended]
    noted = {c.id for c in idle if reached_from(c, every).isdisjoint(felt)}
    noted |= {f.id for f in open_ if f.kind == "symptom" and f.ended}
    told = [f for f in open_ if f.id not in noted]
    faults = pages_by_themselves([f for f in told if f.kind == "cause"], knowledge)
    halts = {c.id for c in every if c.code in knowledge.rules and is_halt(knowledge.rules[c.code])}
    return FindingOrder(
        rank([f for f in told if f.kind == "cause"], told, faults, halts),
        sorted(symptoms, key=lambda f: (-_WEIGHT[f.severity], f.code)),
        [f for f in told if f.kind == "telemetry"],
        [f for f in open_ if f.kind == "note" or f.id in noted],
        faults,
    )


def _worst(symptoms: Sequence[Finding]) -> list[Finding]:
    """The symptoms of the highest severity; empty where none asks for anything."""
    weight = max((_WEIGHT[s.severity] for s in symptoms), default=0)
    return [s for s in symptoms if weight and _WEIGHT[s.severity] == weight]


def is_unread(finding: Finding) -> bool:
    """Whether a finding states that nothing is known of its entity: its page cannot be read, or is of several."""
    return finding.code in UNREAD


def pages_by_themselves(causes: Sequence[Finding], knowledge: Knowledge) -> frozenset[str]:
    """The ids of causes that are the trouble itself: a page that holds now and that no open symptom shows, as of an
    engine that makes no progress. A limit that is reached, such as a full KV cache, harms by its symptoms alone."""
    rules = knowledge.rules
    limits = {code for code, rule in rules.items() if set(rule.binds) - {"fault"}}
    pages = (c for c in causes if c.severity == "page" and not c.ended and not c.explained)
    return frozenset(c.id for c in pages if c.code not in limits)


def rank(
    causes: Sequence[Finding],
    fired: Sequence[Finding],
    faults: Collection[str] = frozenset(),
    halts: Collection[str] = frozenset(),
) -> list[Finding]:
    """Most likely cause first. faults: `pages_by_themselves`. halts: the ids of causes that state that an engine did no
    work.

    One that has ended comes after those that are true, unless it alone explains the worst symptom: the window of a
    symptom holds what was before, too. A halt that has ended and explains the worst symptom ranks as if it went on: its
    requests still come late. A cause that explains one of the worst open symptoms, by way of other causes included,
    comes before one that does not: nobody is helped by a true cause of something else. The faults are no less than
    these. One that is for information comes after those that ask for something, even where it explains them: that
    prompts share nothing is no answer to why their prefill is in the way of others. A cause that another one explains
    comes after all that none explains. Then: its own severity, the weight of the open symptoms that it explains and
    that ask for something (one of a pool explains those of many engines), how many findings it explains, its
    confidence; the code settles the rest, so that equal evidence always gives the same order. The same cause on several
    entities stands together where it is strongest, in the order of their names: which engine of like ones has one
    symptom more changes from one look to the next. Engines whose page cannot be read any more come last there: what is
    known of them is old, and a lever on them helps nobody.
    """
    severity = {f.id: _WEIGHT[f.severity] for f in fired}
    worst = {s.id for s in _worst([f for f in fired if f.kind == "symptom"])}
    first = {c.code for c in causes if not reached_from(c, causes).isdisjoint(worst) or c.id in faults}
    beside = {c.code for c in causes} - first
    asking = {cause.code for cause in causes if _WEIGHT[cause.severity]}
    ended = {c.id for c in causes if c.ended and (c.id not in halts or c.code in beside)}
    explained_now = any(c.id not in ended and c.code not in beside for c in causes)

    def group(cause: Finding) -> tuple[bool, bool, bool, bool, str]:
        over = cause.id in ended and (explained_now or cause.code in beside)
        weight = _WEIGHT[cause.severity]
        under = asking.intersection(cause.explained_by) if weight else cause.explained_by
        return (over, bool(worst) and cause.code in beside, not weight, bool(under), cause.code)

    def strength(cause: Finding) -> tuple[int, float, int, float]:
        felt = [weight for id_ in cause.explained if (weight := severity.get(id_, 0))]
        return (_WEIGHT[cause.severity], sum(1 + weight for weight in felt), len(cause.explained), cause.confidence)

    strongest: dict[tuple[bool, bool, bool, bool, str], tuple[int, float, int, float]] = {}
    for cause in causes:
        strongest[group(cause)] = max(strongest.get(group(cause), (0, 0.0, 0, 0.0)), strength(cause))

    unread = [f.entity.labels for f in fired if is_unread(f)]

    def key(cause: Finding) -> tuple[bool, bool, bool, bool, int, float, int, float, str, bool, str]:
        over, of_less, for_information, under, code = group(cause)
        weight, explained, every, confidence = strongest[group(cause)]
        return (
            over,
            of_less,
            for_information,
            under,
            -weight,
            -explained,
            -every,
            -confidence,
            code,
            cause.entity.labels in unread,
            cause.entity.title,
        )

    return sorted(causes, key=key)


def is_healthy(
    judge: Judge, judgements: Sequence[Judgement], open_: Sequence[Finding], span: EvaluationSpan
) -> bool | None:
    """docs/decisions/0004: False, True, or None when it could not be told."""
    if any(f.kind != "note" and _WEIGHT[f.severity] > 0 and not f.ended for f in open_):
        return False
    core = [j for j in judgements if j.rule.core]
    if judge.crashed or not core or pending_judgements(judgements) or is_too_short(span):
        return None
    if just_restarted(judge, core, span):
        return None
    decided = all(j.outcome in ("clear", "n/a", "fired") for j in core)
    return True if decided and not unknown_load(judge, core, span) else None


def pending_judgements(judgements: Sequence[Judgement]) -> list[Judgement]:
    """What would be trouble, is true, and was not watched for long enough to count, or is page-worthy and a symptom,
    lost telemetry or a fault that is not true for long enough; the gravest first."""
    early = [j for j in judgements if j.is_pending and j.rule.kind != "note" and _WEIGHT[j.rule.severity] > 0]
    early += [j for j in judgements if j.is_new_alarm and not j.is_pending]
    early = [j for j in early if not harmless(j, judgements)]
    return sorted(early, key=lambda j: (-_WEIGHT[j.rule.severity], j.rule.code, str(j.entity)))


def in_time(judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan) -> str:
    """How many first tokens kept their objective, or that there were no requests, in words; empty unless each engine
    with traffic keeps it for sure."""
    known = judge.signals.known
    if known and (loads := known[TRAFFIC].values.values()) and not any(loads):
        watched = min(judge.signals.span_of(entity, span).watched for entity in known[TRAFFIC].values)
        return f"no requests in {render(watched, 'seconds')}"
    if not known:
        return ""
    judged = [j for j in judgements if j.rule.code == TTFT_OBJECTIVE and j.outcome != "n/a"]
    if any(j.outcome != "clear" for j in judged):
        return _quiet_text(judge, span)
    kept = [j.entity for j in judged]
    by_program: dict[str, float] = {}
    for entity in kept:
        program = judge.info(entity, span.at).get("kind", "")
        by_program[program] = by_program.get(program, 0.0) + known["ttft_requests"].values.get(entity, 0.0)
    requests = max(by_program.values(), default=0.0)  # a frontend counts the requests of its workers once more
    if not math.isfinite(requests) or not (seen := round(requests)):
        return ""
    objective = known["slo_ttft_seconds"].values

    def is_below(name: str) -> bool:
        values = known[name].values if name in known else {}
        return all(values.get(entity, math.inf) <= objective.get(entity, 0.0) for entity in kept)

    every = is_below("ttft_bound_seconds")
    if not every and not is_below("ttft_p99_at_most"):  # a percentile inside the bucket of the objective proves nothing
        return ""
    share = f"{seen:,} of {seen:,}" if every else f"at least 99 % of {seen:,}"
    watched = max(judge.signals.span_of(entity, span).watched for entity in kept)
    return f"{share} first tokens in time in {render(watched, 'seconds')}"


def _quiet_text(judge: Judge, span: EvaluationSpan) -> str:
    """Since when no engine has had requests; empty where one has."""
    since = [judge.quiet(span).get(("engine", entity)) for entity in judge.signals.known[TRAFFIC].values]
    last = [moment for moment in since if moment is not None]
    return f"no requests since {clock_text(max(last))}" if last and len(last) == len(since) else ""


def _over(cause: Finding) -> str:
    """When a cause that has ended was last true; empty of others."""
    return f" ({last_true_text(cause.last_true)})" if cause.last_true is not None and cause.ended else ""


def verdict(
    healthy: bool | None,
    ordered: FindingOrder,
    judgements: Sequence[Judgement],
    measured: str = "",
    undecided: str = "",
    figures: str = "",
) -> str:
    """The whole answer in one or two sentences. `measured`: what `in_time` has found; `undecided`: `why_undecided`;
    `figures`: of what is the first to count if it stays true."""
    causes, telemetry = ordered.causes, ordered.telemetry
    down = [f for f in telemetry if is_unread(f)]
    unread = f"{down[0].title} ({', '.join(f.entity.title for f in down)})." if down else _just_lost(judgements)
    if causes and ordered.is_answer(causes[0]):
        # Of an engine that answers nothing, the first tokens that were in time are those before.
        is_fault = causes[0].id in ordered.faults
        kept = f", with {measured}" if measured and not ordered.worst and not is_fault else ""
        return f"{unread} {causes[0].title}{_over(causes[0])}{kept}.".lstrip()
    if down or (unread and ordered.worst):
        felt = f" {ordered.worst[0].title}." if ordered.worst else ""
        return f"{unread}{felt}"
    if ordered.worst:
        is_true = "is" if causes and not _over(causes[0]) else "was"
        said = f"“{causes[0].title}” {is_true} true but does not explain this symptom" if causes else ""
        beside = said or "no known cause fired"
        kept = f", with {measured}" if measured else ""
        return f"Cause unknown: {lower_title(ordered.worst[0].title)}{kept}, and {beside}."
    if telemetry:
        return f"{telemetry[0].title}."
    core = [j for j in judgements if j.rule.core]
    if early := pending_judgements(judgements):
        soon = early[0]
        lasting = f"“{soon.title}” is true, and counts if it stays so for {render(seconds(soon.needed), 'seconds')}."
        return f"Too early to judge: {lasting} {figures}".rstrip()
    if healthy:
        return f"No trouble found: {measured}{', ' * bool(measured)}{len(core)} core checks clear or not applicable."
    if not core:
        return "Unknown: no engine was seen."
    unknown = [j for j in core if j.outcome == "unknown"]
    if unknown:
        first = unknown[0].rule
        if undecided:
            return f"Unknown: {len(unknown)} of {len(core)} core checks could not be decided. {undecided}"
        return f"Unknown: {len(unknown)} of {len(core)} core checks could not be decided; the first is “{first.title}”."
    return f"Unknown: {undecided}" if undecided else "Unknown: a rule failed."


def _just_lost(judgements: Sequence[Judgement]) -> str:
    """Which engines cannot be read, though not for long enough to count; empty where all can."""
    lost = [j for j in judgements if j.rule.code == UNREADABLE and j.early is not None]
    titles = entity_titles("engine", dict.fromkeys(j.entity for j in judgements if j.rule.scope == "engine"))
    return f"{lost[0].title} ({', '.join(titles[j.entity] for j in lost)})." if lost else ""


def engine_verdict(
    judge: Judge, judgements: Sequence[Judgement], open_: Sequence[Finding], span: EvaluationSpan
) -> tuple[bool | None, str]:
    """Whether one engine is healthy and its verdict, by the rules of the whole document.

    A cause of the engine's own comes before those of its node or pool, which the document's verdict names: the verdicts
    of engines tell one from another. judgements: of this engine. open_: the findings about it, in the document's order.
    """
    healthy = is_healthy(judge, judgements, open_, span)
    own = _ordered([f for f in open_ if f.entity.kind == "engine"], judge.knowledge)
    if not own.causes or not own.is_answer(own.causes[0]):
        own = _ordered(open_, judge.knowledge)
    return healthy, _answer(judge, judgements, span, healthy, own)


def _answer(
    judge: Judge,
    judgements: Sequence[Judgement],
    span: EvaluationSpan,
    healthy: bool | None,
    ordered: FindingOrder,
) -> str:
    """The verdict, with what was measured and what is not known."""
    measured = in_time(judge, judgements, span)
    undecided = why_undecided(judge, judgements, span) if healthy is None else ""
    early = pending_judgements(judgements) if healthy is None else []
    figures = Findings(judge, judgements, span).figures(early[0]) if early else ""
    return verdict(healthy, ordered, judgements, measured, undecided, figures)


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


def _listed_unknown(unknown: Sequence[Judgement]) -> list[list[Judgement]]:
    """The unknown judgements that the document lists, by rule."""
    few = _by_rule(unknown, MAX_OF_A_RULE)
    each = max(MAX_UNKNOWN // max(len(few), 1), 1)
    return [several[:each] for several in few]


def _in_order(fired: Sequence[Judgement], findings: Findings) -> list[list[Judgement]]:
    """The judgements of each rule, the first cause before the others: it has the choice of levers."""
    outlines = [findings.outline(judgement) for judgement in fired]
    ordered = _ordered(outlines, findings.knowledge)
    place = {f.id: i for i, f in enumerate((*ordered.causes, *ordered.symptoms, *ordered.telemetry))}
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


def _coverage(
    judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan, listed: int, open_: FindingOrder, muted: int
) -> Coverage:
    """listed: unknown findings in the document; open_: what is true and open; muted: how many are true and muted."""
    counts = Counter(j.outcome for j in judgements)
    fired = len(open_.causes) + len(open_.symptoms) + len(open_.telemetry)
    engines = [
        {"engine": e.get("engine", ""), **{k: v for k, v in judge.info(e, span.at).items() if k in _SHOWN}}
        for e in judge.entities("engine", span.at)
    ]
    return Coverage(
        rules=len(judge.knowledge.rules),
        fired=fired,
        noted=len(open_.notes),
        covered=counts["fired"] - fired - len(open_.notes) - muted,
        muted=muted,
        clear=counts["clear"],
        not_applicable=counts["n/a"],
        unknown=counts["unknown"],
        core_unknown=sum(1 for j in judgements if j.outcome == "unknown" and j.rule.core),
        engines=engines,
        crashed=dict(judge.crashed),
        unknown_not_listed=counts["unknown"] - listed,
        warnings=_impossible(judge, span),
    )


def _impossible(judge: Judge, span: EvaluationSpan) -> list[str]:
    """Which engines report values that cannot be true, whatever reads them; at most one sentence."""
    found = impossible(judge.signals.unusable(span))
    names = list(dict.fromkeys(judge.title("engine", labels.keep(SCOPES["engine"]), span.at) for labels in found))
    if not names:
        return []
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    who = f"{', '.join(names[:MAX_NAMES])}{more} {'reports' if len(names) == 1 else 'report'}"
    return [sentence(found, who=who)]


_SHOWN = ("system", "version", "model", "role")
