"""The draw of changes, and what is required of the answers."""

from collections import Counter
from typing import Any

from .__main__ import line, report
from .plays import CHANGES, RIGHT, drawn
from .stand_prove import Played


def played(kind: str = "harmful", **other: Any) -> Played:
    given: dict[str, Any] = {
        "name": "n", "kind": kind, "right": RIGHT[kind], "verdict": RIGHT[kind], "state": "rolled back",  # type: ignore[index]
        "seconds": 100.0, "harmed_seconds": 40.0, "is_back": True, "conclusion": "", "document": {"guard_rail": "TTFT"},
        "progress": [],
    }  # fmt: skip
    return Played(**{**given, **other})


def test_a_seed_draws_the_same_changes_each_time_and_as_many_of_each_kind() -> None:
    first = list(drawn(7, 12))
    assert first == list(drawn(7, 12)) != list(drawn(8, 12))
    assert Counter(change.kind for _, change in first) == dict.fromkeys(RIGHT, 12)
    assert len({number for number, _ in first}) == 36


def test_what_is_changed_is_what_its_kind_says() -> None:
    for change in CHANGES:
        same = {name for name, value in change.changed.items() if change.flags.get(name) == value}
        assert not same, change.name


def test_a_false_worked_a_late_return_and_an_engine_that_is_not_back_fail_the_run() -> None:
    good = [played() for _ in range(3)]
    assert report(1, good)
    assert not report(1, [])
    assert not report(1, [*good, played("placebo", verdict="worked")])
    assert not report(1, [*good, played(harmed_seconds=61.0)])
    assert not report(1, [*good, played(is_back=False)])
    assert not report(1, [*good, played(verdict="undecided"), played(verdict="undecided")])
    assert "40 s until back" in line(played())
