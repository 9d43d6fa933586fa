"""Cases are run: a rule by itself is judged on written series, and what it says is held against what it must say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from kvitals.diagnoser.cases.case import Case
from kvitals.diagnoser.cases.notation import MAX_SAMPLES, WrittenSeries
from kvitals.diagnoser.cases.played import PlayedSignals
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.findings import Findings
from kvitals.diagnoser.judgement import Judgement, seconds
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.finding import Finding
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import SCOPES, Signal
from kvitals.series.promql import PromQLError
from kvitals.series.types import Labels

START = 1_700_000_000.0
"""The first sample's time, seconds since the epoch."""
FAST, SLOW = 60.0, 900.0
ENTITY = Labels({"engine": "e"})
"""What is judged: a case's series are of this engine, or of the unnamed node and pool."""
WAITING = "it counts after"
"""In the reason of a rule that is true, though not for long enough."""


@dataclass(frozen=True)
class CaseOutcome:
    """A case as it was judged, at its last moment."""

    judge: Judge
    judgements: list[Judgement]
    span: EvaluationSpan


class Bench:
    """Runs the cases of one body of knowledge."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._alone: dict[str, Knowledge] = {}  # by code; a rule's cases have it in common

    def alone(self, code: str) -> Knowledge:
        """The knowledge with one rule, its levers and the signals that these speak of."""
        if code not in self._alone:
            self._alone[code] = _only(self._knowledge, code)
        return self._alone[code]

    def judged(self, code: str, case: Case) -> CaseOutcome:
        """One rule over a case, looked at on every sample as the agent does, or once where it is cold.

        Raises ValueError where the case's series can not be read or are too long.
        """
        alone = self.alone(code)
        interval = seconds(case.interval)
        source = WrittenSeries(case.series, START, interval)
        at = START + seconds(case.at) if case.at else source.end
        if case.cold:
            span = EvaluationSpan(at, max(at - START, interval), max(at - START, interval), cold=True)
            judge = Judge(alone, Signals(alone, source))
            return CaseOutcome(judge, judge.judge(span), span)
        moments = int((at - START) / interval) + 1
        if moments > MAX_SAMPLES:
            raise ValueError(
                f"{moments:,} moments to evaluate, at most {MAX_SAMPLES:,} are allowed: choose a longer interval"
            )
        spans = [EvaluationSpan(START + i * interval, FAST, SLOW) for i in range(moments)]
        judge = Judge(alone, PlayedSignals(alone, source, spans, interval))
        for span in spans:
            judgements = judge.judge(span)
        return CaseOutcome(judge, judgements, span)

    def differences(self, code: str, case: Case) -> list[str]:
        """What the rule says otherwise than the case demands; nothing where it is as demanded."""
        try:
            judged = self.judged(code, case)
        except (ValueError, PromQLError) as error:
            return [str(error)]
        return list(_differences(self._knowledge, code, case, judged))


def _differences(knowledge: Knowledge, code: str, case: Case, judged: CaseOutcome) -> Iterator[str]:
    if judged.judge.crashed:
        yield f"the rule crashed: {judged.judge.crashed[code]}"
        return
    entity = ENTITY.keep(SCOPES[knowledge.rules[code].scope])
    found = next((j for j in judged.judgements if j.entity == entity), None)
    if found is None:
        yield 'nothing to evaluate: a case needs kvitals_target_up{engine="e"}'
        return
    reason = found.reason
    if found.outcome != case.expect:
        yield f"must be {case.expect}, is {found.outcome}" + (f": {reason}" if reason else "")
        return
    if WAITING in reason and WAITING not in case.says:
        yield (
            f"clear only because the condition was not true for long enough ({reason}); make the condition last "
            "longer, or expect this in `says`"
        )
    finding = Findings(judged.judge, judged.judgements, judged.span).build(found)
    said = finding.conclusion or finding.reason
    if case.says not in said:
        yield f"must contain {case.says!r}, is {said!r}"
    if case.setting and _setting(finding) != case.setting:
        yield f"must set {case.setting!r}, sets {_setting(finding)!r}"


def _setting(finding: Finding) -> str:
    """The first setting that a finding's levers have, as cases write it."""
    first = next((s for lever in finding.levers if (s := lever.setting) is not None), None)
    return f"{first.flag} {first.now} -> {first.to}" if first is not None else ""


def _only(knowledge: Knowledge, code: str) -> Knowledge:
    rule = knowledge.rules[code]
    levers = {use.lever: knowledge.levers[use.lever] for use in rule.levers}
    text = msgspec.json.encode([rule, *levers.values()]).decode() + " traffic"
    signals: dict[str, Signal] = {}
    while found := {n: s for n, s in knowledge.signals.items() if n not in signals and n in text}:
        signals |= found
        text = msgspec.json.encode(list(found.values())).decode()
    return Knowledge(knowledge.families, signals, {code: rule}, levers)
