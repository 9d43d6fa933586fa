"""Change points: since when an engine has behaved as it does now, so that a window need not mix two states.

The method is binary segmentation for a step in the level of one series at a time:

1. The end of the recording is cut into at most `MAX_BUCKETS` buckets of two rows. Each engine has a series for its
   requests in flight, its finished requests, its tokens, its time to first token, its time between tokens, and for
   whether it answers scrapes.
2. The split is where two levels leave the least squared error. It is a change where all of these hold: each side has
   at least `MIN_BUCKETS` values; at least 90 % of the pairs of a value before and one after are in the same order (the
   statistic of Mann and Whitney, 1947); the medians differ by a factor of `FACTOR`; and two levels leave less error
   than a straight line, so that a ramp has no change point.
3. The part after the split is cut again, until no change is left. The latest changes come first.

The cost is bounded: 90 buckets make 8,100 pairs per series, whatever the recording's length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.steps import Ask, Counts, gather, objectives
from kvitals.diagnoser.text import render
from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES
from kvitals.series.types import Floats

ROWS_PER_BUCKET = 2
MAX_BUCKETS = 90
MIN_BUCKETS = 5
MIN_SECONDS = 12.0
"""The shortest regime that is judged by itself: as long as a live triage of an engine."""
ORDERED = 0.9
FACTOR = 1.5
MAX_CHANGES = 4
"""Regimes that are looked at before the last one."""
LEAST_IN_FLIGHT = 0.5
"""Requests at a time that a change of load has to reach: an idle engine has none, and any factor of that is more."""


@dataclass(frozen=True)
class LevelChange:
    """The level of one series changed. at: seconds since the epoch; until: the end of the last bucket that has nothing
    of the new level. before, after: medians in `unit`."""

    at: float
    until: float
    engine: str
    title: str
    before: float
    after: float
    unit: str

    def __str__(self) -> str:
        return f"{self.engine}: {self.title} {render(self.before, self.unit)} → {render(self.after, self.unit)}"


@dataclass(frozen=True)
class _Course:
    """One series of an engine. least: a change to less than this is none."""

    engine: str
    title: str
    unit: str
    least: float
    step: float
    times: Floats
    values: Floats


def level_changes(ask: Ask, first: float, end: float, gap: float) -> list[LevelChange]:
    """The changes of level in the last `MAX_BUCKETS` buckets before `end`, the earliest first.

    first: when the recording begins; gap: seconds between its rows. Times are in seconds since the epoch. At most one
    change is returned for each stretch of `MIN_SECONDS`, that of the earliest series, and none within `MIN_SECONDS` of
    either end.
    """
    step = max(1.0, round(ROWS_PER_BUCKET * gap))
    count = min(MAX_BUCKETS, int((end - first) / step))
    if count < 2 * MIN_BUCKETS:
        return []
    start = end - count * step
    found = [
        change
        for course in _courses(ask, start, end, step)
        for change in _changes(course)
        if start + MIN_SECONDS <= change.at <= end - MIN_SECONDS
    ]
    kept: list[LevelChange] = []
    for change in sorted(found, key=lambda one: (one.at, one.engine, one.title)):
        if not kept or change.at - kept[-1].at >= MIN_SECONDS:
            kept.append(change)
    return kept[-MAX_CHANGES:]


def _courses(ask: Ask, start: float, end: float, step: float) -> Iterator[_Course]:
    limits = objectives(ask, end)
    for steps in gather(ask, start, end, step):
        name = steps.entity.get("engine", "")
        times = steps.times
        yield _Course(name, "requests in flight", "requests", LEAST_IN_FLIGHT, step, times, steps.concurrency)
        yield _Course(name, "finished requests", "per_second", LEAST_IN_FLIGHT / step, step, times, steps.requests)
        for objective, title in (("ttft_p99", "time to first token"), ("itl_p99", "time between tokens")):
            if objective in steps.latencies:
                least = limits.get(steps.entity, {}).get(objective, 0.0) / 2
                yield _Course(name, title, "seconds", least, step, times, _middle(steps.latencies[objective]))
    by = ", ".join(SCOPES["engine"])
    for series in ask(expression(f"max by ({by}) ({ENTITIES})"), start + step, end, step):
        yield _Course(
            series.labels.get("engine", ""), "scrapes answered", "ratio", 0.5, step, series.times, series.values
        )


def _middle(counts: Counts) -> Floats:
    """The geometric mean of what was observed in each bucket of time, by the upper bounds of the histogram; NaN where
    nothing was observed."""
    bounds = counts.bounds.copy()
    bounds[-1] = 2 * bounds[-2] if len(bounds) > 1 else 1.0
    each = np.diff(counts.counts, axis=1, prepend=0.0)
    total = each.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.exp(each @ np.log(np.maximum(bounds, 1e-6)) / total), dtype=np.float64)


def _changes(course: _Course) -> Iterator[LevelChange]:
    """The changes of one series, the earliest first."""
    there = np.isfinite(course.values)
    times, values = course.times[there], course.values[there]
    begin = 0
    for _ in range(MAX_CHANGES):
        split = _split(values[begin:])
        if split is None:
            return
        before, after = (float(np.median(side)) for side in (values[begin : begin + split], values[begin + split :]))
        begin += split
        if not _apart(before, after, course.least):
            continue
        # A bucket ends at its time: the level changed after the end of the last one before.
        at = float(times[begin - 1])
        yield LevelChange(at, at - course.step, course.engine, course.title, before, after, course.unit)


def _apart(before: float, after: float, least: float) -> bool:
    low, high = sorted((before, after))
    return high >= least and high > FACTOR * low


def _split(values: Floats) -> int | None:
    """Where two levels fit best, as the number of values before; None where the level does not change."""
    n = len(values)
    if n < 2 * MIN_BUCKETS:
        return None
    sums = np.cumsum(values)
    before = np.arange(1, n)
    gain = (sums[:-1] - before * sums[-1] / n) ** 2 * n / (before * (n - before))
    inside = slice(MIN_BUCKETS - 1, n - MIN_BUCKETS)
    split = int(np.argmax(gain[inside])) + MIN_BUCKETS
    total = float(((values - values.mean()) ** 2).sum())
    x = np.arange(n) - (n - 1) / 2
    of_line = float((x @ values) ** 2 / (x @ x))
    if gain[split - 1] <= of_line or total <= 0.0:
        return None
    first, second = values[:split], values[split:]
    rises = float((first[:, None] < second[None, :]).mean())
    falls = float((first[:, None] > second[None, :]).mean())
    return split if max(rises, falls) >= ORDERED else None
