"""Where an engine stands: throughput and latency against concurrency, the knee, and how much is left to it.

The curve is X(N) = N / (R(N)^p + (N / B)^p)^(1/p): work done a second by N requests at a time. Alone, a request takes
R0 for a unit of work; beside others somewhat more, R(N) = R0 (1 + g (N - 1)), since a step takes longer the larger its
batch is; and the engine can do no more than B. p says how sharply the one turns into the other. The bounds are
operational analysis' (Denning and Buzen, The Operational Analysis of Queueing Network Models, ACM Computing Surveys
1978). With p = 1 and g = 0 steps grow with the batch without end; with a large p an engine fills up.

The knee is N* = Xmax R0, where Xmax is what X tends to: as many as, each as fast as alone, would do all that the engine
can. With g = 0 it is, for every p, also where power, X over residence, is largest (Kleinrock, Power and
Deterministic Rules of Thumb for Probabilistic Problems in Computer Communications, ICC 1979).

How sure it is comes from a moving block bootstrap of the steps (Künsch, Annals of Statistics 1989): steps in a row are
alike, so blocks of them are drawn. Bins are drawn too, with weights by chance (Rubin, The Bayesian Bootstrap, Annals of
Statistics 1981), and the interval is wider by as much as the curve is off them: no engine is a curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvitals.diagnoser.c_max import MIN_OBSERVATIONS, alike, crossing, in_time, isotonic_fit
from kvitals.diagnoser.change_effect import ConfigurationChange
from kvitals.diagnoser.load import littles_gap, loads, steady
from kvitals.diagnoser.steps import Counts, Steps
from kvitals.diagnoser.text import render
from kvitals.series.bucket_bound import bucket_around
from kvitals.series.types import Floats, Labels

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
SHAPES = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 12.0)
GROWTHS, GROWS_FROM = (0.02, 0.04, 0.08, 0.16), 4.0
"""Growth of one request's time per request beside it, and the shape from which on it is told apart from filling up."""
NOW_SECONDS = 60.0
BURST_STEPS = 50
DRAWS = 200


@dataclass(frozen=True)
class BoundedEstimate:
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
    """Steps of like load. concurrency: their mean, between lowest and highest. tokens, requests: a second; None where
    it is not told. p99: objective -> seconds, where enough were measured."""

    concurrency: float
    lowest: float
    highest: float
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

    concurrency: BoundedEstimate
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
    concurrency: BoundedEstimate | None
    requests: float | None
    tokens: float | None
    holds_to: float | None
    why: str  # why there is no C_max; empty where there is


@dataclass(frozen=True)
class OperatingPoint:
    """All of it, of one engine or a pool. `missing`: what is not known and what it takes. now: requests at a time in
    the last minutes. littles_gap: rate times residence over measured concurrency, less 1. burst: p99 of arrivals a
    step over their mean. changed_at, changed: the last change of configuration, seconds since the epoch, and its
    settings; only steps after it are counted. None and empty where there was none."""

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
    changed_at: float | None = None
    changed: tuple[str, ...] = ()


def under_configuration(point: OperatingPoint, change: ConfigurationChange | None) -> OperatingPoint:
    """A point of the steps after a change of configuration, with that change stated in it."""
    if change is None:
        return point
    return replace(point, changed_at=change.first, changed=tuple(str(one) for one in change.settings))


def operating_point(steps: Steps, objectives: Mapping[str, float], draws: int = DRAWS, seed: int = 1) -> OperatingPoint:
    """What steps tell. objectives: `ttft_p99`, `itl_p99` -> seconds. draws: of the bootstrap, all from `seed`."""
    unit = "tokens" if 2 * np.isfinite(steps.tokens).sum() > len(steps.tokens) else "requests"
    work = steps.tokens if unit == "tokens" else steps.requests
    load = loads(steps)
    some = np.isfinite(load) & np.isfinite(work) & (load >= BUSY) & (work > 0)
    busy = np.flatnonzero(some & steady(load, steps))
    number = _bins(load[busy])
    kept = _without_outliers(load[busy] / work[busy], number)
    busy, number = busy[kept], _renumbered(number[kept])
    count = int(number.max()) + 1 if len(number) else 0
    drawn = _draws(len(busy), draws, seed)
    missing: list[str] = []
    knee = None
    if why := _too_little(load[busy], count, int(some.sum())):
        missing.append(why)
    else:
        knee, why = _knee(load[busy], work[busy], number, count, drawn)
        if why:
            missing.append(why)
    limits = tuple(
        _limit(name, seconds, steps, load, busy, drawn)
        for name, seconds in objectives.items()
        if name in steps.latencies
    )
    now = _now(steps, load)
    return OperatingPoint(
        entity=steps.entity,
        engines=int(steps.engines[-1]) if len(steps.engines) else 0,
        start=float(steps.times[0] - steps.step) if len(steps.times) else math.nan,
        end=float(steps.times[-1]) if len(steps.times) else math.nan,
        step=steps.step,
        steps=len(steps.times),
        busy_steps=len(busy),
        unit=unit,
        bins=tuple(_bin(steps, load, busy[number == i]) for i in range(count)),
        knee=knee,
        limits=limits,
        now=now,
        headroom=1 - now / knee.concurrency.value if knee is not None and now is not None else None,
        littles_gap=littles_gap(steps),
        burst=_burst(steps, load),
        missing=(
            *missing,
            *(f"C_max at {one.objective}: {one.why}" for one in limits if one.why),
            *(text for one in limits if (text := _unresolved(one, steps.latencies[one.objective].bounds))),
        ),
    )


