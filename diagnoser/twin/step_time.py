"""Step time of an engine as a function of what is in the step, fitted from counters between scrapes.

    seconds = base + prefill * tokens computed + sequence * sequences decoding + context * tokens in their contexts

Every term is physical (launching a step, computing a token, a sequence's share of it, reading its KV), so no
coefficient is negative. Prior art: Vidur (Agrawal et al., MLSys 2024), which profiles these terms beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np

from kvitals.diagnoser.twin.intervals import ScrapeIntervals
from kvitals.series.types import Floats

MIN_INTERVALS = 12
MIN_STEPS = 3
"""Steps in an interval for its mean to count."""
BUSY_SHARE = 0.85
"""Share of an interval that steps fill for its wall time to count as steps."""
VARIED = 0.25
"""Coefficient of variation of the context below which its term cannot be told apart from the sequences'."""
BLOCK_SECONDS = 5.0
"""Length of the blocks of consecutive intervals that the bootstrap draws: slow moments of a machine last as long."""
DRIFT_SECONDS = 15.0
"""Length of the parts whose speeds are compared: a change is followed by another minute, not by the same one."""
STEP_RESTART, FRONT_END_RESTART = 0.02, 0.1
"""Standard deviation of the logarithm of the step time, and of the front end's time, between two starts of one engine:
of changes without an effect in `make live-twin SEED=1` (docs/measured.md)."""
MAX_DEVIATIONS = 4.0
HUBER = 1.5
PRIOR_DEVIATION = 0.25
"""Standard deviation of a term's share of the mean step before any data: each draw begins with shares at random. Where
the load did not vary the data leave the shares open, so the draws differ as much as what is unknown."""
_ROUNDS = 4


class FitError(Exception):
    """The counters do not determine a step time; the message says why and what suffices."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by term."""

    base: float
    prefill: float
    sequence: float
    context: float

    def times(self, factor: float) -> StepTime:
        """Of an engine that is slower by a factor."""
        return StepTime(self.base * factor, self.prefill * factor, self.sequence * factor, self.context * factor)

    def seconds(self, prefill: float, sequences: float, context: float) -> float:
        """Of a step with so many prompt tokens, decoding sequences, and tokens in the contexts of these."""
        return self.base + self.prefill * prefill + self.sequence * sequences + self.context * context


@dataclass(frozen=True)
class Drift:
    """How much seconds differ from one part of the time to another. deviation: standard deviation of their logarithm;
    parts: how many it is known from. restart: the same between two starts of an engine with equal settings."""

    deviation: float
    parts: int
    restart: float

    def draw(self, rng: np.random.Generator) -> float:
        """A factor in another part of time after a restart: Student's t, as the deviation is known from few parts."""
        restarted = float(rng.normal()) * self.restart
        if self.parts < 2:
            return float(np.exp(restarted))
        wide = float(np.clip(rng.standard_t(self.parts - 1), -MAX_DEVIATIONS, MAX_DEVIATIONS))
        return float(np.exp(wide * self.deviation * np.sqrt(1.0 + 1.0 / self.parts) + restarted))


def drift_of(parts: Floats, restart: float) -> Drift:
    """Of the logarithms of the mean seconds in parts of `DRIFT_SECONDS`."""
    return Drift(float(np.std(parts, ddof=1)) if len(parts) > 1 else 0.0, len(parts), restart)


def time_parts(values: Floats, interval: float) -> list[Floats]:
    """Consecutive values, one each `interval` seconds, in parts of about `DRIFT_SECONDS`; at least two where there are
    two values."""
    parts = max(int(len(values) * interval / DRIFT_SECONDS), 2)
    return [part for part in np.array_split(values, parts) if len(part)]


