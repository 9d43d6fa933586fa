"""Where an engine stands: throughput and latency against concurrency, the knee, and how much is left to it.

The curve is X(N) = N / (R0^p + (N / Xmax)^p)^(1/p): work done a second by N requests at a time. Alone, a request takes
R0 for a unit of work, so X grows as N / R0; the engine can do no more than Xmax; p says how sharply the one turns into
the other. Both bounds are operational analysis' (Denning and Buzen, The Operational Analysis of Queueing Network
Models, ACM Computing Surveys 1978). With p = 1 it is an engine whose steps grow with the batch, with a large p one that
fills up.

The knee is where the bounds meet, N* = Xmax R0. For every p it is also where power, X over residence, is largest
(Kleinrock, Power and Deterministic Rules of Thumb for Probabilistic Problems in Computer Communications, ICC 1979).

How sure it is comes from a moving block bootstrap of the steps (Künsch, Annals of Statistics 1989): steps in a row are
alike, so blocks of them are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnoser.steps import Counts, Steps
from series.types import Floats, Labels

Ints = npt.NDArray[np.intp]

BUSY = 0.5
"""Requests at a time below which a step says nothing of the curve."""
MIN_STEPS, MIN_BINS = 20, 4
SPREAD = 3.0
"""Of the largest load over the smallest: less is a point and no curve."""
BEYOND = 1.2
"""The largest load over the knee, for the flat part to be seen."""
SURE = 0.35
"""Half of the interval over the value: with more the knee is not told."""
BIN_RATIO = 1.2
BIN_STEPS = 3
WEIGHT_STEPS = 8.0
"""Steps in a bin after which more of them count little: the curve itself is no closer than a few percent."""
OUTLIER = 6.0
"""Median deviations within a bin: what is further off is left out."""
PERCENTILE = 0.99
MIN_FIRST_TOKENS = 100
"""A p99 of fewer is that of one request."""
SHAPES = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 12.0)
NOW_SECONDS = 300.0
BURST_STEPS = 50
LITTLE_REQUESTS = 100.0
DRAWS = 200


@dataclass(frozen=True)
class Estimate:
    """A value, and the bounds between which it lies with a chance of 90 %."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Half of the interval over the value."""
        return (self.high - self.low) / 2 / self.value


@dataclass(frozen=True)
class Bin:
    """Steps of like load. tokens, requests: a second; None where it is not told. p99: objective -> seconds, where
    enough were measured."""

    concurrency: float
    running: float
    waiting: float
    tokens: float | None
    requests: float | None
    steps: int
    p99: Mapping[str, float]


@dataclass(frozen=True)
class Knee:
    """concurrency: requests at a time. most: throughput that can not be passed, `alone` that of one request at a time,
    `there` at the knee; all in the unit of the curve."""

    concurrency: Estimate
    most: float
    alone: float
    there: float
    sharpness: float


@dataclass(frozen=True)
class Limit:
    """How far an objective holds. concurrency: C_max, where p99 crosses it; None where it does not in what was seen.
    requests, tokens: a second, there: the usable rate. holds_to: the largest load at which it was seen to hold."""

    objective: str
    seconds: float
    concurrency: Estimate | None
    requests: float | None
    tokens: float | None
    holds_to: float | None
    why: str  # why there is no C_max; empty where there is


@dataclass(frozen=True)
class OperatingPoint:
    """All of it, of one engine or a pool. `missing`: what is not known and what it takes. now: requests at a time in
    the last minutes. littles_gap: rate times residence over measured concurrency, less 1. burst: p99 of arrivals a
    step over their mean."""

    entity: Labels
    engines: int
    start: float
    end: float
    step: float
    steps: int
    busy_steps: int
    unit: str
    bins: tuple[Bin, ...]
    knee: Knee | None
    limits: tuple[Limit, ...]
    now: float | None
    headroom: float | None
    littles_gap: float | None
    burst: float | None
    missing: tuple[str, ...]


