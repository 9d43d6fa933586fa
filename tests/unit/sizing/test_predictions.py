"""What levers are predicted to do: on recorded incidents, and where nothing can tell."""

from __future__ import annotations

import functools
import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import judge_recording
from kvitals.config import Config
from kvitals.rules.finding import Finding, LeverAdvice, PredictedValue, Triage
from kvitals.rules.loader import Knowledge, load
from kvitals.ui.cli.render import show

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "app" / "demo"


@functools.cache
def judged(path: Path) -> Triage:
    return judge_recording(path, Setup(load([]), Config()), step=15.0).document


def advised(document: Triage, lever: str) -> LeverAdvice:
    found = [a for f in (*document.causes, *document.symptoms) for a in f.levers if a.lever == lever]
    assert found, f"{lever} is not advised"
    return found[0]


def effect(advice: LeverAdvice, metric: str) -> PredictedValue:
    return next(one for one in advice.predicted if one.metric == metric)


def test_more_slots_take_in_who_waits() -> None:
    """14.6 requests at a time on 2 slots; with 16 of them nobody has to wait."""
    advice = advised(judged(DEMO / "few_slots.kvcap"), "raise-max-num-seqs")
    waiting, queue = effect(advice, "waiting_capacity_avg"), effect(advice, "queue_mean_seconds")
    assert waiting.from_ == pytest.approx(12.6, abs=0.2) and waiting.to == 0
    assert queue.from_ == pytest.approx(0.97, abs=0.02) and queue.to == 0
    assert queue.text == "970 ms → 0 ms at best"


def test_a_prediction_is_told_to_people_and_programs() -> None:
    document = judged(DEMO / "few_slots.kvcap")
    out = io.StringIO()
    show(document, Console(file=out, width=160))
    assert "expect: queue time mean 970 ms → 0 ms at best" in out.getvalue()
    told = msgspec.json.decode(msgspec.json.encode(advised(document, "raise-max-num-seqs")))["predicted"][0]
    assert {"metric", "from", "to", "method", "error"} <= told.keys()


LEDGER = ROOT / "tests" / "captures"


def findings(document: Triage) -> list[Finding]:
    return [*document.causes, *document.symptoms]


def anywhere(*levers: str) -> Knowledge:
    """All that is known, with levers that no hardware forbids."""
    known = load([])
    free = {lever: msgspec.structs.replace(known.levers[lever], possible="") for lever in levers}
    return replace(known, levers={**known.levers, **free})


def test_look_ups_are_replayed_with_the_lever_pulled() -> None:
    """On 164 blocks: 88 % of what was asked could be found. The curve has 35 % at that size, 72 % at twice it."""
    capture = LEDGER / "incidents" / "working_set_events-1.kvcap"
    assert "kv-quantization" not in {a.lever for f in findings(judged(capture)) for a in f.levers}  # of a CPU
    document = judge_recording(capture, Setup(anywhere("kv-quantization", "host-tier"), Config()), step=15.0).document
    found = effect(advised(document, "kv-quantization"), "prefix_hit_ratio")
    assert 0.25 < found.from_ < 0.4 and 0.6 < found.to < 0.8
    assert found.error is not None and found.error < 0.05
    room = effect(advised(document, "kv-quantization"), "kv_capacity_tokens")
    assert (room.to, room.bound) == (2 * room.from_, "about")
    more = effect(advised(document, "raise-kv-budget"), "prefix_hit_ratio")
    assert found.from_ < more.to < found.to  # a quarter more blocks
    tier = effect(advised(document, "host-tier"), "prompt_found_ratio")
    assert tier.to > found.to


def test_look_ups_are_replayed_under_another_routing() -> None:
    """Two engines in turn: the sessions of each would have found their prefixes on one."""
    document = judged(LEDGER / "incidents" / "in_turn-1.kvcap")
    found = effect(advised(document, "session-sticky-routing"), "node_prefix_hit_ratio")
    assert found.bound == "about" and found.to > found.from_ + 0.15


def test_nothing_is_predicted_where_nothing_can_tell() -> None:
    """What an engine's restart, or another pool, brings is in no formula."""
    document = judged(LEDGER / "incidents" / "in_turn-1.kvcap")
    every = [a for f in (*document.causes, *document.symptoms) for a in f.levers]
    assert any(not a.predicted for a in every)
    assert all(load([]).levers[a.lever].predicts or load([]).levers[a.lever].replay for a in every if a.predicted)


@pytest.mark.parametrize("lever", [one for one in load([]).levers.values() if one.predicts], ids=lambda one: one.name)
def test_a_lever_predicts_what_it_moves(lever: object) -> None:
    """A prediction is of a signal of its own scope, and says how it was come by."""
    known = load([])
    for one in lever.predicts:  # type: ignore[attr-defined]
        assert known.signals[one.signal].better or one.signal
        assert one.how.rstrip().endswith(".")
        assert lever.estimate.method != "none"  # type: ignore[attr-defined]
