"""What `rules/proof.csv` states of recordings is so."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kvitals.rules.loader import load
from kvitals.rules.proof import proof_of, read_proofs
from tests.captures.proof import fired, recordings
from tests.support.loops import some_of

RECORDINGS = recordings()
SHIPPED = [path for path in RECORDINGS if path.parent.name == "demo"]
STEMS = {path.stem for path in RECORDINGS}
NAMED = sorted({name for proof in read_proofs().values() for name in proof.recordings})
seen = cache(fired)


def test_every_rule_that_ships_has_a_proof() -> None:
    assert read_proofs().keys() == load().rules.keys()


def test_a_proof_names_recordings_that_are_there() -> None:
    for proof in read_proofs().values():
        assert (proof.proof == "modelled") == (not proof.recordings), proof
        assert len(proof.recordings) <= proof.count
    assert set(NAMED) <= STEMS


def test_a_rule_of_ones_own_has_no_proof() -> None:
    assert proof_of("OWN01") is None


@pytest.mark.parametrize("name", some_of(NAMED[::8], 3))
def test_a_recording_fires_the_rules_that_name_it(name: str) -> None:
    """Of all recordings some; the others are checked by `python -m tests.captures.proof`."""
    named = {code for code, proof in read_proofs().items() if name in proof.recordings}
    assert named <= set().union(*(seen(path) for path in RECORDINGS if path.stem == name))


@pytest.mark.parametrize("path", some_of(SHIPPED, 3, ids=lambda path: path.stem))
def test_no_modelled_rule_fires_in_a_recording_that_ships(path: Path) -> None:
    modelled = {code for code, proof in read_proofs().items() if proof.proof == "modelled"}
    assert sorted(seen(path) & modelled) == []