class Curves(NamedTuple):
    """A fitted curve in each place: seconds of a unit of work alone, the bound B, p, g, and the squared error, which is
    infinite where no curve fits."""

    alone: Floats
    bound: Floats
    sharpness: Floats
    growth: Floats
    error: Floats

    @property
    def most(self) -> Floats:
        """What throughput tends to."""
        most: Floats = ((self.growth * self.alone) ** self.sharpness + self.bound**-self.sharpness) ** (
            -1 / self.sharpness
        )
        return most

    def throughput(self, load: Floats) -> Floats:
        """Work a second at a load in each place."""
        one = self.alone * (1 + self.growth * (load - 1))
        done: Floats = load * (one**self.sharpness + (load / self.bound) ** self.sharpness) ** (-1 / self.sharpness)
        return done


def fit_curves(load: Floats, work: Floats, weight: Floats) -> Curves:
    """The curves closest to bins, one for each row.

    For given p and g the curve is a line, (N/X)^p = R0^p (1 + g (N - 1))^p + N^p / B^p, which weighted least squares
    solve at once; a weight of y^-2 makes it the relative error of X.
    """
    rows = len(load)
    scale_n, scale_r = load.max(), (load / work).max()
    n, r = load / scale_n, load / work / scale_r
    logs = np.log(work)
    none = np.full(rows, np.nan)
    best = Curves(none, none, none, none, np.full(rows, np.inf))
    with np.errstate(all="ignore"):
        for p, g in [(p, g) for p in SHAPES for g in (0.0, *GROWTHS) if g == 0 or p >= GROWS_FROM]:
            one, full = (1 + g * (load - 1)) ** p / r**p, n**p / r**p
            s11, s12, s22 = ((weight * a * b).sum(axis=1) for a, b in ((one, one), (one, full), (full, full)))
            t1, t2 = ((weight * a).sum(axis=1) for a in (one, full))
            det = s11 * s22 - s12 * s12
            a, b = (t1 * s22 - t2 * s12) / det, (t2 * s11 - t1 * s12) / det
            good = (a > 0) & (b > 0) & (det > 1e-9 * s11 * s22)
            alone = np.where(good, a, 1.0) ** (1 / p) * scale_r
            bound = np.where(good, b, 1.0) ** (-1 / p) * scale_n / scale_r
            this = Curves(alone, bound, np.full(rows, p), np.full(rows, g), np.zeros(rows))
            model = np.log(Curves(*(of[:, None] for of in this)).throughput(load))
            this = this._replace(error=np.where(good, (weight * (model - logs) ** 2).sum(axis=1), np.inf))
            better = this.error < best.error
            best = Curves(*(np.where(better, new, old) for new, old in zip(this, best, strict=True)))
    return best


