"""Soon after an abrupt change an agent names the cause, though its window of 60 s is mostly of the calm before."""

from __future__ import annotations

import pytest

from tests.captures.onset import MOMENTS_S, Onset, documents, labelled

FEW = ("batch_fills_kv-1", "feeds_of_two_sizes-4", "working_set-2")
"""The long window alone reports "cause unknown" of them at 20 s; `python -m tests.captures.onset` judges all."""
ONSETS = [one for one in labelled() if one.capture.stem in FEW]


@pytest.mark.parametrize("onset", ONSETS, ids=lambda onset: onset.capture.stem)
def test_the_cause_is_named_at_twenty_and_forty_seconds(onset: Onset) -> None:
    found = documents(onset)
    assert sorted(found) == list(MOMENTS_S)
    assert [after for after, document in found.items() if not onset.is_right(document)] == []
    first, later = (document.causes[0] for _, document in sorted(found.items()))
    assert first.code == later.code
    assert first.episode == later.episode
    assert any("its figures are of a longer window" in why for why in first.confidence_why)


def test_there_are_such_recordings() -> None:
    assert [one.capture.stem for one in ONSETS] == list(FEW)