def operating_point(steps: Steps, objectives: Mapping[str, float], draws: int = DRAWS, seed: int = 1) -> OperatingPoint:
    """What steps tell. objectives: `ttft_p99`, `itl_p99` -> seconds. draws: of the bootstrap, all from `seed`."""
    unit = "tokens" if 2 * np.isfinite(steps.tokens).sum() > len(steps.tokens) else "requests"
    work = steps.tokens if unit == "tokens" else steps.requests
    load = steps.concurrency
    busy = np.flatnonzero(np.isfinite(load) & np.isfinite(work) & (load >= BUSY) & (work > 0))
    number = _bins(load[busy])
    kept = _without_outliers(load[busy] / work[busy], number)
    busy, number = busy[kept], _renumbered(number[kept])
    count = int(number.max()) + 1 if len(number) else 0
    drawn = _draws(len(busy), draws, seed)
    missing: list[str] = []
    knee = None
    if why := _too_little(load[busy], count):
        missing.append(why)
    else:
        knee, why = _knee(load[busy], work[busy], number, count, drawn)
        if why:
            missing.append(why)
    limits = tuple(
        _limit(name, seconds, steps, busy, number, count, drawn)
        for name, seconds in objectives.items()
        if name in steps.latencies
    )
    now = _now(steps)
    return OperatingPoint(
        entity=steps.entity,
        engines=int(steps.engines[-1]) if len(steps.engines) else 0,
        start=float(steps.times[0] - steps.step) if len(steps.times) else math.nan,
        end=float(steps.times[-1]) if len(steps.times) else math.nan,
        step=steps.step,
        steps=len(steps.times),
        busy_steps=len(busy),
        unit=unit,
        bins=tuple(_bin(steps, busy[number == i]) for i in range(count)),
        knee=knee,
        limits=limits,
        now=now,
        headroom=1 - now / knee.concurrency.value if knee is not None and now is not None else None,
        littles_gap=_littles_gap(steps),
        burst=_burst(steps),
        missing=(*missing, *(f"C_max at {one.objective}: {one.why}" for one in limits if one.why)),
    )


def throughput(load: Floats, alone: float, most: float, sharpness: float) -> Floats:
    """The curve: work a second at each load. `alone`, `most`: 1 / R0 and Xmax."""
    bounds: Floats = ((1 / alone) ** sharpness + (load / most) ** sharpness) ** (-1 / sharpness) * load
    return bounds


