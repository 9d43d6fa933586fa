"""The order of causes is the same for like evidence, whichever of like engines has one symptom more."""

from __future__ import annotations

import pytest

from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import triage
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.rules.loader import load
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

KNOWLEDGE = load()
SPAN = EvaluationSpan(1000.0)


@pytest.fixture(scope="module")
def judge() -> Judge:
    window = Window(7200, 1000)
    group = window.group("engines")
    columns = [group.column(Labels({METRIC_NAME: "kvitals_target_up", "engine": name})) for name in "abc"]
    group.append(SPAN.at, [c for c in columns if c is not None], [1.0] * 3)
    made = Judge(KNOWLEDGE, Signals(KNOWLEDGE, window))
    made.judge(SPAN)
    return made


def order(judge: Judge, *fired: str) -> list[str]:
    """The causes as ranked; each written as CODE engine, or CODE engine SECONDS since it was true last."""
    judgements = []
    for one in fired:
        code, engine, *over = one.split()
        last = SPAN.at - float(over[0]) if over else None
        rule = KNOWLEDGE.rules[code]
        judgements.append(Judgement(rule, Labels({"engine": engine}), "fired", "", None, last_true=last))
    document = triage(judge, judgements, SPAN, DocumentSource("live", "x"))
    return [f"{cause.code} {cause.entity.title}" for cause in document.causes]


@pytest.mark.parametrize("worse", ["a", "b", "c"])
def test_which_of_like_engines_is_worse_changes_nothing(judge: Judge, worse: str) -> None:
    both = ("SCH01 b", "SCH01 a", "SCH12 c")
    symptoms = [f"{code} {worse}" for code in ("LAT01", "LAT04", "LAT05") if worse != "c"]
    assert order(judge, *both, "LAT04 a", "LAT04 b", *symptoms) == ["SCH01 a", "SCH01 b", "SCH12 c"]


def test_what_is_stronger_somewhere_comes_first_as_a_whole(judge: Judge) -> None:
    assert order(judge, "SCH01 a", "SCH01 c", "SCH12 b", "LAT01 b", "LAT01 c", "LAT04 c") == [
        "SCH01 a",
        "SCH01 c",
        "SCH12 b",
    ]
    assert order(judge, "SCH01 a", "SCH12 b", "SCH12 c", "LAT01 a", "LAT01 c", "LAT04 c")[0] == "SCH12 b"


def test_what_another_cause_explains_stays_behind(judge: Judge) -> None:
    """On one engine the cause has a cause, on the other it has none."""
    assert order(judge, "LOR01 a", "SCH12 a", "SCH12 b", "LAT01 a", "LAT01 b")[-1] == "SCH12 a"


def test_an_engine_whose_page_cannot_be_read_comes_last(judge: Judge) -> None:
    """What is known of it is old, and a lever on it helps nobody."""
    fired = ("SCH01 a", "SCH01 b", "LAT01 a", "LAT01 b")
    assert order(judge, *fired) == ["SCH01 a", "SCH01 b"]
    assert order(judge, *fired, "TEL01 a") == ["SCH01 b", "SCH01 a"]


def test_a_cause_that_is_about_to_close_does_not_stay_before_one_that_is_true(judge: Judge) -> None:
    """KV cache full, 105 s after it was true last, was the headline over a stalled engine."""
    symptoms = ("LAT01 a", "LAT04 a")
    assert order(judge, "KVC01 a", "ENG02 a", *symptoms)[0] == "KVC01 a"
    assert order(judge, "KVC01 a 20", "ENG02 a", *symptoms)[0] == "KVC01 a"  # it may be true again in a moment
    assert order(judge, "KVC01 a 105", "ENG02 a", *symptoms) == ["ENG02 a", "KVC01 a"]
    assert order(judge, "KVC01 a 40", "ENG02 a", *symptoms) == ["ENG02 a", "KVC01 a"]


def test_an_engine_without_progress_explains_what_stands_still(judge: Judge) -> None:
    """A pool that was full when the engine stopped stays full: its levers help nobody."""
    for stands in ("KVC01 a", "SCH01 a"):
        assert order(judge, stands, "ENG01 a", "LAT01 a", "LAT04 a") == ["ENG01 a", stands]


def test_a_cause_that_is_over_leads_where_only_it_explains_the_symptom(judge: Judge) -> None:
    """The window of the symptom holds the time in which the cause was true."""
    assert order(judge, "KVC01 a 40", "TEN06 a", "LAT01 a")[0] == "KVC01 a"


