"""The benchmark's recordings: each gets the verdict of its label, but for misses that are known.

`make test` judges twelve seconds of each third incident, `make system` of the others and a recording of each family
as a whole. The whole
benchmark, with its figures, is `make incidents`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.looks import truth
from tests.lab.incidents.incident import BASELINE_S, INCIDENT_S, held_out, load, misses, names
from tests.lab.incidents.judging import Score, cold, incident_of, runs, warm
from tests.lab.incidents.recording import CAPTURES, MOST_BYTES
from tests.support.loops import some_of

RUNS = runs(CAPTURES)
FIRST_RUNS = [run for run in RUNS if run.stem.endswith("-1")]
KNOWN = misses()
USUAL_S = BASELINE_S + INCIDENT_S


def name(path: Path) -> str:
    return path.stem


def is_as_labelled(score: Score) -> bool:
    return score.first and score.health and not score.forbidden


def one_of_each_family() -> list[Path]:
    """And those that took a longer recording to be known at all."""
    by_family = {incident_of(run).family: run for run in reversed(FIRST_RUNS)}
    longer = [run for run in FIRST_RUNS if incident_of(run).baseline_s + incident_of(run).incident_s > USUAL_S]
    return sorted({*by_family.values(), *longer})


@pytest.mark.parametrize("path", some_of(FIRST_RUNS, 3, ids=name))
def test_twelve_seconds_of_it_are_enough_for_the_verdict(path: Path) -> None:
    score = cold(path)
    assert is_as_labelled(score) is ((path.stem, "cold") not in KNOWN), f"{score.told}, healthy: {score.healthy}"
    assert score.contradictions == ()


@pytest.mark.system
@pytest.mark.parametrize("path", one_of_each_family(), ids=name)
def test_with_what_was_before_it_the_verdict_is_that_of_the_label(path: Path) -> None:
    score = warm(path)
    assert is_as_labelled(score) is ((path.stem, "warm") not in KNOWN), f"{score.told}, healthy: {score.healthy}"
    assert score.contradictions == ()


def test_every_incident_is_recorded_and_every_recording_is_of_one() -> None:
    assert {incident_of(run).name for run in RUNS} == set(names())
    assert {run.stem for run in RUNS} == {incident_of(run).run for run in RUNS}
    assert {run for run, _ in KNOWN} <= {run.stem for run in RUNS}


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
