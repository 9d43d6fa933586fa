"""The curve that is kept up as accesses come: the whole one's, within its resolution, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvitals.app.trace_files import read_trace
from kvitals.kvcache.accesses import Accesses, Builder, empty
from kvitals.kvcache.reuse import Curve, ReuseCurve
from kvitals.kvcache.whatif import ReplayPlan, what_if

TRACE = Path(__file__).parents[2] / "fixtures" / "mooncake" / "conversation-1500.jsonl.gz"
AGENTS = Path(__file__).parents[2] / "fixtures" / "traces" / "agents.jsonl.gz"


@pytest.fixture(scope="module")
def trace() -> Accesses:
    return read_trace(TRACE).accesses


def kept_up(trace: Accesses, reuse: ReuseCurve, at_a_time: int = 100) -> Curve:
    for begin in range(0, len(trace), at_a_time):
        reuse.feed(trace.take(np.arange(begin, min(begin + at_a_time, len(trace)))))
    found = reuse.curve()
    assert found is not None
    return found


@pytest.mark.parametrize("at_a_time", [1, 700, 1500])
def test_it_is_the_whole_curve(trace: Accesses, at_a_time: int) -> None:
    found = kept_up(trace, ReuseCurve(30_000), at_a_time)
    some = [10, 100, *range(200, len(found.capacity), 50), len(found.capacity) - 1]
    some = [i for i in some if i < len(found.capacity)]
    rows = what_if(trace, ReplayPlan(tuple(int(found.capacity[i]) for i in some)))
    assert found.token_hit_rate[some] == pytest.approx([row.token_hit_rate for row in rows], abs=1e-9)
    assert found.rate == 1.0
    assert not found.error.any()
    assert found.references == trace.references


def test_a_sample_is_near_it_and_says_how_near(trace: Accesses) -> None:
    exact = kept_up(trace, ReuseCurve(30_000))
    off = []
    for seed in range(5):
        found = kept_up(trace, ReuseCurve(30_000, max_blocks=4_096, seed=seed))
        assert 0.1 < found.rate < 0.13
        off.append(np.abs(found.token_hit_rate - exact.token_hit_rate))
        assert (off[-1] <= 2.5 * found.error + 0.002).all()
    assert np.mean(off) < 0.01


@pytest.mark.parametrize("name", ["conversation", "agents"])
def test_intervals_of_the_curve_hold(trace: Accesses, name: str) -> None:
    """At least 93% of the exact hit rates are in their interval. On agents' sessions it was 20%, 4 points low."""
    accesses = trace if name == "conversation" else read_trace(AGENTS).accesses
    inside, exact = [], np.zeros(0)
    for seed in range(6):
        found = kept_up(accesses, ReuseCurve(16_000, max_blocks=1_024 + 1_600, seed=seed), 500)
        some = np.flatnonzero(found.capacity >= 500)[::32]
        if not len(exact):
            rows = what_if(accesses, ReplayPlan(tuple(found.capacity[some].tolist())))
            exact = np.array([row.token_hit_rate for row in rows])
        inside.append(np.abs(found.token_hit_rate[some] - exact) <= found.error[some])
        assert found.error[some].mean() < 0.03  # an interval that says something
    assert np.mean(inside) >= 0.93


def test_memory_is_bounded(trace: Accesses) -> None:
    reuse = ReuseCurve(2_000, max_blocks=2_000)
    found = kept_up(trace, reuse)
    assert found.attainable == pytest.approx(what_if(trace, ReplayPlan((2_000,)))[0].token_hit_rate, abs=0.001)
    assert len(reuse._held) == 2_000
    assert reuse._waits == 0


def test_too_little_makes_no_curve(trace: Accesses) -> None:
    reuse = ReuseCurve(1_000)
    assert reuse.curve() is None
    reuse.feed(empty(512))
    reuse.feed(trace.take(np.arange(20)))
    assert reuse.curve() is None


def test_what_is_old_fades() -> None:
    """An hour in which all is said twice, then one in which nothing is."""
    again, once = Builder(16, 100_000), Builder(16, 100_000)
    for i in range(2000):
        again.add(float(i), 32, [i // 2 * 2, i // 2 * 2 + 1], "trace")
        once.add(3600.0 + i, 32, [10_000 + 2 * i, 10_001 + 2 * i], "trace")
    for half_life, expected in ((None, 0.25), (600.0, 0.015)):
        reuse = ReuseCurve(1_000, half_life=half_life)
        reuse.feed(again.accesses())
        first = reuse.curve()
        reuse.feed(once.accesses())
        second = reuse.curve()
        assert first is not None
        assert second is not None
        assert first.attainable == pytest.approx(0.5)
        assert second.attainable == pytest.approx(expected, abs=0.01)


def test_a_chain_longer_than_all_that_is_remembered() -> None:
    long = Builder(16, 1_000_000)
    for i in range(3):
        long.add(float(i), 16 * 50_000, list(range(50_000)), "trace")
    reuse = ReuseCurve(2_048, max_blocks=2_048)
    reuse.feed(long.accesses())
    found = reuse.curve()
    assert found is not None
    assert found.attainable == pytest.approx(2_048 / 50_000 * 2 / 3, rel=0.01)


@pytest.mark.parametrize("wrong", [{"largest": 0}, {"largest": 9, "max_blocks": 9}, {"largest": 9, "half_life": 0.0}])
def test_what_can_not_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="largest must be"):
        ReuseCurve(**wrong)
