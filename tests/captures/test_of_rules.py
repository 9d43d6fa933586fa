"""Recordings of real engines that were made to see one rule fire: it fires, and what else their label says is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.looks import truth
from tests.captures.proof import fired
from tests.lab.incidents.incident import OF_RULES, load, names
from tests.lab.incidents.judging import incident_of, runs, warm
from tests.lab.incidents.recording import MOST_BYTES

RUNS = runs(Path(__file__).with_name("of_rules"))


def test_every_incident_of_a_rule_is_recorded_and_names_its_rule() -> None:
    assert {incident_of(run).name for run in RUNS} == set(names(OF_RULES))
    for run in RUNS:
        said = truth(run)
        assert run.stem == incident_of(run).run
        assert run.stat().st_size <= MOST_BYTES
        assert said["drawn"] == load(said["incident"], said["seed"]).drawn
        assert incident_of(run).label.also


@pytest.mark.system
@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_its_rule_fires_on_the_recording(path: Path) -> None:
    assert set(incident_of(path).label.also) <= fired(path)


@pytest.mark.system
@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_the_verdict_is_that_of_its_label(path: Path) -> None:
    score = warm(path)
    assert score.first and score.health, f"{score.told}, healthy: {score.healthy}"
    assert score.missing == score.extra == score.forbidden == score.contradictions == ()
