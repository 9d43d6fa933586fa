"""What the last seconds show to have ended, and what ends with it."""

from __future__ import annotations

import pytest

from kvitals.diagnoser import last_seconds
from kvitals.diagnoser.judgement import Judgement, Memory
from kvitals.diagnoser.kleene import Verdict
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.loader import load
from kvitals.series.types import Labels

KNOWLEDGE = load()
ENGINE = Labels({"engine": "e"})
NOW = 1000.0
SPAN = EvaluationSpan(NOW)


def fired(code: str, engine: Labels = ENGINE, since: float = 900.0) -> Judgement:
    return Judgement(KNOWLEDGE.rules[code], engine, "fired", "", Verdict(True, ()), since)


def over(*judgements: Judgement, **ended: float) -> dict[str, bool]:
    """Which of these are over, where these had ended so many seconds ago. Nothing is true in the last seconds."""
    memory = {j.key: Memory(j.since, NOW, NOW, fired=True) for j in judgements}
    for code, seconds in ended.items():
        memory[f"{code}{ENGINE}"].ended = NOW - seconds
    found = last_seconds.with_ended(judgements, [], {}, memory, SPAN)
    return {f"{j.rule.code}{j.entity}": j.over for j in found}


def test_details_end_with_the_symptom_that_they_tell_more_of() -> None:
    """Seen: "No trouble found", and below it "All percentiles are slow", which so few requests cannot rule out."""
    assert over(fired("LAT01"), fired("LAT04"), LAT01=30.0) == {f"LAT01{ENGINE}": True, f"LAT04{ENGINE}": True}
    assert not any(over(fired("LAT01"), fired("LAT04")).values())


def test_details_go_on_where_a_symptom_that_they_tell_of_goes_on() -> None:
    """LAT04 is about both latencies."""
    assert not over(fired("LAT01"), fired("LAT02"), fired("LAT04"), LAT01=30.0)[f"LAT04{ENGINE}"]


def test_details_of_another_engine_go_on() -> None:
    other = Labels({"engine": "other"})
    assert not over(fired("LAT01"), fired("LAT04", other), LAT01=30.0)[f"LAT04{other}"]


def test_a_fault_ends_and_a_count_of_rare_events_does_not() -> None:
    """Seen: a stopped process was a page for 40 s after it went on."""
    rules = last_seconds.rules_that_end(KNOWLEDGE).rules
    assert "ENG13" in rules
    assert not {"KVC24", "PDX07"} & set(rules)


def test_what_comes_back_after_a_whole_window_is_another_episode() -> None:
    """Seen: "for 132 s" of a queue that had begun 9 s ago, after a minute without one."""
    for ago, since in ((30.0, 800.0), (62.0, NOW)):
        queue = fired("SCH01", since=800.0)
        memory = {queue.key: Memory(800.0, NOW, NOW, fired=True, ended=NOW - ago)}
        (found,) = last_seconds.with_ended([queue], [queue], {}, memory, SPAN)
        assert (found.since, found.last_true) == (since, None)


@pytest.mark.parametrize(
    ("late", "total", "calm", "chance"),
    [
        (6, 141, 87, False),  # a burst of 3 s, then 40 s in time at 2 requests/s: it was a page for a minute
        (6, 109, 43, True),
        (1, 141, 130, True),
        (20, 30, 10, False),
        (0, 100, 50, True),
        (5, 100, 98, False),
    ],
)
def test_few_late_requests_end_with_enough_that_came_in_time(late: int, total: int, calm: int, chance: bool) -> None:
    assert last_seconds.is_chance(late, total, calm) == chance
