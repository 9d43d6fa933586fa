"""Change points of a recording: where the level of load or latency changed, and what the verdict states about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvitals.diagnoser.cases.notation import WrittenSeries
from kvitals.diagnoser.cases.running import Bench
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.last_regime import last_regime
from kvitals.diagnoser.regimes import MAX_BUCKETS, LevelChange, _split, level_changes
from kvitals.diagnoser.signals import Signals
from kvitals.rules.finding import Regime
from kvitals.rules.loader import load
from kvitals.series.promql import evaluate_range

KNOWLEDGE = load()
_ALONE = Bench(KNOWLEDGE).alone("LAT01")
ALONE = replace(_ALONE, signals={**_ALONE.signals, "ttft_requests": KNOWLEDGE.signals["ttft_requests"]})
START, ROWS = 1_700_000_000.0, 60
"""One row a second."""
END = START + ROWS


def engine(running: str, in_time: str) -> WrittenSeries:
    """An engine with ten first tokens a second under an objective of 2 s.

    running: requests in flight; in_time: the counter of first tokens within 1 s. The others take up to 5 s. Both in the
    notation of case files.
    """
    return WrittenSeries(
        {
            'kvitals_target_up{engine="e"}': f"1x{ROWS}",
            'kvitals_slo_seconds{engine="e",slo="ttft_p99",class=""}': f"2x{ROWS}",
            'kvitals_ttft_seconds_bucket{engine="e",le="1"}': in_time,
            'kvitals_ttft_seconds_bucket{engine="e",le="5"}': f"0+10x{ROWS}",
            'kvitals_ttft_seconds_bucket{engine="e",le="+Inf"}': f"0+10x{ROWS}",
            'kvitals_ttft_seconds_count{engine="e"}': f"0+10x{ROWS}",
            'kvitals_requests_running{engine="e"}': running,
        },
        START,
        1.0,
    )


STEADY = f"4x{ROWS}"
BEGAN = engine("4x30 9x29", "0+10x30 300x29")
ENDED = engine("9x30 4x29", "0x30 10+10x29")


def found(source: WrittenSeries, end: float = END) -> list[LevelChange]:
    return level_changes(
        lambda expr, start, until, step: evaluate_range(expr, source, start, until, step), START, end, 1.0
    )


def regime(source: WrittenSeries) -> Regime | None:
    return last_regime(Judge(ALONE, Signals(ALONE, source)), (), START, END)


def test_a_step_is_found_where_it_is() -> None:
    (change,) = found(BEGAN)
    assert change.at - START == pytest.approx(30, abs=2)
    assert change.engine == "e"


def test_a_steady_engine_has_no_change() -> None:
    assert found(engine(STEADY, f"0+10x{ROWS}")) == []
    assert regime(engine(STEADY, f"0+10x{ROWS}")) is None


def test_a_ramp_has_no_change_point() -> None:
    assert _split(np.arange(40, dtype=np.float64)) is None
    assert _split(np.array([1.0] * 20 + [5.0] * 20)) == 20


def test_noise_has_no_change_point() -> None:
    values = np.random.default_rng(7).poisson(4.0, (200, MAX_BUCKETS)).astype(np.float64)
    assert sum(_split(row) is not None for row in values) <= 4


def test_a_change_at_either_end_is_none() -> None:
    assert found(engine("4x54 9x5", f"0+10x{ROWS}")) == []
    assert found(engine("4x5 9x54", f"0+10x{ROWS}")) == []


def test_a_cause_that_began_in_the_window_is_stated_with_its_time() -> None:
    now = regime(BEGAN)
    assert now is not None and now.before_healthy is True
    assert now.since - START == pytest.approx(30, abs=2)
    assert now.sentence.startswith("Load or latency changed at 22:13:5")
    assert now.sentence.endswith("UTC; before: no trouble found.")
    assert now.changed == ["e: requests in flight 4 requests → 9 requests"]


def test_a_cause_that_ended_in_the_window_is_stated_as_what_was_before() -> None:
    now = regime(ENDED)
    assert now is not None and now.before_healthy is False
    assert "TTFT p99 may be above objective" in now.sentence


def test_another_load_with_the_same_verdict_is_no_other_regime() -> None:
    assert found(engine("4x30 9x29", f"0+10x{ROWS}"))
    assert regime(engine("4x30 9x29", f"0+10x{ROWS}")) is None
    assert regime(engine("4x30 9x29", f"0x{ROWS}")) is None


def test_a_symptom_without_a_cause_is_not_split_where_its_level_changes() -> None:
    assert found(engine(STEADY, "0x30 5+5x29"))
    assert regime(engine(STEADY, "0x30 5+5x29")) is None
