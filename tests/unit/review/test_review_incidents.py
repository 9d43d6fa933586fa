"""Incidents from findings that were kept and from alerts, with how long they took to be told."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from kvitals.diagnoser.review.incidents import TOLD, of_alerts, of_history, with_losses
from kvitals.diagnoser.review.result import Incidents
from kvitals.diagnoser.review.words import lasting
from kvitals.diagnoser.steps import Counts
from kvitals.rules.finding import Entity, Finding, LeverAdvice, LeverSetting
from kvitals.rules.loader import load
from kvitals.rules.model import Rule
from kvitals.series.history.event_log import Episode, HistoryEvent
from kvitals.series.promql import Expr, Series
from kvitals.series.types import Labels
from kvitals.ui.review.sections import _incident
from tests.unit.review.stage import HOUR, engine, seen, week

ENGINE = {"engine": "a", "node": "n"}
DAY = 86400.0


def finding(code: str = "SCH01", kind: str = "cause", severity: str = "ticket", **more: object) -> Finding:
    setting = LeverSetting("--max-num-seqs", "2", "64", True, "")
    lever = LeverAdvice("raise-max-num-seqs", "Allow more at once", "", "", "", "", "", setting, "", [])
    return msgspec.convert(
        {
            "id": "i", "episode": "e", "code": code, "name": "slots", "title": "Requests wait for a slot", "kind": kind,
            "severity": severity, "entity": msgspec.to_builtins(Entity("engine", ENGINE, "a")), "outcome": "fired",
            "reason": "", "since": 0.0, "since_at_least": False, "confidence": 1.0, "confidence_words": "",
            "confidence_why": [], "conclusion": "12 wait.", "measures": [], "evidence": [], "explains": [],
            "explained_by": [], "ruled_out": [], "unknowns": [], "levers": [msgspec.to_builtins(lever)],
            "next_check": "", **more,
        },
        Finding,
    )  # fmt: skip


def episode(key: str, start: float, end: float, of: Finding, *, open_: bool = False) -> Episode:
    return Episode(key, of.code, ENGINE, start, end, open_, msgspec.json.encode(of))


@pytest.fixture(scope="module")
def slots() -> Rule:
    return load().rules["SCH01"]


def test_the_same_finding_of_an_entity_is_a_row_with_its_times() -> None:
    several = [episode("1", 100.0, 400.0, finding()), episode("2", 1000.0, 1600.0, finding(), open_=True)]
    told = [HistoryEvent(130.0, TOLD, "", "agent", ENGINE, "1"), HistoryEvent(1090.0, TOLD, "", "agent", ENGINE, "2")]
    (row,) = of_history(several, told, 0.0, 1500.0, {}).rows
    assert (row.code, row.times, row.seconds, row.open) == ("SCH01", 2, 800.0, True)  # the second until the end
    assert row.detected == 60.0
    assert row.levers[0].setting == "--max-num-seqs 64 (now 2)"


def test_an_engine_that_could_not_be_read_is_an_incident() -> None:
    """It was a page for a quarter of an hour, and the review did not name it."""
    lost = episode("1", 100.0, 1000.0, finding("TEL01", "telemetry", "page"))
    flags = episode("2", 100.0, 1000.0, finding("TEL10", "telemetry", "ticket"))
    (row,) = of_history([lost, flags], [], 0.0, 1500.0, {}).rows
    assert (row.code, row.severity, row.seconds) == ("TEL01", "page", 900.0)


def test_what_has_ended_lasted_until_it_was_last_true() -> None:
    """A scrape that was slow once was an incident of 14 minutes, and went on."""
    kept = episode("1", 100.0, 900.0, finding("ENG15", "symptom", last_true=160.0), open_=True)
    (row,) = of_history([kept], [], 0.0, 1500.0, {}).rows
    assert (row.seconds, row.open) == (60.0, False)


def test_a_row_states_its_highest_severity_and_its_longest_time() -> None:
    """At its end a page was no longer proven, and the row was a ticket; "longest" was the sum of five times."""
    several = [episode("1", 0.0, 600.0, finding(severity="page")), episode("2", 700.0, 820.0, finding())]
    (row,) = of_history(several, [], 0.0, 900.0, {}).rows
    assert row.severity == "page"
    assert _incident([row], "")[4] == lasting(600.0)


def test_an_open_incident_lasts_at_least_to_the_end_of_the_range() -> None:
    """An open episode is written once a minute: one of 74 s had "15 s in all", and `at_least` was false."""
    (row,) = of_history([episode("1", 100.0, 115.0, finding(), open_=True)], [], 0.0, 174.0, {}).rows
    assert (row.seconds, row.open, row.at_least, row.spans) == (74.0, True, True, [(100.0, 174.0)])
    assert _incident([row], "")[4] == f"at least {lasting(74.0)}"


@pytest.mark.parametrize(
    ("first", "last", "at_least", "open_"),
    [(-50.0, 40.0, True, False), (10.0, 240.0, True, True), (10.0, 40.0, False, False)],
)
def test_an_incident_beyond_the_range_lasts_at_least_so_long(
    first: float, last: float, at_least: bool, open_: bool
) -> None:
    (row,) = of_history([episode("1", first, last, finding())], [], 0.0, 100.0, {}).rows
    assert row.spans == [(max(first, 0.0), min(last, 100.0))]
    assert (row.at_least, row.open) == (at_least, open_)


def test_notes_and_what_is_muted_are_no_incidents() -> None:
    several = [
        episode("1", 0.0, 9.0, finding(kind="note")),
        episode("2", 0.0, 9.0, finding(severity="info")),
        episode("3", 0.0, 9.0, finding(muted="planned")),
    ]
    assert of_history(several, [], 0.0, 10.0, {}).rows == []


def test_a_beginning_that_was_not_seen_has_no_time_to_detect() -> None:
    (row,) = of_history([episode("1", 0.0, 9.0, finding(since_at_least=True))], [], 0.0, 10.0, {}).rows
    assert row.detected is None and row.at_least


def test_of_a_document_of_another_version_the_rules_words_are_left(slots: Rule) -> None:
    one = Episode("1", slots.code, ENGINE, 0.0, 9.0, False, b"{}")
    (row,) = of_history([one], [], 0.0, 10.0, {slots.code: slots}).rows
    assert (row.title, row.severity, row.entity) == (slots.title, slots.severity, "a")
    assert of_history([one], [], 0.0, 10.0, {}).rows == []  # nobody knows what it was


def alerts(expr: Expr, start: float, end: float, step: float) -> list[Series]:
    """A pending alert from 300 on that fires from 600 to 1800, and again from 5400 on, pending since 5100."""
    labels = {"alertname": "kvitals", "code": "SCH01", "severity": "ticket", "kind": "cause", **ENGINE}
    times = np.arange(start, end + 1e-6, step)
    firing = ((times >= 600) & (times <= 1800)) | (times >= 5400)
    if "ALERTS_FOR_STATE" in str(expr):
        active = ((times >= 300) & (times <= 1800)) | (times >= 5100)
        since = np.where(times < 5000, 300.0, 5100.0)
        return [Series(Labels({**labels, "__name__": "ALERTS_FOR_STATE"}), times[active], since[active])]
    named = {**labels, "alertstate": "firing", "__name__": "ALERTS"}
    return [Series(Labels(named), times[firing], np.ones(int(firing.sum())))]


def test_alerts_of_a_server_are_incidents_with_their_time_to_fire() -> None:
    (row,) = of_alerts(alerts, 0.0, 7200.0, 60.0, {}).rows
    assert row.spans == [(300.0, 1800.0), (5100.0, 7200.0)]
    assert row.detected == 300.0 and row.open and row.labels == ENGINE


def test_an_alert_of_an_earlier_day_has_its_time_to_fire_too() -> None:
    (row,) = of_alerts(alerts, 0.0, 3 * DAY, 60.0, {}).rows
    assert row.spans == [(300.0, 1800.0), (5100.0, 3 * DAY)]
    assert row.detected == 300.0


def test_an_alert_that_fires_at_the_end_lasts_at_least_to_it() -> None:
    """The span ended with the last answer, and began before the range."""
    (row,) = of_alerts(alerts, 400.0, 1725.0, 60.0, {}).rows
    assert row.spans == [(400.0, 1725.0)]
    assert row.open and row.at_least and row.seconds == 1325.0


def test_no_alerts_there_is_said_and_is_no_peace() -> None:
    found = of_alerts(lambda expr, start, end, step: [], 0.0, 7200.0, 60.0, {})
    assert not found.rows and "load the rules" in found.missing


def test_what_an_incident_cost_is_against_the_same_engines_hours_without_one() -> None:
    output = np.array([[100.0], [100.0], [25.0], [100.0]])
    one = week(seen((engine("a"),), 4, busy=1.0, output=output))
    rows = of_history([episode("1", 2 * HOUR, 3 * HOUR, finding())], [], 0.0, 4 * HOUR, {}).rows
    found = Incidents(rows=rows, not_listed=0, detected=None, source="", missing="")
    assert with_losses(found, one).rows[0].lost_gpu_hours == pytest.approx(0.75)


def test_answers_that_came_too_late_in_an_incident_are_paid_for_too() -> None:
    cumulative = np.array([[9.0, 10.0], [9.0, 10.0], [4.0, 10.0], [9.0, 10.0]])
    latencies = {"ttft_p99": {0: Counts(np.array([0.5, np.inf]), cumulative)}}
    one = week(seen((engine("a"),), 4, busy=1.0, output=100.0), latencies=latencies)
    rows = of_history([episode("1", 2 * HOUR, 3 * HOUR, finding())], [], 0.0, 4 * HOUR, {}).rows
    (row,) = with_losses(Incidents(rows=rows, not_listed=0, detected=None, source="", missing=""), one).rows
    assert row.ttft_within == pytest.approx(0.4)
    assert row.late_gpu_hours == pytest.approx(0.9 - 0.4)
    assert row.lost_gpu_hours == 0.0
