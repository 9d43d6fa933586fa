"""The tutorial, step by step: its commands run as they are written, and print the lines that it states."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

from tests.support.command import ROOT, answer

TUTORIAL = ROOT / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLUMNS = 80
STEPS = 6
EXIT_CODES = (0, 1, 1, 0, 1, 1)


def test_every_step_prints_what_the_tutorial_states() -> None:
    plain = [text for language, text in FENCE.findall(TUTORIAL.read_text(encoding="utf-8")) if not language]
    steps = [(asked, stated) for asked, stated in pairwise(plain) if asked.startswith("kvitals ")]
    assert len(plain) == 2 * len(steps) == 2 * STEPS  # every command has its answer, and no answer is left out
    for (asked, stated), code in zip(steps, EXIT_CODES, strict=True):
        (line,) = asked.strip().splitlines()
        found = answer(shlex.split(line)[1:], COLUMNS)
        assert found.code == code, f"{line}\n{found.err}"
        printed, at = _plain(found.out), 0
        for words in map(_plain, stated.strip().splitlines()):
            place = printed.find(words, at)
            assert place >= 0, f"`{words}` is not printed by `{line}`, or not there:\n{found.out}"
            at = place + len(words)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
