"""What speaks for a cause beyond its rule: how much of the time what it claims bound the engine, what began first."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvitals.diagnoser import findings
from kvitals.diagnoser.confidence import Weighing
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import triage
from kvitals.rules.finding import DocumentSource, Finding
from kvitals.rules.loader import load
from kvitals.rules.model import Rule
from kvitals.rules.proof import Proof, RuleProof
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

KNOWLEDGE = load()
AT = 100_000.0
SPAN = EvaluationSpan(AT)
ENGINE = Labels({"engine": "e"})


def judge(**shares: float) -> Judge:
    """A judge of one engine; shares: what bound it."""
    window = Window(7200, 1000)
    group = window.group("engine")
    series = {ENGINE.with_(**{METRIC_NAME: "kvitals_target_up"}): 1.0}
    for constraint, share in shares.items():
        series[ENGINE.with_(**{METRIC_NAME: "kvitals_binding_share", "constraint": constraint})] = share
    columns = [group.column(labels) for labels in series]
    group.append(AT, [c for c in columns if c is not None], list(series.values()))
    made = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    made.judge(SPAN)
    return made


def fired(code: str, since: float | None = None, *, at_least: bool = False) -> Judgement:
    return Judgement(KNOWLEDGE.rules[code], ENGINE, "fired", "", None, since, at_least)


def cause(judge: Judge, *judgements: Judgement) -> Finding:
    """The first cause."""
    return triage(judge, judgements, SPAN, DocumentSource("live", "x")).causes[0]


def test_the_constraint_that_a_cause_claims_makes_it_surer() -> None:
    found = cause(judge(slots=0.8, arrival=0.2), fired("SCH01"))
    plain = cause(judge(), fired("SCH01"))
    assert found.confidence == pytest.approx(plain.confidence + 0.05)
    assert "slots bound 80 % of the time" in found.confidence_why
    assert [e.text for e in found.evidence if e.title == "Share of the time that slots bound"] == ["80 %"]
    assert not [e for e in plain.evidence if "bound" in e.title]


def test_another_constraint_makes_it_less_sure() -> None:
    found = cause(judge(kv=0.9, arrival=0.1, slots=0.0), fired("SCH01"))
    assert found.confidence == pytest.approx(cause(judge(), fired("SCH01")).confidence - 0.1)
    assert "slots bound 0 % of the time, KV memory 90 %" in found.confidence_why


@pytest.mark.parametrize(
    "shares",
    [
        {"slots": 0.1, "kv": 0.3, "arrival": 0.6},  # neither here nor there
        {"slots": 0.0, "kv": 0.4, "arrival": 0.4, "deferral": 0.2},  # nothing else binds most of the time
        {"unknown": 0.95, "kv": 0.05},  # too little is known
    ],
)
def test_shares_that_say_nothing(shares: dict[str, float]) -> None:
    assert cause(judge(**shares), fired("SCH01")).confidence == cause(judge(), fired("SCH01")).confidence


def test_a_share_that_wavers_moves_little() -> None:
    told = [cause(judge(slots=i / 10, kv=1 - i / 10), fired("SCH01")).confidence for i in range(7)]
    assert told == sorted(told)
    assert max(b - a for a, b in pairwise(told[1:])) < 0.03  # from a tenth on, where the other still binds


def test_shares_are_of_the_time_that_is_known() -> None:
    found = cause(judge(slots=0.15, arrival=0.05, unknown=0.8), fired("SCH01"))
    assert "slots bound 75 % of the time" in found.confidence_why
    assert "75 %" in [e.text for e in found.evidence]


def test_of_like_causes_the_one_that_binds_comes_first() -> None:
    both = fired("LAT01"), fired("SCH01"), fired("SCH12")
    assert cause(judge(slots=0.9, deferral=0.02, arrival=0.08), *both).code == "SCH01"
    assert cause(judge(slots=0.02, deferral=0.9, arrival=0.08), *both).code == "SCH12"


# Which began first. SCH01 and LAT01 look over the last minute.


def order(cause_since: float | None, symptom_since: float | None, **more: bool) -> tuple[str, float]:
    found = Weighing(judge(), SPAN).order(
        fired("SCH01", cause_since, at_least=more.get("cause_at_least", False)),
        [fired("LAT01", symptom_since, at_least=more.get("symptom_at_least", False))],
    )
    return found[0], round(found[1])


def test_an_order_is_told_beyond_what_the_windows_leave_open() -> None:
    assert order(AT - 600, AT - 300) == ("first", 240)
    assert order(AT - 340, AT - 300) == ("", 0)
    assert order(AT - 300, AT - 340) == ("", 0)
    assert order(AT - 300, AT - 600) == ("after", 240)


def test_a_start_that_was_not_seen_decides_one_way_only() -> None:
    assert order(AT - 600, AT - 300, cause_at_least=True) == ("first", 240)  # at least as early
    assert order(AT - 600, AT - 300, symptom_at_least=True) == ("", 0)
    assert order(AT - 300, AT - 600, cause_at_least=True) == ("", 0)
    assert order(AT - 300, AT - 600, symptom_at_least=True) == ("after", 240)
    assert order(None, AT - 300) == order(AT - 300, None) == ("", 0)


def has_baseline(rule: Rule) -> bool:
    return any("$baseline" in KNOWLEDGE.signals[name].expr for name in KNOWLEDGE.needs(rule))


def test_a_baseline_of_an_hour_leaves_an_hour_open() -> None:
    rule = next(r for r in KNOWLEDGE.rules.values() if r.kind == "cause" and r.scope == "engine" and has_baseline(r))
    weighing = Weighing(judge(), SPAN)
    symptom = [fired("LAT01", AT - 7000)]
    assert weighing.order(fired(rule.code, AT - 3600), symptom)[0] == ""
    assert weighing.order(fired(rule.code, AT - 1000), symptom)[0] == "after"


def test_what_began_first_is_said_and_counts() -> None:
    plain = cause(judge(), fired("LAT01"), fired("SCH01")).confidence
    early = cause(judge(), fired("LAT01", AT - 300), fired("SCH01", AT - 600))
    late = cause(judge(), fired("LAT01", AT - 600), fired("SCH01", AT - 300))
    assert early.confidence == pytest.approx(plain + 0.05)
    assert "it began at least 4 min before LAT01" in early.confidence_why
    assert late.confidence == pytest.approx(plain - 0.1)
    assert "LAT01 began at least 4 min before it" in late.confidence_why
    both = fired("LAT01", AT - 400), fired("SCH01", AT - 300), fired("SCH12", AT - 700)
    assert cause(judge(), *both).code == "SCH12"


def test_nothing_is_certain() -> None:
    found = cause(judge(deferral=1.0), fired("LAT01", AT - 300), fired("SCH12", AT - 600))
    assert found.confidence == 0.95


@pytest.mark.parametrize("proof, most", [("real", 0.95), ("captured", 0.95), ("modelled", 0.75)])
def test_a_modelled_rule_is_at_most_medium(monkeypatch: pytest.MonkeyPatch, proof: Proof, most: float) -> None:
    monkeypatch.setattr(findings, "proof_of", lambda code: RuleProof(code, proof))
    found = cause(judge(slots=1.0), fired("SCH01"))
    assert found.proof == proof
    assert found.confidence <= most
    assert (found.confidence_words == "high") == (proof != "modelled")
    assert ("no recording of a real program has fired this rule yet" in found.confidence_why) == (proof == "modelled")


def test_a_rule_of_ones_own_is_not_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "proof_of", lambda code: None)
    found = cause(judge(slots=1.0), fired("SCH01"))
    assert (found.proof, found.confidence_words) == ("", "high")


def test_a_limit_that_nobody_knows_gives_no_high_confidence() -> None:
    """SCH01 fired by a plateau, and its confidence was "high"."""
    assert cause(judge(), fired("SCH01")).confidence_words == "medium"
