"""The verdicts on recorded drawn incidents, whose truth is what an intervention changed (docs/decisions/0018)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.draw.play import RESULTS
from tests.lab.draw.score import Scored, read, score

MISSED = {
    1002: "neighbours and a flood: the engine waits for a CPU 69 % of the time, and a queue for slots leads",
    1015: "its engine core is stopped between two requests, so the gauges read 0 and only a probe shows it",
    5001: "one slot and long answers: more slots took away half of the harm, and fewer long answers all of it",
    6004: "35 of 251 first tokens were late at the clients, none by the engines' own count",
    5015: "5 of 185 first tokens were late at the clients, none by the engine's own count",
}
"""By seed: the verdict is wrong, and why. A miss that is mended leaves the table."""

EXTRA: dict[int, str] = {}
"""By seed: a further cause is named that is not one of the incident's faults, and why."""


def few() -> list[Path]:
    """The known misses, and each eighth of the others."""
    missed = {f"drawn-{seed}" for seed in (*MISSED, *EXTRA)}
    captures = read(RESULTS)
    return [c for c in captures if c.stem in missed] + [c for c in captures if c.stem not in missed][::8]


@pytest.fixture(
    scope="module", params=[few, pytest.param(lambda: read(RESULTS), marks=pytest.mark.system)], ids=["few", "all"]
)
def scored(request: pytest.FixtureRequest) -> list[Scored]:
    return [score(capture) for capture in request.param()]


def test_all_drawn_incidents_are_there() -> None:
    assert len(list(read(RESULTS))) >= 46
    assert len(few()) >= 8


def test_the_first_cause_and_the_health_are_right(scored: list[Scored]) -> None:
    wrong = {s.played.seed: (s.told, s.healthy) for s in scored if s.first is False or s.health is False}
    assert wrong.keys() == MISSED.keys(), wrong


def test_no_other_cause_is_a_page_or_a_ticket(scored: list[Scored]) -> None:
    extra = {s.played.seed: s.wrong for s in scored if s.wrong}
    assert extra.keys() == EXTRA.keys(), extra
