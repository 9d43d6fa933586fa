"""Every rule on written series: cases that fire, look-alikes that must not, and cases that cannot be told."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvitals.diagnoser.cases.case import Case, read_all
from kvitals.diagnoser.cases.notation import WrittenSeries
from kvitals.diagnoser.cases.played import PlayedSignals
from kvitals.diagnoser.cases.running import FAST, SLOW, START, Bench
from kvitals.diagnoser.judgement import seconds
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.authoring import wanted_outcomes
from kvitals.rules.loader import load
from tests.support.loops import for_each

KNOWLEDGE = load()
FOLDER = Path(__file__).parent
files = cache(read_all)  # when a test asks for them: whoever collects tests does not read them all


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(KNOWLEDGE)


def test_all_files_can_be_read() -> None:
    found, problems = files(FOLDER)
    assert not problems
    assert {f.code for f in found} <= KNOWLEDGE.rules.keys()


def cases(code: str) -> tuple[Case, ...]:
    """The cases of a rule."""
    return tuple(case for file in files(FOLDER)[0] if file.code == code for case in file.cases)


def every(nth: int) -> list[tuple[str, Case]]:
    return [(f.code, case) for f in files(FOLDER)[0] for case in f.cases if not case.cold][::nth]


@for_each("code, case", lambda: every(80))
def test_a_case_is_played_as_it_is_observed(bench: Bench, code: str, case: Case) -> None:
    observed_alike(bench, code, case)


@pytest.mark.system
@for_each("code, case", lambda: every(20))
def test_more_cases_are_played_as_they_are_observed(bench: Bench, code: str, case: Case) -> None:
    observed_alike(bench, code, case)


def observed_alike(bench: Bench, code: str, case: Case) -> None:
    """Signals of all moments at once have the values that they have moment by moment."""
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


@for_each("code", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_cases_of_a_rule(bench: Bench, code: str) -> None:
    assert cases(code)
    assert [(case.title, wrong) for case in cases(code) if (wrong := bench.differences(code, case))] == []


@for_each("code", sorted(KNOWLEDGE.rules), ids=str)
def test_every_rule_has_cases_of_every_outcome(code: str) -> None:
    outcomes = {case.expect for case in cases(code)}
    assert wanted_outcomes(KNOWLEDGE.rules[code], KNOWLEDGE) <= outcomes
