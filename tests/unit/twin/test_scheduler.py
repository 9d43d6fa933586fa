"""The simulated scheduler on loads whose outcome follows from arithmetic."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvitals.diagnoser.twin.scheduler import SchedulerSettings, SimulatedRun, simulate
from kvitals.diagnoser.twin.simulated_load import SimulatedLoad, SimulatedRequest
from kvitals.diagnoser.twin.step_time import Drift, StepTime

STEP = StepTime(0.004, 0.0001, 0.001, 0.0)
WIDE = SchedulerSettings(slots=64, token_budget=8192, blocks=4096, block_tokens=16)


def closed(clients: int, *, prompt: int = 100, output: int = 11, seconds: float = 20.0) -> SimulatedLoad:
    return SimulatedLoad((SimulatedRequest(0.0, prompt, output, 0),), seconds, clients=clients)


def test_one_client_has_the_step_times_of_the_formula() -> None:
    run = simulate(WIDE, STEP, closed(1))
    assert run.ttft == pytest.approx(0.004 + 100 * 0.0001)
    assert run.itl == pytest.approx(0.005)
    assert run.requests == pytest.approx(1 / (0.014 + 10 * 0.005), rel=0.01)
    assert run.tokens == pytest.approx(11 * run.requests, rel=0.02)


def test_slots_bound_what_runs_and_the_rest_waits() -> None:
    run = simulate(SchedulerSettings(2, 8192, 4096, 16), STEP, closed(10))
    assert run.running == pytest.approx(2.0, abs=0.01)
    assert run.waiting == pytest.approx(8.0, abs=0.1)
    assert np.median(run.ttft) == pytest.approx(8 / run.requests, rel=0.1)  # Little's law


def test_a_budget_divides_a_prompt_into_chunks() -> None:
    whole = simulate(WIDE, STEP, closed(1, prompt=1000))
    chunks = simulate(SchedulerSettings(64, 250, 4096, 16), STEP, closed(1, prompt=1000))
    assert whole.ttft[0] == pytest.approx(0.004 + 0.1)
    assert chunks.ttft[0] == pytest.approx(4 * 0.004 + 0.1)


def test_a_long_prompt_limit_leaves_room_for_others() -> None:
    settings = SchedulerSettings(64, 8192, 4096, 16, long_prefill=100)
    assert simulate(settings, STEP, closed(1, prompt=1000)).ttft[0] == pytest.approx(10 * 0.004 + 0.1)


def test_full_blocks_preempt_the_newest() -> None:
    load = closed(4, prompt=64, output=200)
    assert simulate(WIDE, STEP, load).preemptions_per_second == 0
    tight = simulate(SchedulerSettings(64, 8192, 40, 16), STEP, load)
    assert tight.preemptions_per_second > 0
    assert tight.requests > 0
    assert tight.requests < simulate(WIDE, STEP, load).requests


def shared(blocks: int, *, caching: bool = True) -> SimulatedRun:
    """Two prefixes of 30 blocks in turn, with a last block of its own each."""
    requests = tuple(
        SimulatedRequest(0.0, 31 * 16, 4, 0, (*range(100 * (i % 2), 100 * (i % 2) + 30), 1000 + i)) for i in range(50)
    )
    settings = SchedulerSettings(8, 8192, blocks, 16, caching=caching)
    return simulate(settings, STEP, SimulatedLoad(requests, 20.0, clients=1))


def test_a_prefix_hits_where_the_pool_keeps_it() -> None:
    assert shared(100).hit_rate == pytest.approx(30 / 31, abs=0.01)
    assert shared(39).hit_rate == pytest.approx(8 / 31, abs=0.01)  # 39 blocks less the 31 of the other prompt
    assert shared(100, caching=False).hit_rate == 0.0


def test_lookups_before_the_load_fill_the_cache() -> None:
    requests = (SimulatedRequest(0.0, 65, 2, 0, (1, 2, 3, 4)),)
    cold = simulate(WIDE, STEP, SimulatedLoad(requests, 10.0))
    warm = simulate(WIDE, STEP, SimulatedLoad(requests, 10.0, warm=((1, 2, 3, 4),)))
    assert cold.hit_rate == 0.0
    assert warm.hit_rate == pytest.approx(64 / 65)


def test_an_open_loop_queues_what_it_cannot_serve() -> None:
    requests = tuple(SimulatedRequest(i * 0.01, 100, 11, 0) for i in range(1000))
    run = simulate(SchedulerSettings(1, 8192, 4096, 16), STEP, SimulatedLoad(requests, 10.0))
    assert run.requests == pytest.approx(1 / 0.064, rel=0.02)
    assert run.ttft[-1] > 5.0


def test_a_prompt_beyond_the_pool_is_refused() -> None:
    run = simulate(SchedulerSettings(4, 8192, 8, 16), STEP, SimulatedLoad((SimulatedRequest(0.0, 1000, 5, 0),), 5.0))
    assert run.refused == 1
    assert run.requests == 0


def test_the_same_seed_has_the_same_outcome() -> None:
    load = SimulatedLoad((SimulatedRequest(0.0, 100, 11, 0),), 10.0, clients=5, think=0.1)
    first, again, other = (simulate(WIDE, STEP, load, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.ttft, again.ttft)
    assert first.requests == again.requests
    assert not np.array_equal(first.ttft, other.ttft)


def test_a_minute_takes_less_than_a_second() -> None:
    requests = tuple(SimulatedRequest(i / 30, 500 + i % 700, 100 + i % 300, 128) for i in range(1800))
    began = time.process_time()
    run = simulate(
        SchedulerSettings(256, 8192, 20000, 16), StepTime(0.01, 2e-5, 1e-4, 0.0), SimulatedLoad(requests, 60.0)
    )
    assert time.process_time() - began < 1.0
    assert run.requests > 10


def test_the_load_of_a_later_time_has_as_many_arrivals_more_or_less() -> None:
    drawn = np.random.default_rng(5)
    arrivals = np.sort(drawn.random(300) * 60.0)
    load = SimulatedLoad(tuple(SimulatedRequest(float(t), 100, 11, 0) for t in arrivals), 60.0)
    counts = []
    for _ in range(200):
        later = load.next_minute(drawn)
        times = [request.arrival for request in later.requests]
        assert times == sorted(times) and later.seconds == load.seconds
        assert times[0] >= 0.0 and times[-1] <= 60.0
        counts.append(len(times))
    assert np.mean(counts) == pytest.approx(300, rel=0.03)
    assert np.std(counts) == pytest.approx(np.sqrt(300), rel=0.4)  # as independent arrivals have
    assert closed(4).next_minute(drawn) == closed(4)


def test_a_drift_is_wider_the_fewer_parts_show_it() -> None:
    drawn = np.random.default_rng(5)
    few, many = (Drift(0.1, parts, 0.0) for parts in (3, 30))
    spreads = [np.std(np.log([one.draw(drawn) for _ in range(2000)])) for one in (few, many)]
    assert spreads[0] > 1.3 * spreads[1] and spreads[1] == pytest.approx(0.1, rel=0.15)
    alone = [Drift(0.0, 1, 0.05).draw(drawn) for _ in range(2000)]
    assert np.std(np.log(alone)) == pytest.approx(0.05, rel=0.1)