def fired(code: str, *, since: float | None = None, over: float | None = None) -> Judgement:
    """A finding of engine a: so many seconds ago it began, and was last true."""
    began, last = (None if ago is None else SPAN.at - ago for ago in (since, over))
    return Judgement(KNOWLEDGE.rules[code], Labels({"engine": "a"}), "fired", "", None, began, last_true=last)


def document_of(judge: Judge, *judgements: Judgement) -> Triage:
    return triage(judge, judgements, SPAN, DocumentSource("live", "x"))


def test_the_verdict_states_when_a_cause_that_is_over_was_true(judge: Judge) -> None:
    """ "KV cache full: requests wait for blocks" was the verdict on an engine with a KV usage of 0 %."""
    late, title = fired("LAT01", since=60), KNOWLEDGE.rules["KVC01"].title
    verdicts = [document_of(judge, fired("KVC01", over=over), late).verdict for over in (None, 10, 40)]
    assert verdicts == [f"{title}.", f"{title}.", f"{title} (last true at 00:16:00 UTC)."]


def test_what_has_ended_is_noted(judge: Judge) -> None:
    """The cause of an incident was the verdict on healthy traffic for two minutes after it."""
    recent = document_of(judge, fired("KVC01", since=90, over=10), fired("LAT01", since=80, over=10))
    assert recent.healthy is False and [cause.code for cause in recent.causes] == ["KVC01"]
    ended = document_of(judge, fired("KVC01", since=120, over=30), fired("LAT01", since=110, over=30))
    assert ended.healthy is not False and not ended.causes and not ended.symptoms
    assert sorted(note.code for note in ended.notes) == ["KVC01", "LAT01"]


def test_what_telemetry_lost_does_not_end(judge: Judge) -> None:
    lost = document_of(judge, fired("TEL06", since=120, over=30))
    assert [finding.code for finding in lost.telemetry] == ["TEL06"]


def test_what_has_ended_explains_no_symptom_that_began_later(judge: Judge) -> None:
    """A tenant that was silent for five minutes explained the late first tokens of others."""
    before = document_of(judge, fired("KVC01", over=30), fired("LAT01", since=60))
    assert before.symptoms[0].explained_by == ["KVC01"] and before.causes[0].explains == ["LAT01"]
    later = document_of(judge, fired("KVC01", over=30), fired("LAT01", since=25))
    assert later.symptoms[0].explained_by == [] and not later.causes
    assert later.verdict.startswith("Cause unknown")


def test_what_has_ended_takes_no_place_of_what_began_later(judge: Judge) -> None:
    """Prefill in the way of decoding was "covered by" preemptions that were over before it began."""
    rule = KNOWLEDGE.rules["KVC23"]
    assert "KVC01" in rule.excluded_by
    covered = document_of(judge, fired("KVC01", over=30), fired("KVC23", since=60))
    assert "KVC23" not in [finding.code for finding in (*covered.causes, *covered.notes)]
    told = document_of(judge, fired("KVC01", over=30), fired("KVC23", since=25))
    assert "KVC23" in [finding.code for finding in (*told.causes, *told.notes)]


@pytest.mark.parametrize("code", ["ENG01", "ENG12", "ENG13"])
def test_what_waited_for_a_halted_engine_is_explained_for_one_window_after_it(judge: Judge, code: str) -> None:
    """TTFT p99 was 75 s, 30 s after a SIGSTOP of a minute, and the verdict was "Other processes take the CPU time"."""
    late, starved = fired("LAT01", since=25), fired("ENG11", since=20)
    document = document_of(judge, fired(code, since=90, over=30), starved, late)
    assert [cause.code for cause in document.causes] == [code, "ENG11"]
    assert document.verdict == f"{KNOWLEDGE.rules[code].title} (last true at 00:16:10 UTC)."
    later = document_of(judge, fired(code, since=200, over=SPAN.fast + 30), starved, late)
    assert [cause.code for cause in later.causes] == ["ENG11"]


def test_what_began_more_than_the_window_after_a_halt_has_another_cause(judge: Judge) -> None:
    """The window is that of the document."""
    short = EvaluationSpan(SPAN.at, 10.0)
    judgements = [fired("ENG13", since=90, over=50), fired("LAT01", since=25)]
    document = triage(judge, judgements, short, DocumentSource("live", "x"))
    assert not document.causes and [note.code for note in document.notes] == ["ENG13"]


def test_a_halt_that_has_ended_and_explains_nothing_leads_nothing(judge: Judge) -> None:
    document = document_of(judge, fired("ENG13", since=90, over=30), fired("KVC01", since=90))
    assert [cause.code for cause in document.causes] == ["KVC01"]
    assert [note.code for note in document.notes] == ["ENG13"]