def _too_little(load: Floats, bins: int, some: int) -> str:
    """What it takes for a curve; empty where there is enough. some: steps with requests, steady or not."""
    if len(load) < MIN_STEPS:
        return (
            f"the knee: only {len(load)} of {some} steps with requests had a steady load, and at least "
            f"{MIN_STEPS} are needed: use a longer time range"
        )
    if bins < MIN_BINS or load.max() < SPREAD * load.min():
        return (
            f"the knee: load stayed between {load.min():.1f} and {load.max():.1f} requests at a time, but the "
            f"range must span a factor of at least {SPREAD:g}: include a quiet and a busy hour"
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
    # Draws of steps tell how sure each bin is, and those of bins how much hangs on a single one.
    weight = np.where(gone, 0.0, size / (size + WEIGHT_STEPS))
    weight[1:] *= np.random.default_rng(count).exponential(size=(len(drawn), count))
    curves = fit_curves(n, x, weight)
    if not math.isfinite(float(curves.error[0])):
        return None, (
            f"the knee: throughput still grows in proportion to load, up to {load.max():.1f} requests at a time"
        )
    knees = curves.alone * curves.most
    spread = knees[1:][np.isfinite(knees[1:])]
    value, top = float(knees[0]), float(n[0].max())
    if top < BEYOND * value:
        return None, (
            f"the knee: it is at {value / BEYOND:.0f} or more requests at a time; the busiest steps had "
            f"{top:.1f}, and throughput still grew there"
        )
    if n[0].min() > value:
        return None, (
            f"the knee: load was never below it; the quietest steps had {n[0].min():.1f} requests at a time, "
            f"and quieter ones are needed"
        )
    low, high = np.quantile(spread, (0.05, 0.95)).tolist() if len(spread) >= len(drawn) / 2 else (0.0, math.inf)
    off = 1 + math.sqrt(float(curves.error[0]) / float(weight[0].sum()))  # by as much is the curve off the bins
    estimate = BoundedEstimate(value, min(low, value) / off, max(high, value) * off)
    if not estimate.error <= SURE:
        return None, (
            f"the knee: it is between {estimate.low:.1f} and {estimate.high:.1f} requests at a time; steps with "
            f"other loads are needed"
        )
    there = float(curves.throughput(np.full(len(knees), value))[0])
    return Knee(estimate, float(curves.most[0]), 1 / float(curves.alone[0]), there, float(curves.sharpness[0])), ""


def _limit(name: str, seconds: float, steps: Steps, load: Floats, busy: Ints, drawn: Floats) -> Limit:
    """Up to which load the objective holds for first tokens, or for gaps between tokens."""
    of = steps.latencies[name]
    n, counts = load[busy], np.nan_to_num(of.counts[busy])
    total = counts[:, -1]
    late = total - in_time(Counts(of.bounds, counts), seconds)
    number, count = alike(n, total)
    if count < 1:
        why = f"fewer than {MIN_OBSERVATIONS} were measured" if len(busy) else "nothing was measured"
        return Limit(name, seconds, None, None, None, None, why)
    member = np.zeros((len(n), count))
    member[np.arange(len(n)), number] = 1.0
    weights = np.vstack([np.ones((1, len(n))), drawn])
    lates, totals = (weights * late) @ member, (weights * total) @ member
    size = weights @ member
    at = np.where(size > 0, (weights * n) @ member / np.maximum(size, 1), (n @ member) / member.sum(axis=0))
    share = isotonic_fit(lates[0] / np.maximum(totals[0], 1e-9), totals[0])
    holds_to = max((float(a) for a, b in zip(at[0], share, strict=True) if b <= 1 - PERCENTILE), default=None)
    crossed = [crossing(*row, 1 - PERCENTILE) for row in zip(at, lates, totals, strict=True)]
    here = crossed[0]
    if here is None:
        why = (
            f"the objective was met at all observed loads, up to {holds_to:.1f} requests at a time"
            if holds_to is not None
            else f"the objective was missed at all loads with enough data, from {at[0].min():.1f} requests at a time on"
        )
        return Limit(name, seconds, None, None, None, holds_to, why)
    # Where between two loads it is crossed nobody saw, so in each draw it may be anywhere there.
    places = np.random.default_rng(len(crossed)).random(len(crossed))
    found = [c.below + u * (c.above - c.below) for c, u in zip(crossed, places.tolist(), strict=True) if c is not None]
    low, high = np.quantile(found, (0.05, 0.95)).tolist()
    requests, tokens = (_rate_at(n, rate[busy], number, count, here.at) for rate in (steps.requests, steps.tokens))
    estimate = BoundedEstimate(here.at, min(low, here.at), max(high, here.at))
    return Limit(name, seconds, estimate, requests, tokens, holds_to, "")


def _unresolved(limit: Limit, bounds: Floats) -> str:
    """That C_max rests on a share that is interpolated in a histogram bucket; empty where it does not."""
    around = bucket_around(limit.seconds, bounds.tolist())
    if around is None or limit.concurrency is None:
        return ""
    low, high = (render(one, "seconds") for one in around)
    bucket = f"the bucket {low} to {high}" if math.isfinite(around[1]) else f"the last bucket, above {low}"
    return (
        f"how exact C_max at {limit.objective} is: the objective of {render(limit.seconds, 'seconds')} is inside "
        f"{bucket}, where the share is interpolated"
    )


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


def _bin(steps: Steps, load: Floats, rows: Ints) -> Bin:
    p99 = {}
    for name, of in steps.latencies.items():
        total = np.nan_to_num(of.counts[rows]).sum(axis=0, keepdims=True)
        if total[0, -1] >= MIN_OBSERVATIONS:
            p99[name] = float(quantiles(Counts(of.bounds, total), PERCENTILE)[0])
    return Bin(
        concurrency=float(load[rows].mean()),
        lowest=float(load[rows].min()),
        highest=float(load[rows].max()),
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


def _now(steps: Steps, load: Floats) -> float | None:
    if not len(steps.times):
        return None
    recent = load[steps.times > steps.times[-1] - max(NOW_SECONDS, steps.step)]
    return _mean(recent)


def _burst(steps: Steps, load: Floats) -> float | None:
    """Arrivals are what finished and what the load grew by."""
    if len(steps.times) < BURST_STEPS:
        return None
    change = np.diff(load) / np.diff(steps.times)
    arrivals = np.maximum(steps.requests[1:] + change, 0.0)[np.diff(steps.times) < 1.5 * steps.step]
    arrivals = arrivals[np.isfinite(arrivals)]
    if len(arrivals) < BURST_STEPS or arrivals.mean() <= 0:
        return None
    return float(np.quantile(arrivals, PERCENTILE) / arrivals.mean())