@dataclass(frozen=True)
class StepFit:
    """A fitted step time and how far it can be trusted.

    draws: step times of bootstrap samples. factors: measured over fitted step time, an interval each, in order. drift:
    of the factors.
    sequences, prefill: the lowest and the highest means of a step that were seen. intervals: that were fitted.
    """

    step: StepTime
    draws: tuple[StepTime, ...]
    factors: Floats
    drift: Drift
    sequences: tuple[float, float]
    prefill: tuple[float, float]
    context: float
    intervals: int

    def times(self, factor: float) -> StepFit:
        """Of an engine that is slower by a factor."""
        return replace(self, step=self.step.times(factor), draws=tuple(one.times(factor) for one in self.draws))

    def spread(self, prefill: float, sequences: float, context: float) -> float:
        """The 95th percentile of such a step's seconds over the 5th: how well the load determines it."""
        seconds = [one.seconds(prefill, sequences, context) for one in self.draws]
        low, high = np.quantile(seconds, (0.05, 0.95))
        return float(high / low) if low > 0 else float("inf")


@dataclass(frozen=True)
class _Design:
    terms: Floats  # an interval a row: 1, prefill tokens, sequences, context tokens of a mean step
    seconds: Floats
    weights: Floats
    length: float  # seconds of an interval
    means: int  # the first so many rows, which are of mean steps; the others are of prefills


def fit_step_time(intervals: ScrapeIntervals, *, draws: int = 40, seed: int = 0) -> StepFit:
    """Fit by weighted non-negative least squares on relative errors, outliers weighted down (Huber).

    Raises FitError where fewer than `MIN_INTERVALS` intervals have steps.
    """
    design = _design(intervals)
    means = design.means
    if means < MIN_INTERVALS:
        raise FitError(
            f"only {means} of {len(intervals)} intervals between scrapes have at least {MIN_STEPS} steps: "
            f"{MIN_INTERVALS} are needed. Record for longer, or while requests arrive"
        )
    varied = design.terms.mean(axis=0) > 0
    step = _robust(design, design.seconds, varied / varied.sum())
    fitted = design.terms @ step
    factors = design.seconds / fitted
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(draws):
        parts = [
            resample_factors(of, design.length, len(of), rng) for of in (factors[:means], factors[means:]) if len(of)
        ]
        shares = np.zeros(len(varied))
        shares[varied] = rng.dirichlet(np.ones(int(varied.sum())))
        samples.append(StepTime(*_robust(design, fitted * np.concatenate(parts), shares).tolist()))
    prefill, sequences, context = (design.terms[:means, column] for column in (1, 2, 3))
    return StepFit(
        StepTime(*step.tolist()),
        tuple(samples),
        factors[:means],
        drift_of(np.array([np.log(part).mean() for part in time_parts(factors[:means], design.length)]), STEP_RESTART),
        (float(sequences.min()), float(sequences.max())),
        (float(prefill.min()), float(prefill.max())),
        float((context / np.maximum(sequences, 1e-9)).mean()),
        means,
    )


