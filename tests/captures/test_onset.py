"""Soon after an abrupt change an agent names the cause, though its window of 60 s is mostly of the calm before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest

from kvitals.agent.records import ScrapeRecord, decode
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Finding
from kvitals.series.recordings import CaptureReader
from tests.captures.onset import MOMENTS_S, Onset, documents, drawn, labelled, lengthened
from tests.support.loops import some_of

FEW = ("batch_fills_kv-1", "feeds_of_two_sizes-4", "working_set-2")
"""The long window alone reports "cause unknown" of them at 20 s; `python -m tests.captures.onset` judges all."""
ONSETS = [one for one in labelled() if one.capture.stem in FEW]


@pytest.mark.parametrize("onset", some_of(ONSETS, len(FEW), ids=lambda onset: onset.capture.stem))
def test_the_cause_is_named_at_twenty_and_forty_seconds(onset: Onset) -> None:
    found = documents(onset)
    assert sorted(found) == list(MOMENTS_S)
    assert [after for after, document in found.items() if not onset.is_right(document)] == []
    first, later = (document.causes[0] for _, document in sorted(found.items()))
    assert first.code == later.code
    assert first.episode == later.episode
    assert any("its figures cover only this time" in why for why in first.confidence_why)


HIDDEN = {
    "hang_ups_tap-2": (20.0, 40.0),
    "interference-1": (20.0, 40.0),
    "interference-2": (20.0, 40.0),
    "unique_heads-1": (20.0, 40.0),
    "unique_heads-2": (20.0, 40.0),
}
"""Of each the moments at which the long window hides the symptom or the cause: few late among many calm gaps, a share
of aborts, a hit rate that is compared with what was before."""
BY_NAME = {one.capture.stem: one for one in [*labelled(), *drawn()]}


documents_of = cache(lambda name: documents(BY_NAME[name]))


@pytest.mark.parametrize("name", some_of(HIDDEN, 2))
def test_what_the_long_window_hides_is_named(name: str) -> None:
    onset = BY_NAME[name]
    found = documents_of(name)
    assert [after for after in HIDDEN[name] if not onset.is_right(found[after])] == []
    shown = [one for document in found.values() for one in findings_of_the_short_window(document.causes)]
    shown += [one for document in found.values() for one in findings_of_the_short_window(document.symptoms)]
    for finding in shown:
        assert {m.window for m in finding.measures if m.window is not None and m.value is not None} != {60.0}


def findings_of_the_short_window(findings: list[Finding]) -> Iterator[Finding]:
    return (one for one in findings if any("its figures cover only this time" in why for why in one.confidence_why))


def test_a_symptom_of_the_short_window_states_what_is_amiss() -> None:
    document = documents_of("interference-2")[20.0]
    symptom = next(one for one in document.symptoms if one.code == "LAT02")
    assert list(findings_of_the_short_window([symptom]))
    measured = {m.signal: m.value for m in symptom.measures}
    assert (measured["itl_p99_seconds"] or 0.0) > (measured["slo_itl_seconds"] or 0.0)


@pytest.mark.parametrize("name", ["hang_ups_tap-1", "sglang_slots-1"])
def test_counters_go_on_where_a_recording_is_repeated(name: str) -> None:
    onset = BY_NAME[name]
    with CaptureReader.open(onset.capture) as reader:
        recorded = [known for record in reader if (known := decode(record)) is not None]
    pages = [r for r in lengthened(recorded, onset.began, span_of(onset.capture)) if isinstance(r, ScrapeRecord)]
    tokens = [
        float(found[1])
        for page in pages
        if (found := re.search(rb"^(?:vllm|sglang):prompt_tokens_total\{.*\} (\S+)", page.body, re.M))
    ]
    assert len(tokens) > 100
    assert tokens == sorted(tokens)


def test_a_part_has_all_seeds_of_an_incident() -> None:
    kinds = {one.capture.stem.rpartition("-")[0]: one.held_out for one in labelled()}
    assert all(kinds[one.capture.stem.rpartition("-")[0]] == one.held_out for one in labelled())
    assert not any(BY_NAME[name].held_out for name in (*HIDDEN, *FEW))


def test_there_are_such_recordings() -> None:
    assert [one.capture.stem for one in ONSETS] == list(FEW)
