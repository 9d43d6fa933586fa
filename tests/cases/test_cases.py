"""Every rule on written series: cases that fire, look-alikes that must not, and cases that cannot be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvitals.diagnoser.cases.case import Case, CaseFile, read_all
from kvitals.diagnoser.cases.notation import WrittenSeries
from kvitals.diagnoser.cases.played import PlayedSignals
from kvitals.diagnoser.cases.running import FAST, SLOW, START, Bench
from kvitals.diagnoser.evaluator import seconds
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.authoring import wanted_outcomes
from kvitals.rules.loader import load
from tests.support.loops import for_each

KNOWLEDGE = load()
FILES, PROBLEMS = read_all(Path(__file__).parent)
ON_EACH_SAMPLE = [(f.code, case) for f in FILES for case in f.cases if not case.cold]


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(KNOWLEDGE)


def test_all_files_can_be_read() -> None:
    assert not PROBLEMS
    assert {f.code for f in FILES} <= KNOWLEDGE.rules.keys()


@for_each("code, case", ON_EACH_SAMPLE[::20])
def test_a_case_is_played_as_it_is_observed(bench: Bench, code: str, case: Case) -> None:
    played, interval = bench.judged(code, case), seconds(case.interval)
    observed = Signals(bench.alone(code), WrittenSeries(case.series, START, interval))
    signals = played.judge.signals
    assert isinstance(signals, PlayedSignals)
    for i, known in enumerate(signals.moments):
        there = observed.observe(EvaluationSpan(START + i * interval, FAST, SLOW))
        for name, one in known.items():
            assert one.values == pytest.approx(there[name].values, rel=1e-9, nan_ok=True)
            assert one.too_few == pytest.approx(there[name].too_few, rel=1e-9)
    remembered = (one.store.select([], START, played.span.at) for one in (signals, observed))
    for one, other in zip(*remembered, strict=True):
        assert set(one.labels) == set(other.labels)
        order = [other.labels.index(labels) for labels in one.labels]
        np.testing.assert_allclose(one.values, other.values[:, order], rtol=1e-9)


@pytest.mark.parametrize("of_rule", FILES, ids=[f.code for f in FILES])
def test_cases_of_a_rule(bench: Bench, of_rule: CaseFile) -> None:
    differing = [(case.title, lines) for case in of_rule.cases if (lines := bench.differences(of_rule.code, case))]
    assert differing == []


@for_each("code", sorted(KNOWLEDGE.rules), ids=str)
def test_every_rule_has_cases_of_every_outcome(code: str) -> None:
    outcomes = {case.expect for f in FILES if f.code == code for case in f.cases}
    assert wanted_outcomes(KNOWLEDGE.rules[code], KNOWLEDGE) <= outcomes
