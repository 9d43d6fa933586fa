"""A real vLLM's KV events through the whole pipeline: a heavy tenant's burst is a cascade and is blamed; a healthy
cache has none."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvitals.app.cache import CacheReport, of_recording
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments, judge_recording, verdicts
from kvitals.app.sources.recording_reader import span_of
from kvitals.config import Config, SloTable
from kvitals.rules.loader import load
from tests.support.recordings import judged

FOLDER = Path(__file__).parent / "ledger"
WELL = ["healthy", "healthy_otlp"]
EVICTING = {"KVC03", "KVC04", "KVC05", "KVC06", "TEN01", "TEN02"}
KNOWLEDGE = load()


@cache
def known(name: str) -> CacheReport:
    return of_recording(FOLDER / f"{name}.kvcap", Setup(KNOWLEDGE, Config()))


@cache
def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.truth.json").read_text())
    return found


def burst() -> tuple[float, float, str]:
    """When the heavy tenant's burst began and ended as the driver knows it, and who it is."""
    _, first, last = (phase["first"] for phase in truth("thrash")["phases"])
    requests = truth("thrash")["requests"]
    before = {request["tenant"] for request in requests[:first]}
    heavy = {request["tenant"] for request in requests[first:last]} - before
    assert len(heavy) == 1
    return requests[first]["sent"], requests[last]["sent"], heavy.pop()


@pytest.mark.parametrize("name", WELL)
def test_a_cache_that_is_well_has_no_cascade(name: str) -> None:
    assert known(name).cascades["cascades"] == []
    assert judged(f"ledger/{name}").document.causes == []
    assert judged(f"ledger/{name}").document.healthy is True


def test_a_burst_is_one_cascade_with_its_stages_in_order() -> None:
    (cascade,) = known("thrash").cascades["cascades"]
    began, ended, _ = burst()
    assert [stage["stage"] for stage in cascade["stages"]] == [1, 2, 3, 4]
    assert all(a["began"] <= b["began"] for a, b in pairwise(cascade["stages"]))
    assert began - 2 <= cascade["began"] <= began + 3
    assert cascade["stages"][1]["said"] <= began + 5
    assert ended <= cascade["ended"] <= ended + 15
    assert cascade["state"] == "ended"


def test_the_heavy_tenant_set_it_off_and_is_blamed() -> None:
    (cascade,) = known("thrash").cascades["cascades"]
    _, _, heavy = burst()
    assert (cascade["trigger"]["kind"], cascade["trigger"]["tenant"]) == ("tenant", heavy)
    assert cascade["blamed"]["tenant"] == heavy
    assert cascade["blamed"]["share"] >= 0.9
    assert heavy not in {one["tenant"] for one in cascade["suffered"]}


def test_what_was_lost_is_what_the_ledger_counts() -> None:
    (cascade,) = known("thrash").cascades["cascades"]
    (engine,) = known("thrash").cache["engines"]
    assert cascade["refaulted_tokens"] == pytest.approx(engine["refaulted_tokens"], rel=0.02)
    assert sum(one["tokens"] for one in cascade["caused"]) == pytest.approx(cascade["refaulted_tokens"], rel=0.02)
    assert 1 < cascade["prefill_seconds"] < 30


def test_triage_names_the_neighbour_and_notes_what_makes_nobody_wait() -> None:
    document = judged("ledger/thrash").document
    _, _, heavy = burst()
    first = document.causes[0]
    assert first.code == "TEN02"
    assert document.healthy is False
    assert "KVC06" in {note.code for note in document.notes}  # no first token is late, so it harms nobody by itself
    (who,) = [e for e in first.evidence if e.title.startswith("Noisy tenant")]
    assert {line.labels["by"] for line in who.lines} == {heavy}


def test_triage_says_of_the_cascade_what_the_ledger_has_of_it() -> None:
    """Under way while the ledger's is open, and no longer at the end, where the ledger's has ended."""
    (cascade,) = known("thrash").cascades["cascades"]
    assert cascade["state"] == "ended"
    assert "KVC05" not in {cause.code for cause in judged("ledger/thrash").document.causes}
    path, setup = FOLDER / "thrash.kvcap", Setup(KNOWLEDGE, Config())
    meanwhile = judge_recording(path, setup, Moments(at=cascade["ended"] - 3.0)).document
    assert "KVC05" in {cause.code for cause in meanwhile.causes}


def test_nothing_is_said_before_the_burst() -> None:
    began, _, _ = burst()
    first, _ = span_of(FOLDER / "thrash.kvcap")
    assert began - first > 20
    for t, document in verdicts(FOLDER / "thrash.kvcap", Setup(KNOWLEDGE, Config())):
        if t < began:
            assert not EVICTING & {cause.code for cause in document.causes}


def test_a_warning_comes_before_a_tight_objective_is_missed() -> None:
    config = Config(slo=SloTable(ttft_p99_seconds=0.25))
    (cascade,) = of_recording(FOLDER / "thrash.kvcap", Setup(KNOWLEDGE, config)).cascades["cascades"]
    assert cascade["alarm"] is not None
    assert cascade["lead_seconds"]["first"] == pytest.approx(cascade["alarm"] - cascade["stages"][0]["said"])
