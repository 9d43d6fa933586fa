"""What one engine did between two scrapes: the counters that its step time is fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from kvitals.diagnoser.steps import Ask
from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.promql import Series
from kvitals.series.types import Floats, Labels

_BY = ", ".join(SCOPES["engine"])
_COUNTERS = {
    "steps": "kvitals_step_tokens_count",
    "prompt": "kvitals_prompt_tokens_total",
    "cached": "kvitals_prefix_hit_tokens_total",
    "generated": "kvitals_generation_tokens_total",
    "itl_count": "kvitals_itl_seconds_count",
    "itl_seconds": "kvitals_itl_seconds_sum",
    "ttft_count": "kvitals_ttft_seconds_count",
    "ttft_seconds": "kvitals_ttft_seconds_sum",
    "queue_seconds": "kvitals_queue_seconds_sum",
    "prefill_seconds": "kvitals_prefill_seconds_sum",
    "finished": "kvitals_e2e_seconds_count",
    "preempted": "kvitals_preemptions_total",
}
_OPTIONAL = ("steps", "cached", "queue_seconds", "prefill_seconds", "preempted")
"""Counters that an engine may not have; the fit does with others in their place."""
_LENGTH_COUNTERS = ("prompt", "cached", "ttft_count")
_GAUGES = {
    "running": "kvitals_requests_running",
    "waiting": "kvitals_requests_waiting",
    "kv_usage": "kvitals_kv_usage_ratio",
}
_HISTOGRAMS = {
    "itl": "kvitals_itl_seconds_bucket",
    "ttft": "kvitals_ttft_seconds_bucket",
    "prompt": "kvitals_request_prompt_tokens_bucket",
    "output": "kvitals_request_generation_tokens_bucket",
    "step": "kvitals_step_tokens_bucket",
}


@dataclass(frozen=True)
class ScrapeIntervals:
    """Intervals between scrapes of one engine, in order of time. Arrays have a value an interval.

    ends: seconds since the epoch; seconds: length. Counters: growth in the interval, NaN where the engine has none.
    prefills: steps with prompt tokens, as far as their size tells them apart, else NaN. Gauges: at the interval's end.
    """

    ends: Floats
    seconds: Floats
    steps: Floats
    prompt: Floats
    cached: Floats
    generated: Floats
    itl_count: Floats
    itl_seconds: Floats
    ttft_count: Floats
    ttft_seconds: Floats
    queue_seconds: Floats
    prefill_seconds: Floats
    finished: Floats
    preempted: Floats
    prefills: Floats
    running: Floats
    waiting: Floats
    kv_usage: Floats

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def present(self) -> Floats:
        """Requests in the engine at the end of each interval."""
        return self.running + np.nan_to_num(self.waiting)

    @property
    def computed(self) -> Floats:
        """Prompt tokens computed: all but those from the prefix cache."""
        return np.maximum(self.prompt - np.nan_to_num(self.cached), 0.0)

    def select(self, rows: slice) -> ScrapeIntervals:
        """Some of the intervals."""
        return ScrapeIntervals(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class BucketCounts:
    """Observations by upper bound, cumulative; the last bound is infinity."""

    bounds: Floats
    counts: Floats

    @property
    def total(self) -> float:
        """Observations in all."""
        return float(self.counts[-1]) if len(self.counts) else 0.0

    def quantile(self, share: float) -> float | None:
        """As PromQL's histogram_quantile interpolates it; None without observations."""
        if self.total <= 0 or len(self.bounds) < 2:
            return None
        rank = share * self.total
        at = int(np.searchsorted(self.counts, rank, side="left"))
        if at >= len(self.bounds) - 1:
            return float(self.bounds[-2])
        low = float(self.bounds[at - 1]) if at else 0.0
        before = float(self.counts[at - 1]) if at else 0.0
        inside = float(self.counts[at]) - before
        return low + (float(self.bounds[at]) - low) * ((rank - before) / inside if inside else 1.0)

    def of(self, values: Floats, weights: Floats) -> BucketCounts:
        """Other observations in the same buckets."""
        place = np.searchsorted(self.bounds, values, side="left")
        counts = np.bincount(np.minimum(place, len(self.bounds) - 1), weights=weights, minlength=len(self.bounds))
        return BucketCounts(self.bounds, np.cumsum(counts))