def resample_factors(factors: Floats, interval: float, rows: int, rng: np.random.Generator) -> Floats:
    """So many factors, drawn in blocks of consecutive ones."""
    length = max(1, min(round(BLOCK_SECONDS / interval), len(factors)))
    starts = rng.integers(0, len(factors), size=-(-rows // length))
    places = (starts[:, None] + np.arange(length)[None, :]) % len(factors)
    return np.asarray(factors[places.ravel()[:rows]], dtype=np.float64)


def _design(of: ScrapeIntervals) -> _Design:
    """A row for the mean step of each interval, then one for the mean prefill of each.

    Inter-token time has no steps in which nothing decodes. Where the engine idles in between, a prefill finds it idle
    as often as it idles, and that share of prefill steps is left out of the means.
    """
    with np.errstate(all="ignore"):
        steps = np.where(np.isfinite(of.steps), of.steps, of.generated / np.maximum(of.running, 1.0))
        requests = of.ttft_count
        prefills = np.where(np.isfinite(of.prefills), of.prefills, requests)
        itl = of.itl_seconds / of.itl_count
        filled = np.clip(steps * itl / of.seconds, 0.0, 1.0)
        full = filled >= BUSY_SHARE
        alone = np.where(full, 0.0, prefills * (1.0 - filled))
        decoding = np.maximum(steps - alone, 1.0)
        seconds = np.where(full, of.seconds / steps, itl)
        sequences = of.itl_count / decoding
        prefill = of.computed * np.where(full, 1.0, filled) / decoding
        known = (steps >= MIN_STEPS) & (of.itl_count > 0) & (seconds > 0) & np.isfinite(prefill)
        chunks = np.maximum(prefills / requests, 1.0)
        prompt_step = of.prefill_seconds / requests / chunks
        prompt_tokens = of.computed / prefills
        timed = known & (requests > 0) & (prefills > 0) & (prompt_step > 0) & np.isfinite(prompt_tokens)
    contexts = _lengths(of)
    spread = np.std(contexts[known]) / np.mean(contexts[known]) if known.any() else 0.0
    contexts = contexts if spread >= VARIED else np.zeros_like(contexts)

    def rows(tokens: Floats, kept: Floats) -> Floats:
        columns = np.column_stack([np.ones_like(sequences), tokens, sequences, sequences * contexts])
        return np.asarray(columns[kept], dtype=np.float64)

    return _Design(
        np.vstack([rows(prefill, known), rows(prompt_tokens, timed)]),
        np.concatenate([seconds[known], prompt_step[timed]]),
        np.sqrt(np.concatenate([np.minimum(steps[known], 50.0), np.minimum(requests[timed], 50.0)])),
        float(np.median(of.seconds)) if len(of) else 1.0,
        int(known.sum()),
    )


def _lengths(of: ScrapeIntervals) -> Floats:
    """Tokens in the context of a decoding sequence, an interval each: the prompts of the last while and half of their
    answers."""
    window = max(1, round(BLOCK_SECONDS / float(np.median(of.seconds)))) if len(of) else 1
    kernel = np.ones(window)

    def recent(values: Floats) -> Floats:
        return np.asarray(np.convolve(np.nan_to_num(values), kernel)[: len(values)], dtype=np.float64)

    requests = np.maximum(recent(of.ttft_count), 1.0)
    return np.asarray((recent(of.prompt) + recent(of.generated) / 2) / requests, dtype=np.float64)


def _robust(design: _Design, seconds: Floats, shares: Floats) -> Floats:
    """Non-negative coefficients that minimise relative errors and, as far as the data leave it open, give each term its
    share of the mean step."""
    terms, weights = design.terms, design.weights / np.sqrt(np.mean(design.weights**2))
    scaled, target = terms / seconds[:, None], np.ones(len(seconds))
    prior = np.diag(scaled.mean(axis=0))
    now, strength = weights, 0.0
    coefficients = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        matrix = np.vstack([scaled * now[:, None], prior * strength])
        coefficients = nonnegative_least_squares(matrix, np.concatenate([target * now, shares * strength]))
        error = np.abs(scaled @ coefficients - 1.0)
        scale = max(float(np.median(error)) / 0.6745, 1e-6)
        now = weights * np.sqrt(np.minimum(1.0, HUBER * scale / np.maximum(error, 1e-12)))
        strength = scale / PRIOR_DEVIATION
    return coefficients


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """The exact solution for a handful of columns: the best of all subsets whose coefficients are positive."""
    columns = matrix.shape[1]
    best, least = np.zeros(columns), float(target @ target)
    gram, projected = matrix.T @ matrix, matrix.T @ target
    for chosen in chain.from_iterable(combinations(range(columns), n) for n in range(1, columns + 1)):
        part = list(chosen)
        sub = gram[np.ix_(part, part)]
        if np.linalg.cond(sub / np.sqrt(np.outer(np.diag(sub), np.diag(sub)) + 1e-300)) > 1e10:
            continue
        solution = np.linalg.solve(sub, projected[part])
        if (solution <= 0).any():
            continue
        error = float(target @ target - solution @ projected[part])
        if error < least - 1e-12:
            least, best = error, np.zeros(columns)
            best[part] = solution
    return best
