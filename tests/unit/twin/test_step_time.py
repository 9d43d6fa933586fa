"""The fit finds the step time that made the counters, and states what it cannot know."""

from __future__ import annotations

import numpy as np
import pytest

from kvitals.diagnoser.twin.intervals import BucketCounts, ScrapeIntervals
from kvitals.diagnoser.twin.step_time import FitError, StepTime, fit_step_time, nonnegative_least_squares

TRUE = StepTime(0.004, 0.0002, 0.0015, 0.0)


def counters(
    sequences: np.ndarray, *, noise: float = 0.05, idle: float = 0.0, prompt: float = 100.0, seed: int = 0
) -> ScrapeIntervals:
    """Intervals of a second in which so many sequences decode, each with answers of 20 tokens."""
    rng = np.random.default_rng(seed)
    rows = len(sequences)
    prefill_share = sequences / 20
    seconds = TRUE.base + TRUE.prefill * prompt * prefill_share + TRUE.sequence * sequences
    seconds = seconds * np.exp(rng.normal(0, noise, rows))
    steps = np.round((1 - idle) / seconds)
    requests = steps * prefill_share
    zeros, ones = np.zeros(rows), np.ones(rows)
    return ScrapeIntervals(
        ends=np.arange(rows) + 1.0,
        seconds=ones,
        steps=steps,
        prompt=requests * prompt,
        cached=zeros,
        generated=steps * sequences,
        itl_count=steps * sequences,
        itl_seconds=steps * sequences * seconds,
        ttft_count=requests,
        ttft_seconds=requests * 0.05,
        queue_seconds=zeros,
        prefill_seconds=requests * (TRUE.base + TRUE.prefill * prompt + TRUE.sequence * sequences),
        finished=requests,
        preempted=zeros,
        prefills=requests,
        running=sequences,
        waiting=zeros,
        kv_usage=zeros,
    )


def test_a_varied_load_gives_the_step_time_back() -> None:
    fit = fit_step_time(counters(np.linspace(1, 20, 60)))
    for sequences in (1, 10, 20):
        assert fit.step.seconds(0, sequences, 0) == pytest.approx(TRUE.seconds(0, sequences, 0), rel=0.15)
    assert fit.step.prefill == pytest.approx(TRUE.prefill, rel=0.25)
    assert fit.spread(5, 15, 0) < 1.3


def test_idle_time_is_not_in_a_step() -> None:
    busy, idle = (fit_step_time(counters(np.linspace(1, 20, 60), idle=share)).step for share in (0.0, 0.5))
    assert idle.seconds(5, 10, 0) == pytest.approx(busy.seconds(5, 10, 0), rel=0.15)


def test_one_batch_size_does_not_determine_another() -> None:
    fit = fit_step_time(counters(np.full(60, 2.0), noise=0.2))
    assert fit.spread(0, 2, 0) < 1.5
    assert fit.spread(0, 32, 0) > 2.5


def test_few_intervals_are_refused() -> None:
    with pytest.raises(FitError, match="only 5 of 5 intervals"):
        fit_step_time(counters(np.full(5, 2.0)))


def test_coefficients_are_never_negative() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        matrix, target = rng.random((30, 4)), rng.random(30)
        solution = nonnegative_least_squares(matrix, target)
        gradient = matrix.T @ (matrix @ solution - target)
        assert (solution >= 0).all()
        assert (gradient > -1e-6).all()  # the conditions of Karush, Kuhn and Tucker
        assert np.abs(gradient[solution > 0]).max() < 1e-6


def test_quantiles_are_those_of_promql() -> None:
    of = BucketCounts(np.array([0.1, 0.2, np.inf]), np.array([5.0, 10.0, 10.0]))
    assert of.quantile(0.25) == pytest.approx(0.05)
    assert of.quantile(0.75) == pytest.approx(0.15)
    again = of.of(np.array([0.05, 0.15, 9.0]), np.array([1.0, 2.0, 1.0]))
    assert again.counts.tolist() == [1.0, 3.0, 4.0]
    assert again.quantile(1.0) == pytest.approx(0.2)
