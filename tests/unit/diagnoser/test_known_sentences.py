"""A conclusion has the sentences whose numbers are known, and no comparison that does not hold."""

from __future__ import annotations

from kvitals.diagnoser.cases.case import Case
from kvitals.diagnoser.cases.running import Bench
from kvitals.diagnoser.findings import Findings
from kvitals.diagnoser.text import UNKNOWN, fill_known
from kvitals.rules.loader import load
from tests.captures.sentences import _compared
from tests.cases.test_cases import cases

KNOWLEDGE = load()
BENCH = Bench(KNOWLEDGE)
COMPOUND = ("SCH15", "KVC01", "GPU10", "SCH08", "PFX02")
"""Rules whose conditions are alternatives of several comparisons, or whose sentences name what may be missing."""


def value(name: str) -> str:
    return {"there": "3 s", "gone": UNKNOWN}[name]


def test_a_sentence_with_an_unknown_number_is_left_out() -> None:
    assert fill_known("It waits {there}. Beside it {gone} run.", value) == "It waits 3 s."
    assert fill_known("It runs {gone}. It waits {there}; {there} is much.", value) == "It waits 3 s; 3 s is much."


def test_a_bracket_with_an_unknown_number_is_left_out() -> None:
    assert fill_known("The limit binds (slots: {gone}), not memory ({there}).", value) == (
        "The limit binds, not memory (3 s)."
    )


def test_where_nothing_is_known_all_is_said() -> None:
    assert fill_known("It runs {gone}.", value) == "It runs unknown."


def conclusion(code: str, case: Case) -> str:
    outcome = BENCH.judged(code, case)
    findings = Findings(outcome.judge, outcome.judgements, outcome.span)
    fired = next(j for j in outcome.judgements if j.rule.code == code and j.outcome == "fired")
    return findings.build(fired, proven=False).conclusion


def test_no_conclusion_of_a_case_has_an_unknown_number_or_a_false_comparison() -> None:
    told = [conclusion(code, case) for code in COMPOUND for case in cases(code) if case.expect == "fired"]
    assert len(told) > len(COMPOUND)
    assert [text for text in told if UNKNOWN in text] == []
    assert [wrong for text in told for wrong in _compared(text)] == []
