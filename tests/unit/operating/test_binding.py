"""What binds an engine, on looks where it is known; and in recordings of engines of which one limit was too small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvitals.diagnoser.binding import CONSTRAINTS, Binding, binding, over_known
from kvitals.series.types import Labels
from kvitals.ui.cli.main import main

ROOT = Path(__file__).parents[3]
CALM = {
    "up": 1.0, "running": 3.0, "waiting": 0.0, "capacity": 0.0, "deferred": 0.0, "kv": 0.3, "preemptions": 0.0,
    "step_tokens": 20.0, "steps": 50.0, "tokens": 100.0, "slots": 8.0, "budget": 512.0,
}  # fmt: skip
LOOKS = 20


def bound(**told: float | list[float] | None) -> Binding:
    looks = {}
    for name, value in {**CALM, **told}.items():
        if value is not None:
            looks[name] = np.broadcast_to(np.array(value, dtype=np.float64), (LOOKS,)).copy()
    return binding(Labels({"engine": "a"}), looks, 1.0)


@pytest.mark.parametrize(
    ("told", "first"),
    [
        ({}, "arrival"),
        ({"up": 0.0, "running": None}, "fault"),
        ({"steps": 0.0, "tokens": 0.0}, "fault"),
        ({"running": 8.0, "waiting": 5.0, "capacity": 5.0}, "slots"),
        ({"running": 8.0, "waiting": 5.0, "capacity": None, "deferred": None}, "slots"),
        ({"running": 5.0, "waiting": 5.0, "capacity": 5.0, "kv": 0.7}, "kv"),
        ({"running": 7.0, "waiting": 5.0, "capacity": 5.0, "kv": 0.05}, "slots"),  # one fell free since the last step
        ({"running": 5.0, "waiting": 5.0, "capacity": 5.0, "slots": None, "kv": 0.95}, "kv"),
        ({"preemptions": 0.5}, "kv"),
        ({"step_tokens": 500.0}, "token_budget"),
        ({"step_tokens": 500.0, "waiting": 3.0, "capacity": 3.0}, "token_budget"),
        ({"waiting": 3.0, "deferred": 3.0}, "deferral"),
        ({"running": 5.0, "waiting": 5.0, "capacity": 5.0, "slots": None, "kv": None}, "slots"),  # a plateau
        ({"running": [5.0, 4.0] * 5 + [6.0, 3.0] * 5, "waiting": 5.0, "capacity": 5.0, "slots": None}, "room"),
    ],
)
def test_one_limit_at_a_time(told: dict[str, float | list[float] | None], first: str) -> None:
    if told.get("running", 0) is None:
        told = {**told, "running": float("nan")}
    found = bound(**told)
    assert found.first == first
    assert found.shares[found.first] == 1.0


def test_shares_are_of_time_and_add_up() -> None:
    found = bound(running=[8.0] * 5 + [2.0] * 15, waiting=[4.0] * 5 + [0.0] * 15, capacity=[4.0] * 5 + [0.0] * 15)
    assert found.shares["slots"] == 0.25
    assert found.shares["arrival"] == 0.75
    assert set(found.shares) == set(CONSTRAINTS)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_the_slots_are_said_to_be_guessed_from_a_plateau() -> None:
    told = bound(running=8.0, waiting=2.0, capacity=2.0)
    guessed = bound(running=8.0, waiting=2.0, capacity=2.0, slots=None)
    assert (told.slots, told.slots_from) == (8.0, "told")
    assert (guessed.slots, guessed.slots_from) == (8.0, "plateau")


@pytest.mark.parametrize(
    ("recording", "first"),
    [
        ("app/demo/few_slots.kvcap", "slots"),
        ("app/demo/heavy_tenant.kvcap", "kv"),
        ("app/demo/healthy.kvcap", "arrival"),
        ("tests/captures/others/dynamo_overload.kvcap", "slots"),
    ],
)
def test_recordings(recording: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The second half of each is the trouble, of a healthy one more of the same."""
    with pytest.raises(SystemExit):
        main(["knee", str(ROOT / recording), "--json"])
    for engine in json.loads(capsys.readouterr().out):
        shares = engine["binding"]["shares"]
        besides = {name: share for name, share in shares.items() if name not in ("arrival", "unknown")}
        largest = max(besides, key=lambda name: besides[name])
        assert (largest if besides[largest] > 0.05 else "arrival") == first
        assert sum(shares.values()) == pytest.approx(1, abs=0.001)


def test_shares_are_of_the_time_of_which_it_is_known_what_bound() -> None:
    assert over_known({"slots": 0.45, "arrival": 0.05, "unknown": 0.5}) == {"slots": 0.9, "arrival": 0.1}
    assert over_known({"slots": 0.05, "unknown": 0.95}) == {}
