"""What `make fuzz` does for minutes: that it still can, and that what broke something once does not any more."""

from __future__ import annotations

import os
import random
import time
import warnings
from pathlib import Path

import pytest

from kvitals.rules.loader import Knowledge, _load_directory
from tests.fuzz.__main__ import kept
from tests.fuzz.attacked import MODULES, PAGES, Target
from tests.fuzz.parsers import TARGETS

A_FEW = 6


def test_every_attack_is_listed_with_what_leads_it() -> None:
    assert MODULES.keys() == {*PAGES, *TARGETS}


@pytest.mark.parametrize("name", TARGETS)
def test_the_kept_corpus_and_a_few_mutations(name: str) -> None:
    target, rng = TARGETS[name], random.Random(3)
    corpus = kept(name)
    assert corpus
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one in corpus:
            target.attack(one)
        for one in rng.choices(target.seeds(), k=A_FEW):
            target.attack(one)
            target.attack(target.mutate(one, rng))


def _works(data: bytes) -> None:
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass


def test_an_input_that_takes_too_much_cpu_time_fails() -> None:
    target = Target(_works, list, lambda data, rng: data, cpu_seconds=0.01)
    with pytest.raises(AssertionError, match="s of CPU for one input of 3 bytes"):
        target.attack(b"abc")
    target._replace(cpu_seconds=60.0).attack(b"abc")


def test_a_directory_of_rules_may_hold_what_is_no_file(tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    codes.mkdir()
    os.mkfifo(codes / "pipe.yaml")
    (codes / "zero.yaml").symlink_to("/dev/zero")
    (codes / "nowhere.yaml").symlink_to(tmp_path / "nowhere")
    (codes / "itself.yaml").symlink_to(codes / "itself.yaml")
    (codes / "folder.yaml").mkdir()
    (codes / "large.yaml").write_bytes(b"a: " + b"x" * 300_000)
    known = Knowledge()
    _load_directory(known, tmp_path)
    assert [problem.file.name for problem in known.problems] == sorted(path.name for path in codes.iterdir())
    assert not known.rules
