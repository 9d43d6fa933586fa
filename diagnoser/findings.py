"""From judgements to findings: conclusion, evidence, confidence, what explains what, what is ruled out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from kvitals.diagnoser.confidence import Weighing
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement, harmless, known_clear
from kvitals.diagnoser.levers import Levers
from kvitals.diagnoser.predictions import Predictions
from kvitals.diagnoser.questions import Questions
from kvitals.diagnoser.reasons import missing_signals
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.text import fill_known, last_true_text, lower_title, plain, render, sentences
from kvitals.rules.expressions import expression
from kvitals.rules.finding import (
    Entity,
    Evidence,
    EvidenceLine,
    Finding,
    LeverAdvice,
    Measure,
    Point,
    RuledOut,
    Unknown,
    finding_id,
)
from kvitals.rules.loader import PLACEHOLDER, SIGNAL_PREFIX, Knowledge, parameters
from kvitals.rules.model import EvidenceQuery, Quantity, Rule, Severity
from kvitals.rules.proof import proof_of
from kvitals.series.promql import Series, Vector
from kvitals.series.types import METRIC_NAME, Labels

CERTAINTY = {"high": 0.9, "medium": 0.65, "low": 0.4}
LEAST, MOST = 0.1, 0.95
"""Confidences: nothing that fired is out of the question, and nothing is certain."""
MODELLED_MOST = 0.75
"""The highest confidence in a rule that no recording of a real program fires: medium."""
MISSING_USE = 0.06
"""What a confidence loses for each signal that would raise it and is unknown: two make a high confidence medium."""
LEAVING = "It was beyond the limit, is within it now, and counts until it is clearly within."
"""What is said of a finding whose figures lie between the level at which it begins and the one at which it ends."""
EVIDENCE_POINTS = 60
SAME_SECONDS = 1.0
"""Two windows that differ by less are printed alike."""
MAX_EVIDENCE_LINES = 20
_LATENCY = frozenset({"ttft", "itl", "throughput"})
MAX_NAMED = 3
"""Names in the text of a proof."""


@dataclass(frozen=True)
class Mute:
    """A rule that the user asked not to hear of. Shown, never silent."""

    rule: str
    reason: str
    entity: Mapping[str, str] = field(default_factory=dict)  # labels; empty: every entity
    until: float | None = None

    def covers(self, finding: Finding, at: float) -> bool:
        """Whether it holds for a finding at a time."""
        if self.rule != finding.code or (self.until is not None and at >= self.until):
            return False
        return all(finding.entity.labels.get(name, "") == value for name, value in self.entity.items())


class Findings:
    """Builds the findings of one moment. What is seen of an entity is explained by causes of its own, of its node and
    of its pool (`Judge.around`); entities beside one another explain nothing of each other."""

    def __init__(self, judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan) -> None:
        self._judge = judge
        self._judgements = judgements
        self.span = span
        self._weighing = Weighing(judge, span)
        self._ask = Questions(judge, span)
        self._levers = Levers(self._ask)
        self._predictions = Predictions(self._ask)
        self._courses: dict[str, list[Series]] = {}  # query -> its course over time, of all entities
        self._outlines: dict[int, Finding] = {}  # by id of a judgement, which are all kept here
        self._explains_now: dict[int, Sequence[str]] = {}  # by id of a judgement: the codes that it explains now
        self._reasons: dict[int, str] = {}  # likewise: why it is ruled out
        self._last_true = _last_true(j for j in judgements if j.outcome == "fired")
        # What another rule says better explains nothing and is explained by nothing.
        self._fired: dict[tuple[str, Labels], list[Judgement]] = {}  # by scope and entity
        self._within: dict[tuple[str, Labels], list[Judgement]] = {}  # the same of all that the entity is made of
        for judgement in judgements:
            if judgement.outcome == "fired" and not self.superseded(judgement):
                self._fired.setdefault((judgement.rule.scope, judgement.entity), []).append(judgement)
                for place in judge.around(judgement, span.at).items():
                    self._within.setdefault(place, []).append(judgement)

    def of_rule(self, judgements: Sequence[Judgement], proven: int) -> list[Finding]:
        """The findings of one rule; evidence and levers for so many of them, the others are like these."""
        self._judge.signals.focus([judgement.entity for judgement in judgements[:proven]])
        return [self.build(j, proven=i < proven) for i, j in enumerate(judgements)]

    def new_of_rule(
        self, judgements: Sequence[Judgement], proven: int, known: Container[str]
    ) -> dict[str, Finding | None]:
        """The same by episode, and None of those that are known: these are not told again, but have their levers."""
        self._judge.signals.focus([judgement.entity for judgement in judgements[:proven]])
        found: dict[str, Finding | None] = {}
        for i, judgement in enumerate(judgements):
            episode = self.outline(judgement).episode
            if episode not in known:
                found[episode] = self.build(judgement, proven=i < proven)
                continue
            found[episode] = None
            if i < proven:
                self._levers.advise(judgement, self._value_of(judgement), self._amiss(judgement))
        return found

    def build(self, judgement: Judgement, *, proven: bool = True) -> Finding:
        """The finding of one judgement; levers and evidence only where it fired."""
        rule = judgement.rule
        fired = judgement.outcome == "fired"
        value = self._value_of(judgement)
        return msgspec.structs.replace(
            self.outline(judgement),
            conclusion=self._concluded(judgement, value) if fired else "",
            measures=self._measures(judgement),
            evidence=[self._evidence(query, judgement) for query in self._queries(judgement)] if proven else [],
            ruled_out=self.ruled_out(judgement) if fired and rule.kind == "symptom" else [],
            unknowns=self._unknowns(judgement),
            levers=self._advised(judgement, value) if fired and proven else [],
            next_check=self._next_check(rule) if fired else "",
        )

    def figures(self, judgement: Judgement) -> str:
        """The first sentence of what a rule says of an entity, also where it does not count yet."""
        return sentences(fill_known(judgement.rule.conclusion, self._value_of(judgement)))[0]

    def _concluded(self, judgement: Judgement, value: Callable[[str], str]) -> str:
        """The rule's sentences whose numbers are known and, where any one of several conditions is enough, which of
        them are true; of what is not true any more, when it last was."""
        conclusion = fill_known(judgement.rule.conclusion, value)
        if judgement.last_true is not None:
            verdict = judgement.verdict
            if all(self._figure(name, judgement) is None for name in self._judge.needs(judgement.rule)):
                unmeasured = verdict is not None and verdict.truth is None
                conclusion = "Too little data is measured now." if unmeasured else "Its figures are no longer known."
            last = last_true_text(judgement.last_true)
            return f"{conclusion} {last[:1].upper()}{last[1:]}."
        if self._judge.is_leaving(judgement):
            return f"{conclusion} {LEAVING}"
        true = self._judge.why_true(judgement)
        return f"{conclusion} Here: {true}." if true else conclusion

    def _advised(self, judgement: Judgement, value: Callable[[str], str]) -> list[LeverAdvice]:
        """The levers that can help: those without a restart first, as a reader wants them in an incident."""
        advised = self._levers.advise(judgement, value, self._amiss(judgement))
        ordered = sorted(advised, key=lambda advice: advice.restart)
        return [self._predictions.with_effects(advice, judgement) for advice in ordered]

    def outline(self, judgement: Judgement) -> Finding:
        """As much of a finding as it is ranked by. It costs little, as no query is asked."""
        found = self._outlines.get(id(judgement))
        if found is None:
            found = self._outlines[id(judgement)] = self._outline(judgement)
        return found

    def _outline(self, judgement: Judgement) -> Finding:
        rule, entity = judgement.rule, judgement.entity
        fired = judgement.outcome == "fired"
        explained = self._explained(judgement) if fired else []
        confidence, why = self._confidence(judgement, explained) if fired else (0.0, [])
        id_ = finding_id(rule.code, entity)
        return Finding(
            id=id_,
            episode=f"{id_}-{judgement.since:.0f}" if judgement.since is not None else id_,
            code=rule.code,
            name=rule.name,
            title=rule.unproven_title if self._is_unproven(judgement) else rule.title,
            kind=rule.kind,
            severity=self._severity(judgement),
            entity=self.entity(rule, entity),
            outcome=judgement.outcome,
            reason=judgement.reason,
            since=judgement.since,
            since_at_least=judgement.since_at_least,
            last_true=judgement.last_true,
            ended=judgement.is_ended(self.span.at),
            confidence=confidence,
            confidence_words=in_words(confidence) if fired else "",
            confidence_why=why,
            explains=list(dict.fromkeys(j.rule.code for j in explained)),
            explained=[finding_id(j.rule.code, j.entity) for j in explained],
            explained_by=self._explained_by(judgement) if fired else [],
            conclusion="",
            measures=[],
            evidence=[],
            ruled_out=[],
            unknowns=[],
            levers=[],
            next_check="",
            proof=proof.proof if (proof := proof_of(rule.code)) is not None else "",
        )

    @property
    def knowledge(self) -> Knowledge:
        """What is judged by."""
        return self._judge.knowledge

    def superseded(self, judgement: Judgement) -> str:
        """The code of a fired rule that takes this one's place, or the empty string. One that was over before this one
        began takes no place."""
        true, since = self._last_true.get(judgement.entity, {}), judgement.began
        return next((c for c in judgement.rule.excluded_by if true.get(c, -math.inf) >= since and c in true), "")

    def ruled_out(self, symptom: Judgement) -> list[RuledOut]:
        """The causes that could have explained a symptom and were found not to be so."""
        around = self._judge.around(symptom, self.span.at)
        found = []
        for j in [j for scope, entity in around.items() for j in self._other_causes.get((scope, entity), ())]:
            if symptom.rule.code in self._explains(j):
                if id(j) not in self._reasons:
                    clear = j.outcome == "clear"
                    self._reasons[id(j)] = self._because(j) if clear else f"covered by {self.superseded(j)}"
                found.append(self._ruled_out(j, self._reasons[id(j)]))
        return found

    def _because(self, clear: Judgement) -> str:
        """What was found not to be so, with a number: where it is a yes or no, one of the rule's evidence beside it."""
        reason = clear.reason
        if any(character.isdigit() for character in reason):
            return reason
        for query in clear.rule.evidence:
            name = query.query.strip().removeprefix(SIGNAL_PREFIX)
            signal = self._judge.knowledge.signals.get(name)
            if signal is None or signal.unit == "bool":
                continue
            if (value := self._judge.signals.known[name].values.get(clear.entity)) is not None:
                return f"{reason} ({plain(name)} is {render(value, signal.unit)})"
        return reason

    @cached_property
    def _other_causes(self) -> dict[tuple[str, Labels], list[Judgement]]:
        """Causes that are not so, or that another says better, by scope and entity."""
        found: dict[tuple[str, Labels], list[Judgement]] = {}
        for j in self._judgements:
            if j.rule.kind == "cause" and (j.outcome == "clear" or (j.outcome == "fired" and self.superseded(j))):
                found.setdefault((j.rule.scope, j.entity), []).append(j)
        return found

    def entity(self, rule: Rule, labels: Labels) -> Entity:
        """Whose a finding is."""
        return Entity(rule.scope, dict(labels), self._judge.title(rule.scope, labels, self.span.at))

    def _ruled_out(self, judgement: Judgement, because: str) -> RuledOut:
        title = self.entity(judgement.rule, judgement.entity).title
        return RuledOut(judgement.rule.code, judgement.rule.title, title, because)

    def _explained(self, cause: Judgement) -> list[Judgement]:
        """What the rule's being so explains: it speaks of that, on its entity or on what that is made of."""
        within = self._within.get((cause.rule.scope, cause.entity), ())
        return [j for code in self._explains(cause) for j in within if j.rule.code == code and self._is_open(cause, j)]

    def _explained_by(self, judgement: Judgement) -> list[str]:
        around = self._judge.around(judgement, self.span.at).items()
        fired = (j for place in around for j in self._fired.get(place, ()) if self._is_open(j, judgement))
        return sorted({j.rule.code for j in fired if judgement.rule.code in self._explains(j)})

    def _is_open(self, cause: Judgement, effect: Judgement) -> bool:
        """Whether there is a way from a cause to an effect that it speaks of: it was not over when that began, some
        symptom by which it brings that about may be there, and the effect's entity is none that it does not reach."""
        if cause.was_over(effect, self.span.fast):
            return False
        between = set(effect.rule.follows).intersection(cause.rule.explains)
        if known_clear(between, effect.entity, self._judgements):
            return False
        unless = cause.rule.explains_latency_unless
        about = effect.rule.about
        latency = effect.rule.kind == "symptom" and "hits" not in about and not _LATENCY.isdisjoint(about)
        return not (unless and latency) or self._ask.number(effect, unless) is None

    def _explains(self, cause: Judgement) -> Sequence[str]:
        """The codes that a cause explains on its entity now: all of `explains` whose condition, if any, holds."""
        rule = cause.rule
        if cause.outcome != "fired" or not (rule.explains_when or rule.explains_causes_when):
            return rule.explains
        if id(cause) not in self._explains_now:
            self._explains_now[id(cause)] = self._open_explanations(cause)
        return self._explains_now[id(cause)]

    def _open_explanations(self, cause: Judgement) -> Sequence[str]:
        """What `_explains` returns, calculated from the rule's conditions."""
        rule = cause.rule

        def holds(condition: str) -> bool:
            return not condition or self._ask.number(cause, condition) is not None

        if not holds(rule.explains_when):
            return ()
        if holds(rule.explains_causes_when):
            return rule.explains
        rules = self._judge.knowledge.rules
        causes = {code for code in rule.explains if code in rules and rules[code].kind == "cause"}
        left = self._left_to(causes, cause) if rule.leaves_symptoms else ()
        return [code for code in rule.explains if code in rules and code not in causes and code not in left]

    def _left_to(self, causes: Collection[str], cause: Judgement) -> set[str]:
        """What these causes explain on the entity of a cause that does not explain them now: they lead there, as each
        is true without it."""
        beside = self._fired.get((cause.rule.scope, cause.entity), ())
        leading = [j for j in beside if j.rule.code in causes and not j.over and self._severity(j) != "info"]
        return {effect.rule.code for j in leading for effect in self._explained(j)}

    def _amiss(self, judgement: Judgement) -> set[Quantity]:
        """What the open symptoms are about that a finding is, or explains, causes in between included."""
        found: set[Quantity] = set(judgement.rule.about)
        seen: set[tuple[str, Labels]] = set()
        open_ = [judgement]
        while open_:
            for effect in self._explained(open_.pop()):
                key = (effect.rule.code, effect.entity)
                if key not in seen:
                    seen.add(key)
                    open_.append(effect)
                    found |= set(effect.rule.about)
        return found

    def _value_of(self, judgement: Judgement) -> Callable[[str], str]:
        """Renders `{signal}` and `{$param}` for this judgement's entity."""
        values = parameters(judgement.rule, self._judge.params.get(judgement.rule.code))

        def value(name: str) -> str:
            if name.startswith("$"):
                return values[name[1:]]
            if name in judgement.rule.who:
                return self._ask.largest(judgement, judgement.rule.who[name], name)
            signal = self._judge.knowledge.signals[name]
            return render(self._figure(name, judgement), signal.unit)

        return value

    def _figure(self, name: str, judgement: Judgement) -> float | None:
        """The value of a signal at the moment and in the window that show a finding."""
        if judgement.short is not None or judgement.last_true is not None:
            return self._ask.number(judgement, SIGNAL_PREFIX + name)
        return self._judge.signals.known[name].values.get(judgement.entity)

    def _measures(self, judgement: Judgement) -> list[Measure]:
        """The values of every signal that the rule's condition names, and of those in its conclusion that are known."""
        knowledge = self._judge.knowledge
        rule = judgement.rule
        in_text = [n for n in PLACEHOLDER.findall(rule.conclusion) if n in knowledge.signals]
        needed = {*self._judge.needs(rule), *rule.uses}
        measures = []
        for name in dict.fromkeys([*self._judge.needs(rule), *in_text, *rule.uses]):
            signal = knowledge.signals[name]
            value = self._figure(name, judgement)
            if value is None and name not in needed:
                continue  # its sentence is left out too
            text = render(value, signal.unit)
            if value is None:
                text = self._judge.signals.why_missing(name, judgement.entity, self.span).why
            number = value if value is not None and math.isfinite(value) else None
            measures.append(
                Measure(name, number, signal.unit, text, signal.meaning.strip(), self._window_of(name, judgement))
            )
        return measures

    def _queries(self, judgement: Judgement) -> list[EvidenceQuery]:
        """What shows that a fired rule is right."""
        return [*judgement.rule.evidence, *self._weighing.evidence(judgement)] if judgement.outcome == "fired" else []

    def _evidence(self, query: EvidenceQuery, judgement: Judgement) -> Evidence:
        entity, text = judgement.entity, self._ask.written(judgement, query.query)
        now = self._ask.answer(judgement, text)
        said = render(now, query.unit) if isinstance(now, float) else _value_text(now, entity, query.unit)
        lines = self._lines(text, entity)
        name = text.strip().removeprefix(SIGNAL_PREFIX)
        window = self._window_of(name, judgement)
        other = window if window is not None and abs(window - self.span.fast) > SAME_SECONDS else None
        return Evidence(query.title, text, query.unit, said, lines, other)

    def _window_of(self, name: str, judgement: Judgement) -> float | None:
        """The seconds that a signal of a finding looks over; None of what is no signal, or looks over no window."""
        signal = self._judge.knowledge.signals.get(name)
        if signal is None or "$window" not in signal.expr:
            return None
        if judgement.short is not None:
            return judgement.short
        if signal.window == "fast":
            return self._judge.signals.span_of(judgement.entity, self.span).fast
        return self.span.fast if self.span.cold else self.span.slow

    def _course(self, query: str) -> list[Series]:
        if query not in self._courses:
            span = self.span
            step = max(1, round(span.fast * 2000 / EVIDENCE_POINTS)) / 1000  # whole milliseconds: it ends at `at`
            start = span.at - EVIDENCE_POINTS * step
            self._courses[query] = self._judge.signals.course(expression(query), start, span.at, step)
        return self._courses[query]

    def _severity(self, judgement: Judgement) -> Severity:
        rule = judgement.rule
        if harmless(judgement, self._judgements):
            return "info"
        return "ticket" if rule.severity == "page" and self._is_unproven(judgement) else rule.severity

    def _is_unproven(self, judgement: Judgement) -> bool:
        """Whether the figures of a finding leave open whether it is so, as where they are too few by now."""
        condition = judgement.rule.proven_when
        fired = bool(condition) and judgement.outcome == "fired"
        return fired and self._ask.number(judgement, condition) is None

    def _confidence(self, judgement: Judgement, explained: Sequence[Judgement]) -> tuple[float, list[str]]:
        rule = judgement.rule
        confidence = CERTAINTY[rule.certainty]
        why = [rule.certainty_why] if rule.certainty_why else []
        if self._is_unproven(judgement):
            confidence = CERTAINTY["low"]
            why.append(rule.unproven_why)
        if rule.stage == "preview":
            confidence -= 0.1
            why.append("the rule is in preview")
        if self.span.cold:
            confidence -= 0.05
            why.append(f"one window of {render(self.span.fast, 'seconds')}, no history")
        if judgement.early is not None:
            confidence -= 0.1
            why.append(f"true for {render(judgement.early, 'seconds')} only")
        if judgement.short is not None:
            confidence -= 0.1
            when = "the last" if judgement.last_true is None else "a window of"
            why.append(f"true in {when} {render(judgement.short, 'seconds')}; its figures cover only this time")
        for name in rule.uses:
            if judgement.entity not in self._judge.signals.known[name].values:
                confidence -= MISSING_USE
                why.append(f"{plain(name)} is unknown")
        weight = self._weighing.weight(judgement, explained)
        most = MOST
        if (proof := proof_of(rule.code)) is not None and proof.proof == "modelled":
            most = MODELLED_MOST
            why.append("no recording of a real program has fired this rule yet")
        return round(min(max(confidence + weight.change, LEAST), most), 2), [*why, *weight.why]

    def _unknowns(self, judgement: Judgement) -> list[Unknown]:
        """Signals that the rule asked for and did not get."""
        wanted = list(judgement.rule.uses)
        if judgement.outcome == "unknown" and judgement.verdict is not None:
            wanted = [*missing_signals(judgement.verdict), *wanted]
        found = []
        for name in dict.fromkeys(wanted):
            if judgement.entity not in self._judge.signals.known[name].values:
                missing = self._judge.signals.why_missing(name, judgement.entity, self.span)
                found.append(Unknown(plain(name), missing.why, missing.remedy, missing.lacks))
        return found

    def _lines(self, text: str, entity: Labels) -> list[EvidenceLine]:
        """The course of a query of evidence, the line that ends highest first."""
        lines: list[EvidenceLine] = []
        for series in self._course(text):
            if series.labels.keep(list(entity)) != entity:
                continue
            rest = dict(series.labels.drop(*entity, METRIC_NAME))
            points = [
                Point(round(float(t), 3), float(v))
                for t, v in zip(series.times, series.values, strict=True)
                if math.isfinite(v)  # JSON knows no other numbers
            ]
            if points:
                lines.append(EvidenceLine(rest, points))
        lines.sort(key=lambda line: (line.points[-1].t, line.points[-1].value), reverse=True)
        return lines[:MAX_EVIDENCE_LINES]

    def _next_check(self, rule: Rule) -> str:
        first = rule.evidence[0]
        return f"after a change, watch {lower_title(first.title)} for a few minutes: {first.query.strip()}"


