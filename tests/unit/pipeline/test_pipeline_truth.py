"""What `make pipeline` calls wrong, and the pages of its looped engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvitals.series.types import METRIC_NAME, Labels
from tests.fleet.loops import Course, Loop
from tests.pipeline.incidents import HEALTHY_POOLS, INCIDENTS, PlannedIncident
from tests.pipeline.judging import Subject, Truth, is_about, not_checked, of_notice, of_pagerduty, of_slack
from tests.pipeline.looped import EnginePage, LoopedEngine, LoopTable, agent_pages

SICK, WELL = "10.0.0.1:8000", "10.0.0.2:8000"
TRUTH = Truth({SICK: "chat", WELL: "code"}, {SICK: PlannedIncident("app/demo/few_slots", "chat", frozenset({"SCH01"}))})


def said(engine: str = SICK, pool: str = "chat", code: str = "SCH01") -> Subject:
    return Subject(engine, pool, code, "title")


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        (said(), None),
        (said(code=""), None),
        (said(engine="", pool="chat"), None),
        (said(pool="code"), "names pool code and not chat"),
        (said(pool=""), "names pool (none) and not chat"),
        (said(code="KVC01"), "names cause KVC01 and not SCH01"),
        (said(engine=WELL, pool="code"), "is about a healthy engine"),
        (said(engine="elsewhere:1"), "names the unknown engine"),
        (said(engine="", pool="code"), "pool code is healthy"),
        (said(engine="", pool=""), "names no pool"),
        (said(engine="", pool="chat", code="KVC01"), "is not one of the pool's incidents"),
    ],
)
def test_a_message_that_is_not_so_is_wrong(subject: Subject, fault: str | None) -> None:
    faults = list(TRUTH.faults(subject))
    assert (not faults) if fault is None else any(fault in one for one in faults)


@pytest.mark.parametrize(
    ("subject", "about"),
    [
        (said(), True),
        (said(code="KVC01"), True),  # and wrong
        (said(engine=WELL), False),
        (said(engine=""), True),
        (said(engine="", code="KVC01"), False),
        (said(engine="", code=""), False),
        (said(engine="", pool="code"), False),
    ],
)
def test_a_message_on_the_pool_is_about_the_incident_whose_cause_it_names(subject: Subject, *, about: bool) -> None:
    assert is_about(subject, SICK, TRUTH.sick[SICK]) is about


def test_twelve_incidents_in_six_pools() -> None:
    assert len(INCIDENTS) == 12
    assert len({incident.pool for incident in INCIDENTS}) == 6
    assert not {incident.pool for incident in INCIDENTS} & set(HEALTHY_POOLS)


NOTICE = {"entity": {"engine": f"{SICK}/0"}, "where": f"engine {SICK}/0 · pool chat", "code": "SCH01", "title": "t"}
EVENT = {
    "event_action": "trigger",
    "payload": {"source": NOTICE["where"], "group": "chat", "class": "SCH01", "summary": "t (engine)"},
}
SLACK = {"text": f"cause found: t (now) ({NOTICE['where']})"}


@pytest.mark.parametrize(("read", "body"), [(of_notice, NOTICE), (of_pagerduty, EVENT), (of_slack, SLACK)])
def test_each_receivers_message_is_read(read: Callable[[Any], Subject], body: dict[str, Any]) -> None:
    subject = read(body)
    assert (subject.engine, subject.pool) == (SICK, "chat")


def test_the_end_of_an_incident_names_nothing_at_pagerduty() -> None:
    assert of_pagerduty({"event_action": "resolve"}) is None


def table(rate: float, engine: str = "recorded/0") -> LoopTable:
    """A counter that grows by `rate` per second, with a lap of 10 s, and a gauge with the value of the rate."""
    times = np.arange(0.0, 11.0)
    counter = Course(Labels({METRIC_NAME: "c_total", "engine": engine}), times, 100.0 + rate * times, True, 10.0)
    gauge = Course(Labels({METRIC_NAME: "kvitals_g", "engine": engine}), times, np.full(11, rate), False, 10.0)
    return LoopTable(Loop("made", (), {}, [counter, gauge]))


def value(page: EnginePage, metric: str, seconds: float) -> float:
    (line,) = (line for line in page.lines(seconds) if line.startswith(metric))
    return float(line.rpartition(" ")[2])


def test_a_counter_goes_on_over_laps_and_into_the_fault() -> None:
    page = EnginePage(LoopedEngine(0, "chat", table(1.0), table(5.0), onset=25.0), started=0.0)
    assert [value(page, "c_total", t) for t in (0.0, 15.0, 24.0)] == [100.0, 115.0, 124.0]
    assert [value(page, "c_total", t) for t in (25.0, 26.0, 36.0)] == [125.0, 130.0, 180.0]
    assert [value(page, "kvitals_g", t) for t in (24.0, 25.0)] == [1.0, 5.0]


def test_an_agents_page_has_its_engines_by_their_addresses() -> None:
    engines = [LoopedEngine(number, "chat", table(1.0)) for number in (1, 2)]
    (page,) = agent_pages(engines, 0.0).values()
    assert [f'kvitals_g{{engine="{one.address}/0"}} 1.0' in page(0.0) for one in engines] == [True, True]


@pytest.mark.parametrize("recorded", ["recorded/0", "recorded"])
def test_an_engine_keeps_its_name_when_its_fault_begins(recorded: str) -> None:
    """It had another name from then on, and a page said that the one before was gone."""
    engine = LoopedEngine(0, "chat", table(1.0), table(5.0, recorded), onset=25.0)
    page = EnginePage(engine, started=0.0)
    for seconds in (24.0, 26.0):
        assert any(line.startswith(f'kvitals_g{{engine="{engine.address}/0"}}') for line in page.lines(seconds))


def test_a_cause_that_needs_an_agent_is_told_as_not_checked() -> None:
    incident = PlannedIncident("docs/lora", "docs", frozenset({"LOR01"}), needs_agent=True)
    told = "causes that are not checked without agents: LOR01, TEN02"
    assert not_checked({"code": "", "unknown": ["the cause: ...", told]}, incident)
    assert not not_checked({"code": "SCH12", "unknown": [told]}, incident)
    assert not not_checked({"code": "", "unknown": []}, incident)
