"""Every rule on written series: cases that fire, look-alikes that must not, and cases that cannot be told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import yaml
from msgspec import Struct

from diagnoser.findings import Findings
from diagnoser.judge import Judge, Judgement
from diagnoser.signals import Signals, Span
from rules.loader import Knowledge, load
from rules.model import SCOPES, Signal
from series.types import Labels

from .notation import Cases
from .played import Played

HERE = Path(__file__).parent
START = 1_700_000_000.0
FAST, SLOW = 60.0, 900.0
ENTITY = Labels({"engine": "e"})
ALWAYS_DECIDED = {"TEL01"}
"""Rules that look only at what makes an engine an entity in the first place."""

Outcome = Literal["fired", "clear", "unknown", "n/a"]


class Case(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    title: str
    expect: Outcome
    series: dict[str, str]
    interval: str = "5s"
    at: str = ""  # since the first sample; empty: the last sample
    cold: bool = False  # a cold triage: one look over everything that was seen
    says: str = ""  # text of the conclusion or, where the rule did not fire, of the reason
    setting: str = ""  # "flag now -> to" of the first lever that has one


class File(Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    cases: list[Case]


def files() -> Iterator[File]:
    for path in sorted(HERE.glob("*.yaml")):
        file = msgspec.convert(yaml.safe_load(path.read_text()), File)
        assert file.code == path.stem
        yield file


FILES = list(files())
CASES = [pytest.param(f.code, case, id=f"{f.code}: {case.title}") for f in FILES for case in f.cases]


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return load()


def seconds(duration: str) -> float:
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def judged(knowledge: Knowledge, code: str, case: Case) -> tuple[Judge, list[Judgement], Span]:
    """One rule over a case, looked at on every sample as the agent does, or once where it is cold."""
    alone = _ALONE.get(code) or _ALONE.setdefault(code, only(knowledge, code))
    interval = seconds(case.interval)
    source = Cases(case.series, START, interval)
    at = START + seconds(case.at) if case.at else source.end
    if case.cold:
        span = Span(at, at - START, at - START, cold=True)
        judge = Judge(alone, Signals(alone, source))
        return judge, judge.judge(span), span
    spans = [Span(START + i * interval, FAST, SLOW) for i in range(int((at - START) / interval) + 1)]
    judge = Judge(alone, Played(alone, source, spans, interval))
    for span in spans:
        judgements = judge.judge(span)
    return judge, judgements, span


_ALONE: dict[str, Knowledge] = {}
"""What each rule needs, by its code; its cases have it in common."""


def only(knowledge: Knowledge, code: str) -> Knowledge:
    """The knowledge with one rule, its levers and the signals that these speak of."""
    rule = knowledge.rules[code]
    levers = {use.lever: knowledge.levers[use.lever] for use in rule.levers}
    text = msgspec.json.encode([rule, *levers.values()]).decode() + " traffic"
    signals: dict[str, Signal] = {}
    while found := {n: s for n, s in knowledge.signals.items() if n not in signals and n in text}:
        signals |= found
        text = msgspec.json.encode(list(found.values())).decode()
    return Knowledge(knowledge.families, signals, {code: rule}, levers)


@pytest.mark.parametrize(("code", "case"), [p for p in CASES if not p.values[1].cold][::20])
def test_a_case_is_played_as_it_is_observed(knowledge: Knowledge, code: str, case: Case) -> None:
    played, _, last = judged(knowledge, code, case)
    alone, interval = _ALONE[code], seconds(case.interval)
    observed = Signals(alone, Cases(case.series, START, interval))
    assert isinstance(played.signals, Played)
    for i, known in enumerate(played.signals.moments):
        there = observed.observe(Span(START + i * interval, FAST, SLOW))
        for name, one in known.items():
            assert one.values == pytest.approx(there[name].values, rel=1e-9, nan_ok=True)
            assert one.too_few == pytest.approx(there[name].too_few, rel=1e-9)
    remembered = (signals.store.select([], START, last.at) for signals in (played.signals, observed))
    for one, other in zip(*remembered, strict=True):
        assert set(one.labels) == set(other.labels)
        order = [other.labels.index(labels) for labels in one.labels]
        np.testing.assert_allclose(one.values, other.values[:, order], rtol=1e-9)


@pytest.mark.parametrize(("code", "case"), CASES)
def test_case(knowledge: Knowledge, code: str, case: Case) -> None:
    judge, judgements, span = judged(knowledge, code, case)
    assert not judge.crashed
    entity = ENTITY.keep(SCOPES[knowledge.rules[code].scope])
    found = next(j for j in judgements if j.entity == entity)
    assert (found.outcome, found.reason) == (case.expect, found.reason)
    assert "it counts after" not in found.reason or "it counts after" in case.says  # else clear by accident
    finding = Findings(judge, judgements, span).build(found)
    assert case.says in (finding.conclusion or finding.reason)
    if case.setting:
        first = next(s for lever in finding.levers if (s := lever.setting) is not None)
        assert f"{first.flag} {first.now} -> {first.to}" == case.setting


@pytest.mark.parametrize("code", sorted(load().rules))
def test_every_rule_has_cases_of_every_outcome(knowledge: Knowledge, code: str) -> None:
    expected: set[Any] = {"fired", "clear"}
    if code not in ALWAYS_DECIDED:
        expected.add("unknown")
    if knowledge.rules[code].applies.traffic:
        expected.add("n/a")
    outcomes = {case.expect for f in FILES if f.code == code for case in f.cases}
    assert expected <= outcomes
