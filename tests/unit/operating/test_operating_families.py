"""Operating points and binding constraints as families of the agent: in recordings, after a restart, and at no cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvitals.app.derived_metrics.operating_families import Operating, past_steps
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import judge_recording
from kvitals.config import Config
from kvitals.diagnoser.entities import ENTITIES
from kvitals.rules.loader import load
from kvitals.series.promql import Vector, evaluate
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

ROOT = Path(__file__).parents[3]
KNOWLEDGE = load()
BOUNDS = ("0.1", "0.5", "1.0", "+Inf")
SERVERS = 8
HOUR = 3600.0
START = 1.7e9


def shares_in(recording: str) -> dict[str, float]:
    judged = judge_recording(ROOT / recording, Setup(KNOWLEDGE, Config()))
    at = judged.document.window.end
    found = evaluate("kvitals_binding_share", judged.pipeline.node.window, at)
    assert isinstance(found, Vector)
    return {labels["constraint"]: value for labels, value in found}


@pytest.mark.parametrize(
    ("recording", "first"),
    [
        ("app/demo/few_slots.kvcap", "slots"),
        ("app/demo/heavy_tenant.kvcap", "kv"),
        ("app/demo/healthy.kvcap", "arrival"),
    ],
)
def test_what_binds_is_a_family_in_a_recording(recording: str, first: str) -> None:
    shares = shares_in(recording)
    assert max(shares, key=lambda name: shares[name]) == first
    assert sum(shares.values()) == pytest.approx(1)


def test_all_that_is_written_is_declared() -> None:
    window = filled(HOUR)
    operating = Operating(window)
    names = said(operating, window, START + HOUR).keys()
    assert {labels[METRIC_NAME] for labels in names} <= KNOWLEDGE.families.keys()
    assert {labels["pool"] for labels in names} == {"chat"}


def test_a_knee_is_told_when_load_spans_enough_and_not_before() -> None:
    window = filled(HOUR)
    knee = Labels({METRIC_NAME: "kvitals_knee_concurrency", "engine": "a", "pool": "chat"})
    assert said(Operating(window), window, START + HOUR)[knee] == pytest.approx(SERVERS, rel=0.15)
    short = filled(120)
    assert knee not in said(Operating(short), short, START + 120)


def test_after_a_restart_the_past_comes_from_history() -> None:
    history, window = filled(HOUR), filled(HOUR, since=HOUR - 120)
    operating = Operating(window)
    knee = Labels({METRIC_NAME: "kvitals_knee_concurrency", "engine": "a", "pool": "chat"})
    assert knee not in said(operating, window, START + HOUR - 61)
    operating.take_past(past_steps(history, START + HOUR - 61, 5.0))
    assert knee in said(operating, window, START + HOUR)


def test_an_engine_that_is_gone_is_told_no_more() -> None:
    window = filled(HOUR)
    operating = Operating(window)
    assert said(operating, window, START + HOUR)
    assert not said(operating, window, START + HOUR + 400)


def said(operating: Operating, window: Window, at: float) -> dict[Labels, float]:
    operating.cycle(at)
    names = [
        name for name in KNOWLEDGE.families if name.startswith(("kvitals_knee", "kvitals_binding", "kvitals_c_max"))
    ]
    found = {}
    for name in names:
        vector = evaluate(name, window, at, lookback=20)
        assert isinstance(vector, Vector)
        found.update(dict(vector))
    return found


def filled(seconds: float, since: float = 0.0) -> Window:
    """An engine that fills up at SERVERS requests, under a load that goes up and down; rows every 5 s."""
    window = Window(retention=2 * HOUR, max_series=1000)
    group = window.group("engine")
    engine = {"engine": "a", "pool": "chat"}
    names = [
        {METRIC_NAME: ENTITIES}, {METRIC_NAME: "kvitals_requests_running"}, {METRIC_NAME: "kvitals_requests_waiting"},
        {METRIC_NAME: "kvitals_generation_tokens_total"}, {METRIC_NAME: "kvitals_requests_finished_total"},
        *({METRIC_NAME: "kvitals_ttft_seconds_bucket", "le": bound} for bound in BOUNDS),
    ]  # fmt: skip
    columns = [group.column(Labels({**engine, **name})) for name in names]
    assert None not in columns
    numbers = [column for column in columns if column is not None]
    done = 0.0
    for t in np.arange(0.0, seconds + 1, 5.0).tolist():
        load = 1 + 15 * (0.5 - 0.5 * np.cos(2 * np.pi * t / 900))
        done += 5 * min(load, SERVERS)
        counts = [done * (0.999 if load <= SERVERS else 0.9), done, done, done]
        if t >= since:
            row = [1.0, min(load, SERVERS), max(load - SERVERS, 0.0), 10 * done, done, *counts]
            group.append(START + t, numbers, np.array(row))
    return window