def read_intervals(ask: Ask, start: float, end: float, gap: float) -> dict[Labels, ScrapeIntervals]:
    """The intervals of each engine from start to end, with rows `gap` seconds apart. Engines without tokens generated
    or inter-token times are left out; intervals over a restart are dropped."""
    times = _asked(ask, f"max by ({_BY}) (timestamp({_GAUGES['running']}))", start, end, gap)
    levels = {name: _asked(ask, f"sum by ({_BY}) ({family})", start, end, gap) for name, family in _COUNTERS.items()}
    gauges = {name: _asked(ask, f"sum by ({_BY}) ({family})", start, end, gap) for name, family in _GAUGES.items()}
    sizes = _step_sizes(ask, start, end, gap)
    intervals: dict[Labels, ScrapeIntervals] = {}
    for engine, at in times.items():
        needed = [name for name in _COUNTERS if name not in _OPTIONAL]
        if all(engine in levels[name] for name in needed) and engine in gauges["running"]:
            intervals[engine] = _intervals(
                at,
                {name: of.get(engine, {}) for name, of in levels.items()}
                | {"prefills": _prefills(sizes.get(engine, {}), levels, gauges["running"][engine], engine)},
                {name: of.get(engine, {}) for name, of in gauges.items()},
            )
    return intervals


def read_histograms(ask: Ask, engine: Labels, start: float, end: float) -> dict[str, BucketCounts]:
    """Growth of an engine's histograms of latencies and lengths from one time to another, without a restart between."""
    read: dict[str, BucketCounts] = {}
    for name, family in _HISTOGRAMS.items():
        growth: dict[float, float] = {}
        for sign, at in ((-1.0, start), (1.0, end)):
            for series in ask(expression(f"sum by ({_BY}, le) ({family})"), at, at, 1.0):
                le = bucket_bound(series.labels.get("le", ""))
                if le is not None and series.labels.keep(SCOPES["engine"]) == engine:
                    growth[le] = growth.get(le, 0.0) + sign * float(series.values[-1])
        bounds = sorted(growth)
        if bounds and np.isinf(bounds[-1]):
            read[name] = BucketCounts(np.array(bounds), np.maximum.accumulate([max(growth[le], 0.0) for le in bounds]))
    return read


def _asked(ask: Ask, text: str, start: float, end: float, gap: float) -> dict[Labels, dict[int, float]]:
    """Values by engine and by row."""
    return {
        series.labels.keep(SCOPES["engine"]): _rows(series, start, gap)
        for series in ask(expression(text), start, end, gap)
    }


def _step_sizes(ask: Ask, start: float, end: float, gap: float) -> dict[Labels, dict[float, dict[int, float]]]:
    """Counts of steps by the most tokens that they have, by engine and row."""
    sizes: dict[Labels, dict[float, dict[int, float]]] = {}
    for series in ask(expression(f"sum by ({_BY}, le) (kvitals_step_tokens_bucket)"), start, end, gap):
        if (bound := bucket_bound(series.labels.get("le", ""))) is not None:
            sizes.setdefault(series.labels.keep(SCOPES["engine"]), {})[bound] = _rows(series, start, gap)
    return sizes


def _prefills(
    sizes: Mapping[float, Mapping[int, float]],
    levels: Mapping[str, Mapping[Labels, Mapping[int, float]]],
    running: Mapping[int, float],
    engine: Labels,
) -> dict[int, float]:
    """A counter of the steps with more tokens than sequences decode at a time; empty where prompts are as small."""
    most = max(running.values(), default=0.0)
    limit = min((le for le in sizes if le >= most and np.isfinite(le)), default=None)
    levels_of = {name: of.get(engine, {}) for name, of in levels.items()}
    rows = [row for row in levels_of["prompt"] if row in levels_of["ttft_count"]]
    if limit is None or not rows:
        return {}
    first, last = min(rows), max(rows)
    grown = {name: levels_of[name].get(last, 0.0) - levels_of[name].get(first, 0.0) for name in _LENGTH_COUNTERS}
    computed = (grown["prompt"] - max(grown["cached"], 0.0)) / max(grown["ttft_count"], 1.0)
    if computed < limit:
        return {}
    return {row: total - sizes[limit].get(row, total) for row, total in levels_of["steps"].items()}


def _rows(series: Series, start: float, gap: float) -> dict[int, float]:
    places = np.rint((series.times - start) / gap).astype(int)
    return dict(zip(places.tolist(), series.values.tolist(), strict=True))


def _intervals(
    at: Mapping[int, float], levels: Mapping[str, Mapping[int, float]], gauges: Mapping[str, Mapping[int, float]]
) -> ScrapeIntervals:
    rows = sorted(at)
    rows = [row for i, row in enumerate(rows) if not i or at[row] > at[rows[i - 1]]]  # each scrape once
    times = np.array([at[row] for row in rows], dtype=np.float64)
    growth = {
        name: np.diff(np.array([of.get(row, np.nan) for row in rows], dtype=np.float64)) for name, of in levels.items()
    }
    kept = (growth["generated"] >= 0) & (growth["prompt"] >= 0) & (growth["finished"] >= 0)
    values = {name: np.where(of >= 0, of, np.nan)[kept] for name, of in growth.items()}
    gauge = {
        name: np.array([of.get(row, np.nan) for row in rows[1:]], dtype=np.float64)[kept] for name, of in gauges.items()
    }
    return ScrapeIntervals(times[1:][kept], np.diff(times)[kept], **values, **gauge)
