"""What engines did, step by step: load, work done and latencies, each over the same few seconds.

Read with the same few queries from a window, a history or a server, so that what is computed of them is the same.

Counters are read where steps end, with the times of the rows that they are from, and what they grew by is divided by
the seconds between those rows. PromQL's rate() extrapolates to the ends of its window instead: with the few rows of a
step, not evenly apart as those of a history are, it is off by a factor of two now and then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvitals.diagnoser.entities import ENTITIES
from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.promql import Expr, Range, Selector, Series
from kvitals.series.promql.nodes import rebuild
from kvitals.series.promql.rewrite import map_children
from kvitals.series.types import METRIC_NAME, Floats, Labels, Matcher, MatchOp, SeriesSource

STEP_ROWS = 4
"""Rows in a step: the mean of a gauge takes some."""
LATE = 2.0
"""Steps between two rows after which the rows between them are missing."""
JITTER = 0.05
"""Of the seconds between two rows, by which a cycle may be late."""
MIN_STEP_SECONDS, MAX_STEP_SECONDS = 5.0, 300.0
SECONDS_AT_ONCE = 6 * 3600.0
"""That one question asks about: a histogram of many engines is large."""

Ask = Callable[[Expr, float, float, float], list[Series]]
"""An expression from one time to another, a value each so many seconds."""

_BY = ", ".join(SCOPES["engine"])
_GAUGES = {"running": "kvitals_requests_running", "waiting": "kvitals_requests_waiting"}
_ROW = "row"
_COUNTERS = {
    "tokens": ("kvitals_generation_tokens_total",),
    "requests": ("kvitals_requests_finished_total", "kvitals_e2e_seconds_count"),
    "residence": ("kvitals_e2e_seconds_sum",),
}
_LATENCIES = {"ttft_p99": "kvitals_ttft_seconds_bucket", "itl_p99": "kvitals_itl_seconds_bucket"}
OBJECTIVES = tuple(_LATENCIES)
_SERIES = ("times", "running", "waiting", "tokens", "requests", "residence", "engines")


@dataclass(frozen=True)
class Counts:
    """Observations of a histogram: counts[step, i] are those up to bounds[i] seconds; the last bound is infinity."""

    bounds: Floats
    counts: Floats


@dataclass(frozen=True)
class Steps:
    """What one engine, or several together, did. Arrays have a value a step, NaN where it is not known.

    times: ends of the steps, seconds since the epoch. running, waiting: requests on average. tokens, requests:
    generated and finished, a second. residence: seconds that finished requests had spent in the engine, a second.
    """

    entity: Labels
    step: float
    times: Floats
    running: Floats
    waiting: Floats
    tokens: Floats
    requests: Floats
    residence: Floats
    latencies: Mapping[str, Counts]
    engines: Floats  # that were there

    @property
    def concurrency(self) -> Floats:
        """Requests that are in the engine, running or waiting; those that wait count as none where nobody tells."""
        return self.running + np.nan_to_num(self.waiting)


def step_of(gap: float) -> float:
    """How long a step is where rows are `gap` seconds apart."""
    return float(min(max(STEP_ROWS * gap, MIN_STEP_SECONDS), MAX_STEP_SECONDS))


def whole_steps(start: float, end: float, step: float) -> tuple[float, float]:
    """The steps that a time touches and that have ended, as the first one's begin and the last one's end.

    They begin at multiples of their length, so whoever asks has the same steps and the same figures of them.
    """
    return math.floor(start / step) * step, math.floor(end / step) * step


def row_gap(source: SeriesSource, start: float, end: float) -> float | None:
    """Seconds between the rows of targets from start to end, with most of them, without what a cycle is late by; None
    where none has two."""
    frames = source.select([Matcher(METRIC_NAME, MatchOp.EQ, ENTITIES)], start, end)
    gaps = np.concatenate([np.diff(frame.times) for frame in frames] or [np.empty(0)])
    gap = float(np.median(gaps)) if len(gaps) else None
    whole = float(round(gap)) if gap is not None else None
    return whole if gap is not None and whole is not None and abs(gap - whole) < JITTER * gap else gap


def gather(ask: Ask, start: float, end: float, step: float) -> list[Steps]:
    """What each engine did from start to end. The number of questions does not depend on how many engines there are."""
    last = start + max(int((end - start) / step), 1) * step
    found: dict[Labels, dict[str, dict[int, float]]] = {}
    buckets: dict[Labels, dict[str, dict[float, dict[int, float]]]] = {}
    at_once = max(int(SECONDS_AT_ONCE / step), 1) * step
    for begin in np.arange(start, last - step / 2, at_once).tolist():
        until = min(begin + at_once, last)
        for name, text in _questions(step).items():
            first = begin + step if name in _GAUGES else begin
            for one in ask(expression(text), first, until, step):
                entity, places = one.labels.keep(SCOPES["engine"]), np.rint((one.times - start) / step).astype(int)
                row = dict(zip(places.tolist(), one.values.tolist(), strict=True))
                if name in _LATENCIES:
                    of = buckets.setdefault(entity, {}).setdefault(name, {})
                    if (bound := bucket_bound(one.labels.get("le", ""))) is not None:
                        of.setdefault(bound, {}).update(row)
                else:
                    found.setdefault(entity, {}).setdefault(name, {}).update(row)
    return [
        _steps(entity, start, step, found[entity], buckets.get(entity, {}))
        for entity in sorted(found, key=str)
        if "running" in found[entity]
    ]


def ask_matching(ask: Ask, matchers: Sequence[Matcher]) -> Ask:
    """The same questions about series that match these, too. Not for subqueries."""

    def narrow(expr: Expr) -> Expr:
        if isinstance(expr, Selector):
            return rebuild(expr, matchers=(*expr.matchers, *matchers))
        if isinstance(expr, Range):
            return rebuild(expr, selector=narrow(expr.selector))
        return map_children(expr, narrow)

    return lambda expr, start, end, step: ask(narrow(expr), start, end, step)


def engines(ask: Ask, at: float) -> int:
    """How many engines there are."""
    return len(ask(expression(f"max by ({_BY}) ({ENTITIES})"), at, at, 1.0))


def pools(ask: Ask, at: float) -> dict[Labels, Labels]:
    """The pool of each engine that has one, as its target says."""
    told = ask(expression(f"max by ({_BY}, pool) ({ENTITIES})"), at, at, 1.0)
    return {s.labels.keep(SCOPES["engine"]): s.labels.keep(SCOPES["pool"]) for s in told if s.labels.get("pool")}


def objectives(ask: Ask, at: float) -> dict[Labels, dict[str, float]]:
    """What each engine promises: objective -> seconds."""
    found: dict[Labels, dict[str, float]] = {}
    for one in ask(expression(f'max by ({_BY}, slo) (kvitals_slo_seconds{{class=""}})'), at, at, 1.0):
        found.setdefault(one.labels.keep(SCOPES["engine"]), {})[one.labels.get("slo", "")] = float(one.values[-1])
    return found


def join_steps(before: Steps, after: Steps, since: float) -> Steps:
    """One after the other; what is older than `since` is let go. Both have the same step."""
    old, new = before.times >= since, after.times > (before.times[-1] if len(before.times) else -np.inf) + 1e-3
    series: dict[str, Any] = {
        name: np.concatenate([getattr(before, name)[old], getattr(after, name)[new]]) for name in _SERIES
    }
    latencies = {}
    for name in {*before.latencies, *after.latencies}:
        a, b = (s.latencies.get(name) for s in (before, after))
        known = b if b is not None else a
        assert known is not None
        parts = [
            part.counts[rows]
            if part is not None and np.array_equal(part.bounds, known.bounds)
            else np.full((int(rows.sum()), len(known.bounds)), np.nan)
            for part, rows in ((a, old), (b, new))
        ]
        latencies[name] = Counts(known.bounds, np.concatenate(parts))
    return replace(after, latencies=latencies, **series)


def steps_after(steps: Steps, since: float) -> Steps:
    """The steps that begin at `since`, seconds since the epoch, or later."""
    kept = steps.times - steps.step >= since - 1e-3
    series: dict[str, Any] = {name: getattr(steps, name)[kept] for name in _SERIES}
    latencies = {name: Counts(of.bounds, of.counts[kept]) for name, of in steps.latencies.items()}
    return replace(steps, latencies=latencies, **series)


def together(several: Sequence[Steps], entity: Labels) -> Steps:
    """Engines of a pool as one, in the steps in which all that are there now were there.

    An engine that came or went makes another pool of it, with another operating point.
    """
    times = np.unique(np.concatenate([np.round(one.times, 3) for one in several]))
    step = several[0].step

    def placed(one: Steps, values: Floats) -> Floats:
        row = np.full(len(times), np.nan)
        row[times.searchsorted(np.round(one.times, 3))] = values
        return row

    there = np.sum([np.isfinite(placed(one, one.running)) for one in several], axis=0)
    last = there[-1] if len(there) else 0
    kept = there == last

    def total(name: str) -> Floats:
        values = np.array([placed(one, getattr(one, name)) for one in several])
        return np.asarray(np.nansum(values, axis=0)[kept], dtype=np.float64)

    latencies = {}
    for name in several[0].latencies:
        bounds = several[0].latencies[name].bounds
        like = [one for one in several if name in one.latencies and np.array_equal(one.latencies[name].bounds, bounds)]
        rows = np.zeros((len(times), len(bounds)))
        for one in like:
            rows[times.searchsorted(np.round(one.times, 3))] += np.nan_to_num(one.latencies[name].counts)
        latencies[name] = Counts(bounds, rows[kept])
    names = ("running", "waiting", "tokens", "requests", "residence")
    sums = {name: total(name) for name in names}
    return Steps(entity, step, times[kept], latencies=latencies, engines=there[kept].astype(np.float64), **sums)


def _questions(step: float) -> dict[str, str]:
    window = f"[{round(step)}s]"
    gauges = {k: f"sum by ({_BY}) (avg_over_time({family}{window}))" for k, family in _GAUGES.items()}
    totals = {k: " or ".join(f"sum by ({_BY}) ({family})" for family in either) for k, either in _COUNTERS.items()}
    counts = {k: f"sum by ({_BY}, le) ({family})" for k, family in _LATENCIES.items()}
    row = f"max by ({_BY}) (timestamp({_GAUGES['running']}))"
    return {**gauges, **totals, **counts, _ROW: row}


def _steps(
    entity: Labels,
    start: float,
    step: float,
    rows: Mapping[str, Mapping[int, float]],
    buckets: Mapping[str, Mapping[float, Mapping[int, float]]],
) -> Steps:
    places = sorted(rows["running"])
    index = {place: i for i, place in enumerate(places)}
    seconds = _grown(rows.get(_ROW, {}), places)
    seconds[~((seconds > 0) & (seconds <= LATE * step))] = np.nan

    def column(name: str) -> Floats:
        return _grown(rows.get(name, {}), places) / seconds

    latencies = {}
    for name, of in buckets.items():
        bounds = np.array(sorted(one for one in of if one == one))
        if len(bounds) and np.isinf(bounds[-1]):
            counts = np.column_stack([_grown(of[one], places) for one in bounds.tolist()])
            counts[np.isnan(seconds) | np.isnan(counts).any(axis=1)] = np.nan
            latencies[name] = Counts(bounds, counts)
    return Steps(
        entity,
        step,
        start + np.array(places) * step + 0.0,
        _placed(rows.get("running", {}), index),
        _placed(rows.get("waiting", {}), index),
        column("tokens"),
        column("requests"),
        column("residence"),
        latencies,
        np.ones(len(places)),
    )


def _grown(level: Mapping[int, float], places: Sequence[int]) -> Floats:
    """What a counter grew by in each step; NaN where it is not known or fell, as when an engine starts anew."""
    values = np.array([level.get(p, math.nan) - level.get(p - 1, math.nan) for p in places], dtype=np.float64)
    values[values < 0] = np.nan
    return values


def _placed(row: Mapping[int, float], index: Mapping[int, int]) -> Floats:
    values = np.full(len(index), np.nan)
    for place, value in row.items():
        if place in index:
            values[index[place]] = value
    return values