def _last_true(judgements: Iterable[Judgement]) -> dict[Labels, dict[str, float]]:
    """By entity and code, when each was last true, in seconds since the epoch; infinite where it is true now."""
    found: dict[Labels, dict[str, float]] = {}
    for j in judgements:
        found.setdefault(j.entity, {})[j.rule.code] = math.inf if j.last_true is None else j.last_true
    return found


def in_words(confidence: float) -> str:
    """A confidence as a word: high from 0.8, medium from 0.55, low below."""
    if confidence >= 0.8:
        return "high"
    return "medium" if confidence >= 0.55 else "low"


def _value_text(found: Vector, entity: Labels, unit: str) -> str:
    """An entity's largest value, and whose it is where the query tells that: `21,728 tokens (tenant-7)`. Of what is so
    or not, whatever it is so of."""
    own = [
        (value, _name(labels.drop(*entity, METRIC_NAME)))
        for labels, value in found
        if labels.keep(list(entity)) == entity
    ]
    if not own:
        return render(None, unit)
    value, name = max(own, key=lambda one: one[0])
    if unit == "bool" and value and name:
        names = sorted({name for value, name in own if value})
        more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
        return f"{', '.join(names[:MAX_NAMED])}{more}"
    return f"{render(value, unit)} ({name})" if name else render(value, unit)


def _name(labels: Labels) -> str:
    """What tells a series from others of its entity."""
    return labels.get("engine", "") or " ".join(filter(None, labels.values()))
