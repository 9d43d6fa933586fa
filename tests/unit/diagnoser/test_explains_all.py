"""Ranking over the whole graph: what explains comes before what it explains, and a symptom leads to its cause."""

from __future__ import annotations

import pytest

from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import triage
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.rules.loader import load
from kvitals.rules.model import SCOPES, Rule
from kvitals.series.types import Labels
from kvitals.series.window import Window
from tests.support.loops import for_each

KNOWLEDGE = load()
SPAN = EvaluationSpan(1000.0)
WHOLE = Labels({"engine": "a", "node": "n", "pool": "p"})
CAUSES = [rule for rule in KNOWLEDGE.rules.values() if rule.kind == "cause"]
WITHIN = {"engine": 0, "node": 1, "pool": 1, "fleet": 2}
EDGES = [
    pytest.param(rule, KNOWLEDGE.rules[code], id=f"{rule.code} {code}")
    for rule in CAUSES
    for code in rule.explains
    if not rule.explains_when and WITHIN[rule.scope] >= WITHIN[KNOWLEDGE.rules[code].scope]
    if not rule.explains_causes_when or KNOWLEDGE.rules[code].kind != "cause"
]


@pytest.fixture(scope="module")
def judge() -> Judge:
    window = Window(7200, 1000)
    group = window.group("engines")
    up = group.column(WHOLE.with_(__name__="kvitals_target_up"))
    assert up is not None
    group.append(SPAN.at, [up], [1.0])
    judge = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    judge.judge(SPAN)
    return judge


def said(rule: Rule, outcome: str = "fired", why: str = "as planted") -> Judgement:
    return Judgement(rule, WHOLE.keep(SCOPES[rule.scope]), outcome, why, None)  # type: ignore[arg-type]


def told(judge: Judge, *judgements: Judgement) -> Triage:
    return triage(judge, judgements, SPAN, DocumentSource("live", "x"))


def symptoms_of(rule: Rule) -> set[str]:
    """The symptoms that a rule explains, over causes in between."""
    seen: set[str] = set()
    open_ = [rule]
    while open_:
        for code in set(open_.pop().explains) - seen:
            seen.add(code)
            open_.append(KNOWLEDGE.rules[code])
    return {code for code in seen if KNOWLEDGE.rules[code].kind == "symptom"}


@for_each("rule", CAUSES, ids=lambda rule: rule.code)
def test_every_cause_leads_to_a_symptom_or_is_one_for_the_pager(rule: Rule) -> None:
    assert symptoms_of(rule) or rule.severity == "page"


@for_each("cause, effect", EDGES)
def test_a_cause_comes_before_what_it_explains(judge: Judge, cause: Rule, effect: Rule) -> None:
    document = told(judge, said(effect), said(cause))
    if effect.code in cause.excluded_by:
        assert cause.code not in [f.code for f in document.causes]
        return
    for_information = cause.severity == "info" and effect.kind == "cause" and effect.severity != "info"
    first = effect if for_information else cause  # what asks for something is told first, whatever explains it
    if cause.severity == effect.severity == "info":  # it explains nothing that anybody feels
        assert document.causes == []
        assert first.title not in document.verdict
    else:
        assert document.causes[0].code == first.code
        assert document.verdict.startswith(first.title)
    every = [*document.causes, *document.symptoms, *document.notes]
    if cause.code in effect.excluded_by:  # it says the same better
        assert [f.code for f in every] == [cause.code]
        return
    (found,) = [f for f in every if f.code == effect.code]
    assert found.explained_by == [cause.code]


@for_each("cause, effect", EDGES)
def test_a_cause_that_is_not_so_is_ruled_out_with_its_number(judge: Judge, cause: Rule, effect: Rule) -> None:
    if effect.kind == "symptom":
        document = told(judge, said(effect), said(cause, "clear", "KV usage p90 is 12 %, not above 90 %"))
        (out,) = [r for r in document.ruled_out if r.code == cause.code]
        assert out.because == "KV usage p90 is 12 %, not above 90 %"
