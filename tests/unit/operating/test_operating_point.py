"""The operating point on queues whose knees are known, and what it says where data do not reach."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.diagnoser.change_effect import ConfigurationChange, SettingChange
from kvitals.diagnoser.operating_point import Curves, fit_curves, operating_point, quantiles, under_configuration
from kvitals.diagnoser.steps import Counts, Steps, join_steps, steps_after, together
from kvitals.series.types import Floats, Labels

ENGINE = Labels({"engine": "a"})
BOUNDS = np.array([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, np.inf])


def erlang_c(servers: int, load: float) -> float:
    """The share of arrivals that wait in M/M/c with an offered load of `load` servers."""
    below = sum(load**k / math.factorial(k) for k in range(servers))
    top = load**servers / math.factorial(servers) * servers / (servers - load)
    return top / (below + top)


def mmc(
    servers: int, service: float, shares: Floats, seconds: float = 30.0, noise: float = 0.0, seed: int = 0
) -> Steps:
    """Steps of an M/M/c queue at these shares of its capacity. A first token comes when a request has waited.

    Its curve has the asymptotes N / service and servers / service, so its knee is at `servers` requests.
    """
    random = np.random.default_rng(seed)
    running, waiting, rate, counts = [], [], [], []
    for share in shares.tolist():
        load = share * servers
        queued = erlang_c(servers, load) * share / (1 - share)
        arrivals = load / service
        running.append(load)
        waiting.append(queued)
        rate.append(arrivals * (1 + noise * random.standard_normal()))
        drain = (servers - load) / service
        slower = erlang_c(servers, load) * np.exp(-drain * BOUNDS[:-1])
        counts.append(np.append(1 - slower, 1.0) * arrivals * seconds)
    requests, size = np.array(rate), len(shares)
    times = 1e9 + seconds * np.arange(1, size + 1)
    residence = np.array(running) + np.array(waiting)
    found = {"ttft_p99": Counts(BOUNDS, np.array(counts))}
    return Steps(
        ENGINE, seconds, times, np.array(running), np.array(waiting), requests * 10, requests, residence, found,
        np.ones(size),
    )  # fmt: skip


RISE = np.concatenate([np.linspace(0.05, 0.9, 30), np.linspace(0.9, 0.99, 30)])
SHARES = np.concatenate([RISE, RISE[::-1]])
"""A day: load goes up, and down."""


@settings(max_examples=25, deadline=None)
@given(servers=st.integers(4, 60), service=st.floats(0.05, 20), seed=st.integers(0, 1000))
def test_the_knee_of_a_queue_is_its_servers(servers: int, service: float, seed: int) -> None:
    found = operating_point(mmc(servers, service, SHARES, noise=0.02, seed=seed), {}, draws=40)
    assert found.knee is not None, found.missing
    assert found.knee.concurrency.value == pytest.approx(servers, rel=0.15)
    assert found.knee.most == pytest.approx(10 * servers / service, rel=0.1)
    assert found.knee.concurrency.low <= found.knee.concurrency.value <= found.knee.concurrency.high


def curve(alone: float, knee: float, sharpness: float, growth: float = 0.0) -> Curves:
    """A curve of an engine that does `alone` of one request, and has its knee there."""
    floor = (knee**-sharpness - growth**sharpness) ** (-1 / sharpness)  # the bound, as requests alone
    values = [1 / alone, floor * alone, sharpness, growth, 0.0]
    return Curves(*(np.array([[value]]) for value in values))


@settings(max_examples=50, deadline=None)
@given(
    alone=st.floats(0.1, 1000),
    knee=st.floats(2, 200),
    shape=st.sampled_from([(1.0, 0.0), (1.4, 0.0), (2.0, 0.0), (4.0, 0.0), (8.0, 0.0), (8.0, 0.02), (12.0, 0.04)]),
)
def test_a_curve_of_the_family_is_found_again(alone: float, knee: float, shape: tuple[float, float]) -> None:
    sharpness, growth = shape
    if growth * knee > 0.7:  # from there on it grows rather than fills up, which another curve says as well
        return
    load = np.geomspace(knee / 6, knee * 6, 12)[None, :]
    found = fit_curves(load, curve(alone, knee, sharpness, growth).throughput(load), np.ones_like(load))
    assert float((found.alone * found.most)[0]) == pytest.approx(knee, rel=1e-3)
    assert (found.sharpness[0], found.growth[0]) == shape
    assert found.error[0] < 1e-6


@given(alone=st.floats(0.1, 1000), knee=st.floats(2, 200), sharpness=st.floats(1, 12))
def test_power_is_largest_at_the_knee(alone: float, knee: float, sharpness: float) -> None:
    load = np.array([[0.9, 1.0, 1.1]]) * knee
    power = (curve(alone, knee, sharpness).throughput(load) ** 2 / load)[0]
    assert power[1] > max(power[0], power[2])


def test_c_max_is_where_the_slow_end_of_first_tokens_crosses_its_objective() -> None:
    servers, service, objective = 16, 2.0, 0.5
    found = operating_point(mmc(servers, service, SHARES), {"ttft_p99": objective}, draws=40)
    share = next(s for s in np.linspace(0.3, 0.999, 5000).tolist() if _late(servers, service, s, objective) > 0.01)
    load = share * servers
    expected = load + erlang_c(servers, load) * share / (1 - share)
    (limit,) = found.limits
    assert limit.concurrency is not None
    assert limit.concurrency.value == pytest.approx(expected, rel=0.1)
    assert limit.requests == pytest.approx(load / service, rel=0.1)


def _late(servers: int, service: float, share: float, limit: float) -> float:
    load = share * servers
    return erlang_c(servers, load) * math.exp(-(servers - load) / service * limit)


@pytest.mark.parametrize(("seconds", "said"), [(0.7, "the bucket 500 ms to 1 s"), (0.5, "")])
def test_a_c_max_that_rests_on_an_interpolated_share_is_doubted(seconds: float, said: str) -> None:
    point = operating_point(mmc(8, 0.5, SHARES), {"ttft_p99": seconds})
    assert point.limits[0].concurrency is not None
    doubts = [text for text in point.missing if "how exact C_max" in text]
    assert bool(doubts) == bool(said) and all(said in text for text in doubts)


def test_little_holds_in_a_queue_and_a_doubled_count_is_a_gap() -> None:
    steps = mmc(8, 1.0, SHARES)
    assert operating_point(steps, {}, draws=5).littles_gap == pytest.approx(0, abs=1e-9)
    hidden = Steps(**{**vars(steps), "residence": 2 * steps.residence})
    assert operating_point(hidden, {}, draws=5).littles_gap == pytest.approx(1)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (SHARES[:10], "use a longer time range"),
        (np.linspace(0.5, 0.6, 60), "the range must span"),
        (np.linspace(0.05, 0.4, 60), "throughput still"),
        (np.linspace(0.95, 0.999, 90), "quieter"),
    ],
)
def test_without_the_load_that_it_takes_the_knee_is_not_told(shares: Floats, said: str) -> None:
    found = operating_point(mmc(16, 1.0, shares), {}, draws=40)
    assert found.knee is None
    assert found.headroom is None
    assert said in found.missing[0]


def test_an_objective_that_always_or_never_holds_has_no_c_max() -> None:
    steps = mmc(16, 1.0, np.linspace(0.05, 0.6, 60))
    found = operating_point(steps, {"ttft_p99": 4.0}, draws=10).limits[0]
    assert (found.concurrency, found.why.startswith("the objective was met at all observed loads")) == (None, True)
    backwards = Counts(BOUNDS, steps.latencies["ttft_p99"].counts[:, ::-1].cumsum(axis=1))
    late = Steps(**{**vars(steps), "latencies": {"ttft_p99": backwards}})
    found = operating_point(late, {"ttft_p99": 0.1}, draws=10).limits[0]
    assert (found.concurrency, found.why.startswith("the objective was missed at all loads")) == (None, True)


def test_at_one_load_it_is_told_that_an_objective_held_there() -> None:
    found = operating_point(mmc(16, 1.0, np.full(30, 0.5)), {"ttft_p99": 4.0}, draws=10).limits[0]
    assert (found.concurrency, found.holds_to) == (None, pytest.approx(8, rel=0.01))
    few = operating_point(mmc(4, 100.0, np.full(30, 0.5)), {"ttft_p99": 4.0}, draws=10).limits[0]
    assert few.why == "fewer than 100 were measured"


def test_nothing_at_all_is_told_as_such() -> None:
    empty = join_steps(mmc(4, 1.0, SHARES[:3]), mmc(4, 1.0, SHARES[:3]), since=2e9)
    found = operating_point(empty, {"ttft_p99": 1.0}, draws=5)
    assert found.knee is None
    assert found.now is None
    assert found.bins == ()


def test_steps_go_on_where_the_last_ones_ended() -> None:
    steps = mmc(8, 1.0, SHARES)
    first = Steps(**{**vars(steps), **_part(steps, slice(0, 50))})
    assert np.array_equal(join_steps(first, steps, since=0).times, steps.times)
    assert len(join_steps(first, steps, since=float(steps.times[20])).times) == len(steps.times) - 20


def test_a_pool_is_its_engines_while_all_were_there() -> None:
    steps = mmc(8, 1.0, SHARES)
    late = Steps(**{**vars(steps), **_part(steps, slice(40, None))})
    pool = together([steps, late], Labels({"pool": "chat"}))
    assert np.allclose(pool.concurrency, 2 * steps.concurrency[40:])
    assert np.allclose(pool.latencies["ttft_p99"].counts, 2 * steps.latencies["ttft_p99"].counts[40:])
    assert set(pool.engines.tolist()) == {2.0}


def _part(steps: Steps, rows: slice) -> dict[str, object]:
    names = ("times", "running", "waiting", "tokens", "requests", "residence", "engines")
    cut = {name: Counts(of.bounds, of.counts[rows]) for name, of in steps.latencies.items()}
    return {**{name: getattr(steps, name)[rows] for name in names}, "latencies": cut}


def test_quantiles_are_as_promqls() -> None:
    of = Counts(np.array([1.0, 2.0, np.inf]), np.array([[50.0, 100.0, 100.0], [0.0, 10.0, 100.0], [0.0, 0.0, 0.0]]))
    assert quantiles(of, 0.75).tolist()[:2] == [1.5, 2.0]
    assert math.isnan(quantiles(of, 0.75)[2])


def test_steps_before_a_change_of_configuration_bend_the_curve_and_are_left_out() -> None:
    """Four servers, then sixteen: one curve through both has its knee at neither."""
    before, after = mmc(4, 1.0, SHARES), mmc(16, 1.0, SHARES, seed=1)
    shift = before.times[-1] - after.times[0] + after.step
    both = join_steps(before, replace(after, times=after.times + shift), 0.0)
    kept = steps_after(both, float(before.times[-1]))
    assert len(kept.times) == len(after.times) and len(kept.latencies["ttft_p99"].counts) == len(after.times)
    change = ConfigurationChange(ENGINE, 0.0, float(before.times[-1]), (SettingChange("slots", "4", "16"),), {}, {})
    point = under_configuration(operating_point(kept, {}), change)
    assert point.knee is not None and point.knee.concurrency.value == pytest.approx(16, rel=0.15)
    assert point.start >= change.first and point.changed == ("slots 4 → 16",)
    mixed = operating_point(both, {}).knee
    assert mixed is None or abs(mixed.concurrency.value - 16) > 0.15 * 16


def test_nothing_is_fitted_where_no_step_follows_the_change() -> None:
    point = operating_point(steps_after(mmc(4, 1.0, SHARES), 1e12), {"ttft_p99": 0.5})
    assert point.knee is None and point.now is None and point.missing
