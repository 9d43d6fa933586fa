"""The benchmark's recordings: each gets the verdict of its label, but those of which a miss is known.

The whole benchmark, with its figures, is `make incidents`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.lab.incidents.incident import held_out, load, misses, names
from tests.lab.incidents.judging import Outcome, incident_of, judge, runs, truth
from tests.lab.incidents.recording import CAPTURES, MOST_BYTES

RUNS = runs(CAPTURES)
FIRST_RUNS = [run for run in RUNS if run.stem.endswith("-1")]
KNOWN = misses()


def name(path: Path) -> str:
    return path.stem


@cache
def outcome(path: Path) -> Outcome:
    return judge(path, whole=False)


@pytest.mark.parametrize("path", FIRST_RUNS, ids=name)
def test_the_verdict_is_that_of_the_label(path: Path) -> None:
    score = outcome(path).score
    as_labelled = score.first and score.health and not score.forbidden
    assert as_labelled is (path.stem not in KNOWN), f"told: {score.told}, healthy: {score.healthy}"


@pytest.mark.parametrize("path", FIRST_RUNS, ids=name)
def test_no_two_levers_contradict_each_other(path: Path) -> None:
    assert outcome(path).score.contradictions == ()


def test_every_incident_is_recorded_and_every_recording_is_of_one() -> None:
    assert {incident_of(run).name for run in RUNS} == set(names())
    assert {run.stem for run in RUNS} == {incident_of(run).run for run in RUNS}
    assert set(KNOWN) <= {run.stem for run in RUNS}


def test_recordings_are_small_and_say_what_was_drawn() -> None:
    for run in RUNS:
        assert run.stat().st_size <= MOST_BYTES
        said = truth(run)
        assert said["drawn"] == load(said["incident"], said["seed"]).drawn, run.stem


def test_a_third_is_held_out_and_some_are_healthy() -> None:
    every = [load(name, 1) for name in names()]
    assert len(every) >= 36
    assert sum(held_out().get(one.name) == "" for one in every) * 3 >= len(every)
    assert sum(one.label.healthy == "yes" for one in every) >= 6
    assert sum(one.family == "compound" for one in every) >= 3