def fitted(load: Floats, work: Floats, weight: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The curves closest to bins, one for each row: R0, Xmax, p and the squared error; infinite where no curve fits.

    For a given p the curve is a line, (N/X)^p = R0^p + N^p / Xmax^p, which weighted least squares solve at once; a
    weight of y^-2 make it the relative error of X.
    """
    rows = len(load)
    best = np.full(rows, np.inf)
    alone, most, shape = np.full(rows, np.nan), np.full(rows, np.nan), np.full(rows, np.nan)
    scale_n, scale_r = load.max(), (load / work).max()
    n, r = load / scale_n, load / work / scale_r
    logs = np.log(work)
    with np.errstate(all="ignore"):
        for p in SHAPES:
            inverse = r**-p
            u = n**p * inverse
            s11, s12, s22 = ((weight * a * b).sum(axis=1) for a, b in ((inverse, inverse), (inverse, u), (u, u)))
            t1, t2 = ((weight * a).sum(axis=1) for a in (inverse, u))
            det = s11 * s22 - s12 * s12
            a, b = (t1 * s22 - t2 * s12) / det, (t2 * s11 - t1 * s12) / det
            good = (a > 0) & (b > 0) & (det > 1e-9 * s11 * s22)
            r0 = np.where(good, a, 1.0) ** (1 / p) * scale_r
            x = np.where(good, b, 1.0) ** (-1 / p) * scale_n / scale_r
            model = np.log(load) - np.log(r0[:, None] ** p + (load / x[:, None]) ** p) / p
            error = np.where(good, (weight * (model - logs) ** 2).sum(axis=1), np.inf)
            better = error < best
            best, alone = np.where(better, error, best), np.where(better, r0, alone)
            most, shape = np.where(better, x, most), np.where(better, p, shape)
    return alone, most, shape, best


def _too_little(load: Floats, bins: int) -> str:
    """What it takes for a curve; empty where there is enough."""
    if len(load) < MIN_STEPS:
        return f"the knee: {len(load)} steps had requests, it takes {MIN_STEPS}: look at a longer time"
    if bins < MIN_BINS or load.max() < SPREAD * load.min():
        return (
            f"the knee: load stayed between {load.min():.1f} and {load.max():.1f} requests at a time; it takes a span"
            f" of {SPREAD:g} and more, such as a quiet and a busy hour"
        )
    return ""


def _knee(load: Floats, work: Floats, number: Ints, count: int, drawn: Floats) -> tuple[Knee | None, str]:
    member = np.zeros((len(load), count))
    member[np.arange(len(load)), number] = 1.0
    weights = np.vstack([np.ones((1, len(load))), drawn])
    size = weights @ member
    full = np.maximum(size, 1e-12)
    n, x = (weights * load) @ member / full, (weights * work) @ member / full
    typical = n[0], x[0]
    gone = size < 1
    n, x = np.where(gone, typical[0], n), np.where(gone, typical[1], x)
    alone, most, shape, error = fitted(n, x, np.where(gone, 0.0, size / (size + WEIGHT_STEPS)))
    if not math.isfinite(float(error[0])):
        return None, f"the knee: throughput still grows in step with load, up to {load.max():.1f} requests at a time"
    knees = alone * most
    spread = knees[1:][np.isfinite(knees[1:])]
    value, top = float(knees[0]), float(n[0].max())
    if top < BEYOND * value:
        return None, (
            f"the knee: it lies at {value / BEYOND:.0f} requests at a time or beyond; the busiest steps had {top:.1f},"
            " and throughput still grew there"
        )
    if n[0].min() > value:
        return None, (
            f"the knee: load was never below it; the quietest steps had {n[0].min():.1f} requests at a time, quieter"
            " ones are needed"
        )
    low, high = np.quantile(spread, (0.05, 0.95)).tolist() if len(spread) >= len(drawn) / 2 else (0.0, math.inf)
    estimate = Estimate(value, min(low, value), max(high, value))
    if not estimate.error <= SURE:
        return None, (
            f"the knee: somewhere between {estimate.low:.1f} and {estimate.high:.1f} requests at a time; steps of"
            " more loads are needed"
        )
    p = float(shape[0])
    there = float(throughput(np.array([value]), 1 / float(alone[0]), float(most[0]), p)[0])
    return Knee(estimate, float(most[0]), 1 / float(alone[0]), there, p), ""


def _limit(name: str, seconds: float, steps: Steps, busy: Ints, number: Ints, count: int, drawn: Floats) -> Limit:
    """Where the p99 of first tokens, or of gaps between tokens, crosses the objective as load grows."""
    of = steps.latencies[name]
    counts = np.nan_to_num(of.counts[busy])
    number, count = _merged(counts[:, -1], number, count)
    load = steps.concurrency[busy]
    if count < 2:
        why = f"fewer than {2 * MIN_FIRST_TOKENS} were measured" if len(busy) else "nothing was measured"
        return Limit(name, seconds, None, None, None, None, why)
    weights = np.vstack([np.ones((1, len(busy))), drawn])
    rows, places = weights.shape[0], range(count)
    sums = np.stack([weights[:, number == i] @ counts[number == i] for i in places], axis=1)
    n = np.stack([(weights[:, number == i] @ load[number == i]) for i in places], axis=1)
    size = np.stack([weights[:, number == i].sum(axis=1) for i in places], axis=1)
    n = np.where(size > 0, n / np.maximum(size, 1), n[0] / np.maximum(size[0], 1))
    p99 = quantiles(Counts(of.bounds, sums.reshape(rows * count, -1)), PERCENTILE).reshape(rows, count)
    crossed = np.array([crossing(n[i], p99[i], sums[i, :, -1], seconds) for i in range(rows)])
    value = float(crossed[0])
    held = [float(a) for a, b in zip(n[0], rising(p99[0], sums[0, :, -1]), strict=True) if b <= seconds]
    holds_to = max(held, default=None)
    if math.isnan(value):
        why = (
            f"it held at all loads seen, up to {holds_to:.1f} requests at a time"
            if holds_to is not None
            else f"it was missed at all loads of which enough was seen, from {n[0].min():.1f} requests at a time on"
        )
        return Limit(name, seconds, None, None, None, holds_to, why)
    found = crossed[1:][np.isfinite(crossed[1:])]
    low, high = np.quantile(found, (0.05, 0.95)).tolist() if len(found) else (value, value)
    requests, tokens = (_rate_at(load, rate[busy], number, count, value) for rate in (steps.requests, steps.tokens))
    return Limit(name, seconds, Estimate(value, min(low, value), max(high, value)), requests, tokens, holds_to, "")


def crossing(load: Floats, latency: Floats, weight: Floats, limit: float) -> float:
    """The load at which latency, made to rise with load, first passes a limit; NaN where it passes it nowhere or is
    over it everywhere. Linear between bins."""
    order = np.argsort(load)
    n, level = load[order], rising(latency[order], weight[order])
    over = np.flatnonzero(level > limit)
    if not len(over) or over[0] == 0:
        return math.nan
    i = int(over[0])
    return float(n[i - 1] + (n[i] - n[i - 1]) * (limit - level[i - 1]) / (level[i] - level[i - 1]))


def rising(values: Floats, weights: Floats) -> Floats:
    """The closest values that nowhere fall: isotonic regression by pooling adjacent violators (Ayer et al., Annals of
    Mathematical Statistics 1955). A NaN is as the one before it."""
    blocks: list[list[float]] = []  # value, weight, how many
    for value, weight in zip(values.tolist(), np.maximum(weights, 1e-9).tolist(), strict=True):
        if math.isnan(value):
            value, weight = blocks[-1][0] if blocks else 0.0, 1e-9
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            last = blocks.pop()
            one = blocks[-1]
            total = one[1] + last[1]
            one[0], one[1], one[2] = (one[0] * one[1] + last[0] * last[1]) / total, total, one[2] + last[2]
    return np.repeat([b[0] for b in blocks], [int(b[2]) for b in blocks]).astype(np.float64)


def quantiles(of: Counts, share: float) -> Floats:
    """A quantile of each row, linear within a bucket as PromQL's; the last finite bound where it lies beyond."""
    counts = np.maximum.accumulate(of.counts, axis=1)
    total = counts[:, -1]
    rank = share * total
    place = np.minimum((counts < rank[:, None]).sum(axis=1), len(of.bounds) - 1)
    rows = np.arange(len(counts))
    upper = of.bounds[place]
    lower = np.where(place > 0, of.bounds[np.maximum(place - 1, 0)], 0.0)
    before = np.where(place > 0, counts[rows, np.maximum(place - 1, 0)], 0.0)
    inside = (rank - before) / np.maximum(counts[rows, place] - before, 1e-12)
    with np.errstate(invalid="ignore"):
        value = np.where(np.isinf(upper), lower, lower + (upper - lower) * inside)
    return np.where(total > 0, value, np.nan)


def _bins(load: Floats) -> Ints:
    """The bin of each step, from the least load on; each has some steps and spans a fifth of its load."""
    order = np.argsort(load, kind="stable")
    number = np.zeros(len(load), np.intp)
    current, first, size = 0, math.nan, 0
    left = len(load)
    for place in order.tolist():
        value = float(load[place])
        if size >= BIN_STEPS and value > first * BIN_RATIO and left >= BIN_STEPS:
            current, size = current + 1, 0
        if size == 0:
            first = max(value, BUSY)
        number[place] = current
        size, left = size + 1, left - 1
    return number


def _renumbered(number: Ints) -> Ints:
    return np.unique(number, return_inverse=True)[1].astype(np.intp)


def _without_outliers(residence: Floats, number: Ints) -> npt.NDArray[np.bool_]:
    """Which steps are like the others of their bin."""
    kept = np.ones(len(residence), np.bool_)
    for i in range(int(number.max()) + 1 if len(number) else 0):
        inside = number == i
        off = np.abs(residence[inside] - np.median(residence[inside]))
        limit = OUTLIER * 1.4826 * np.median(off)
        if inside.sum() >= 2 * BIN_STEPS and limit > 0:
            kept[inside] = off <= limit
    return kept


def _merged(counts: Floats, number: Ints, count: int) -> tuple[Ints, int]:
    """Neighbouring bins put together until each has enough observations; what is left joins the last one."""
    sums = np.bincount(number, counts, count)
    home, current, inside = np.zeros(count, np.intp), 0, 0.0
    for i in range(count):
        home[i] = current
        inside += sums[i]
        if inside >= MIN_FIRST_TOKENS and sums[i + 1 :].sum() >= MIN_FIRST_TOKENS:
            current, inside = current + 1, 0.0
    if count == 0 or inside < MIN_FIRST_TOKENS:
        return home[number], 0
    return home[number], current + 1


def _draws(size: int, draws: int, seed: int) -> Floats:
    """How often each step is in each draw: blocks of steps in a row, as many as make up all."""
    if size == 0:
        return np.zeros((draws, 0))
    random = np.random.default_rng(seed)
    block = max(1, round(size ** (1 / 3)))
    starts = random.integers(0, size, (draws, math.ceil(size / block)))
    places = ((starts[:, :, None] + np.arange(block)) % size).reshape(draws, -1)[:, :size]
    flat = (places + np.arange(draws)[:, None] * size).ravel()
    return np.bincount(flat, minlength=draws * size).reshape(draws, size).astype(np.float64)


def _rate_at(load: Floats, rate: Floats, number: Ints, count: int, at: float) -> float | None:
    """A rate at a load, linear between bins."""
    known = np.isfinite(rate)
    places = [i for i in range(count) if (known & (number == i)).any()]
    if not places:
        return None
    n = [float(load[known & (number == i)].mean()) for i in places]
    return float(np.interp(at, n, [float(rate[known & (number == i)].mean()) for i in places]))


def _bin(steps: Steps, rows: Ints) -> Bin:
    p99 = {}
    for name, of in steps.latencies.items():
        total = np.nan_to_num(of.counts[rows]).sum(axis=0, keepdims=True)
        if total[0, -1] >= MIN_FIRST_TOKENS:
            p99[name] = float(quantiles(Counts(of.bounds, total), PERCENTILE)[0])
    return Bin(
        concurrency=float(steps.concurrency[rows].mean()),
        running=float(steps.running[rows].mean()),
        waiting=float(np.nan_to_num(steps.waiting[rows]).mean()),
        tokens=_mean(steps.tokens[rows]),
        requests=_mean(steps.requests[rows]),
        steps=len(rows),
        p99=p99,
    )


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _now(steps: Steps) -> float | None:
    if not len(steps.times):
        return None
    recent = steps.concurrency[steps.times > steps.times[-1] - max(NOW_SECONDS, steps.step)]
    return _mean(recent)


def _littles_gap(steps: Steps) -> float | None:
    """Little, A Proof for the Queuing Formula L = λW, Operations Research 1961: requests in the engine are their rate
    times their mean residence. Both over all steps in which both are known."""
    known = np.isfinite(steps.residence) & np.isfinite(steps.concurrency)
    measured = float(steps.concurrency[known].sum())
    if float(np.nansum(steps.requests[known])) * steps.step < LITTLE_REQUESTS or measured <= 0:
        return None
    return float(steps.residence[known].sum()) / measured - 1


def _burst(steps: Steps) -> float | None:
    """Arrivals are what finished and what the load grew by."""
    if len(steps.times) < BURST_STEPS:
        return None
    change = np.diff(steps.concurrency) / np.diff(steps.times)
    arrivals = np.maximum(steps.requests[1:] + change, 0.0)[np.diff(steps.times) < 1.5 * steps.step]
    arrivals = arrivals[np.isfinite(arrivals)]
    if len(arrivals) < BURST_STEPS or arrivals.mean() <= 0:
        return None
    return float(np.quantile(arrivals, PERCENTILE) / arrivals.mean())
