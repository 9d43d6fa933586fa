"""A row for every engine: the verdict of the engine alone, and figures that are those of the findings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec

from kvitals.app.demo import incidents
from kvitals.app.sources.recording import Moments
from kvitals.app.sources.recording_reader import span_of
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.triage import engine_verdict
from kvitals.rules.finding import Entity, Triage
from kvitals.rules.loader import load
from tests.captures.looks import setup as setup_with
from tests.captures.looks import setup_of
from tests.support.loops import for_each
from tests.support.recordings import CAPTURES, judge, setup

PAIR = CAPTURES / "incidents" / "pd_decode_slots-1.kvcap"


def _document(path: Path) -> Triage:
    return judge(path, setup()).document


@for_each("path", incidents, ids=lambda path: path.stem)
def test_the_only_engine_has_the_verdict_of_the_document(path: Path) -> None:
    document = _document(path)
    (row,) = document.engines
    assert row.healthy == document.healthy
    assert row.verdict == document.verdict
    assert set(row.findings) == {one.id for one in (*document.causes, *document.telemetry, *document.symptoms)}


@for_each("path", incidents, ids=lambda path: path.stem)
def test_a_figure_is_that_of_the_findings(path: Path) -> None:
    document = _document(path)
    (row,) = document.engines
    measures = [m for finding in document.symptoms for m in finding.measures if m.signal in row.figures]
    for measure in measures:
        assert (row.figures[measure.signal].value, row.figures[measure.signal].text) == (measure.value, measure.text)
    objectives = {one.name: one.seconds for one in document.slo}
    assert row.figures["slo_ttft_seconds"].value == objectives["ttft_p99"]
    assert row.figures["slo_itl_seconds"].value == objectives["itl_p99"]


def test_the_course_ends_at_the_window_s_end_with_the_figure() -> None:
    document = _document(CAPTURES.parents[1] / "app" / "demo" / "heavy_tenant.kvcap")
    (row,) = document.engines
    assert row.course[-1].t == document.window.end
    assert row.course[-1].value == row.figures["waiting_avg"].value
    assert row.course[0].value < row.course[-1].value


def test_a_finding_of_one_engine_leaves_the_other_healthy() -> None:
    decode, prefill = _document(PAIR).engines
    assert (decode.entity.title, decode.healthy, decode.severity) == ("decode", False, "page")
    assert (prefill.entity.title, prefill.healthy, prefill.severity, prefill.findings) == ("prefill", True, None, [])
    assert (decode.about["role"], prefill.about["role"]) == ("decode", "prefill")


def test_an_engine_that_nobody_can_judge_yet_is_not_healthy() -> None:
    heavy = CAPTURES.parents[1] / "app" / "demo" / "heavy_tenant.kvcap"
    first, _ = span_of(heavy)
    (row,) = judge(heavy, setup(), Moments(at=first + 5)).document.engines
    assert row.healthy is None
    assert row.verdict.startswith("Unknown")


def test_a_verdict_counts_first_tokens_in_time_only_where_they_are_of_now() -> None:
    """ "96 of 96 first tokens in time" was said of a stopped process: 30 clients had waited in vain for theirs."""
    document = _document(CAPTURES / "incidents" / "replica_silent-1.kvcap")
    assert document.verdict == "A process of the engine is or was stopped."
    slow = _document(CAPTURES.parents[1] / "app" / "demo" / "heavy_tenant.kvcap")
    assert slow.symptoms[0].code == "LAT01" and "in time" not in slow.verdict


def test_a_p99_inside_the_bucket_of_the_objective_is_no_page() -> None:
    """vLLM's bucket goes from 1 s to 2.5 s: whether 2.37 s is above 2 s is not known."""
    heavy = CAPTURES.parents[1] / "app" / "demo" / "heavy_tenant.kvcap"
    for objective, expected in ((2.0, ("ticket", "low")), (1.0, ("page", "high"))):
        document = judge(heavy, setup_with(ttft_p99=objective, itl_p99=0.2)).document
        (late,) = (one for one in document.symptoms if one.code == "LAT01")
        assert (late.severity, late.confidence_words) == expected


def test_a_cause_whose_harm_is_known_to_be_clear_is_a_note() -> None:
    document = _document(CAPTURES.parents[1] / "app" / "demo" / "caching_off.kvcap")
    assert document.verdict.startswith("No trouble found: at least 99 % of 191 first tokens in time in 60 s")
    assert "PFX02" in {note.code for note in document.notes}
    demo = CAPTURES.parents[1] / "app" / "demo" / "caching_off.kvcap"
    late = judge(demo, setup_of(demo)).document  # under its own objective of 0.1 s
    assert [cause.code for cause in late.causes] == ["PFX02"] and late.healthy is False


def test_a_request_that_a_frontend_and_its_worker_count_is_counted_once() -> None:
    document = _document(CAPTURES / "incidents" / "dynamo_two_shops-1.kvcap")
    assert document.verdict.startswith("No trouble found: 328 of 328 first tokens in time")
    assert [row.verdict.split()[3] for row in document.engines] == ["328", "128", "200"]


def test_a_pool_behind_a_frontend_uses_at_most_all_of_its_slots() -> None:
    document = judge(CAPTURES / "incidents" / "dynamo_overload-1.kvcap", setup()).document
    (full,) = (one for one in (*document.causes, *document.notes) if one.code == "EFF02")
    assert [one.value <= 1.0 for one in full.measures if one.signal == "pool_slots_used" and one.value] == [True]


def test_an_unreachable_engine_is_the_one_that_is_named() -> None:
    one, two = _document(CAPTURES / "incidents" / "engine_dead-1.kvcap").engines
    assert (one.entity.title, one.healthy, one.findings) == ("one", True, [])
    assert (two.entity.title, two.healthy, two.severity) == ("two", False, "page")


def test_a_cause_of_the_engine_comes_before_one_of_its_pool() -> None:
    document = _document(CAPTURES.parents[1] / "app" / "demo" / "heavy_tenant.kvcap")
    own = document.causes[0]
    pool = msgspec.structs.replace(
        own,
        id="of the pool",
        title="Uneven pool",
        entity=Entity(kind="pool", labels={"pool": "chat"}, title="chat"),
    )
    judge_ = cast(Judge, SimpleNamespace(crashed={}, signals=SimpleNamespace(known={}), knowledge=load([])))
    span = EvaluationSpan(1.0)
    assert engine_verdict(judge_, [], [pool, own, *document.symptoms], span) == (False, f"{own.title}.")
    assert engine_verdict(judge_, [], [pool, *document.symptoms], span) == (False, "Uneven pool.")


def test_an_engine_that_cannot_be_read_shows_no_old_figures() -> None:
    document = _document(CAPTURES / "incidents" / "engine_dead_overload-1.kvcap")
    dead, alive = document.engines
    assert {name for name, one in dead.figures.items() if one.value is not None} == {
        "slo_ttft_seconds",
        "slo_itl_seconds",
    }
    assert dead.verdict.startswith("Engine metrics page cannot be read (one).")
    assert alive.figures["waiting_avg"].value
    assert document.verdict.startswith("Engine metrics page cannot be read (one). Requests wait for slots")
    assert document.causes[0].entity.title == "two"
