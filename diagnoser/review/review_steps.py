"""What a fleet did over a week, step by step: the same few queries over a history or a server.

How many questions are asked depends on how long the time is and not on how many engines there are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kvitals.diagnoser.steps import Ask, Counts
from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.promql import Series
from kvitals.series.types import Floats, Labels

ENGINE = SCOPES["engine"]
PLACE = ("cluster", "pool", "model", "role", "hardware")
FINE_GAP = 30.0
"""Rows that are closer together are many: one question then asks about a quarter of a day, else about a day."""
STEPS = (3600.0, 1800.0, 900.0, 600.0, 300.0, 120.0, 60.0, 30.0, 20.0)
MIN_STEPS = 24
SLOT_SECONDS = 60.0
"""An engine counts as seen in a slot of this length that has a sample of it."""
ROWS_IN_STEP = 4
MANY_ROWS = 60
"""Rows in a step, of which increase() extrapolates a small part. With fewer it is off by a third now and then."""
NEAR_SLOTS = 2
"""Before a step, in which the sample is that its growth begins with."""
LATE_ROWS = 0.25
"""Of the seconds between two rows, by which a row may be late."""

_E, _ALL = ", ".join(ENGINE), ", ".join((*ENGINE, *(name for name in PLACE if name not in ENGINE)))
_COUNTERS = {
    "output": "kvitals_generation_tokens_total",
    "prompt": "kvitals_prompt_tokens_total",
    "looked_up": "kvitals_prefix_query_tokens_total",
    "hit": "kvitals_prefix_hit_tokens_total",
    "prefill": "kvitals_prefill_seconds_sum",
    "decode": "kvitals_decode_seconds_sum",
    "finished": "kvitals_requests_finished_total",
    "aborted": 'kvitals_requests_finished_total{reason="abort"}',
    "first_tokens": "kvitals_ttft_seconds_count",
    "preempted": "kvitals_preemptions_total",
    "drafted": "kvitals_draft_tokens_total",
    "accepted": "kvitals_draft_accepted_tokens_total",
    "refaulted": 'kvitals_cache_refaulted_tokens_total{medium="gpu"}',
    "refaulted_below": "kvitals_cache_refaulted_below_tokens_total",
}
COMPARED = ("seen", "first", "last", "busy", "gpus", "output", "prompt", "looked_up", "hit", "prefill", "decode",
            "refaulted", "refaulted_below")  # fmt: skip
"""What a week is asked for that another is compared with."""
_BUCKETS = {"ttft_p99": "kvitals_ttft_seconds_bucket", "itl_p99": "kvitals_itl_seconds_bucket"}
_TENANTS = {
    "prompt": ("kvitals_tenant_prompt_tokens_total", "prompt"),
    "cached": ("kvitals_tenant_cached_tokens_total", "prompt"),
    "told": ("kvitals_tenant_cache_told_tokens_total", "prompt"),
    "output": ("kvitals_tenant_output_tokens_total", "output"),
    "requests": ("kvitals_tenant_requests_total", "finished"),
}
"""Of each figure of a tenant: its metric, and the counter of engines whose part it is. told: prompt tokens of requests
whose record has the cached tokens."""


@dataclass(frozen=True)
class Engine:
    """Who it is (cluster, node, engine) and where it stands (cluster, pool, model, role, hardware)."""

    entity: Labels
    place: Labels


@dataclass(frozen=True)
class StepGrid:
    """The steps: from when on, how long, how many; how many seconds one question asks about; seconds between rows."""

    start: float
    step: float
    count: int
    at_once: float
    gap: float = SLOT_SECONDS

    @property
    def end(self) -> float:
        return self.start + self.count * self.step

    @property
    def ends(self) -> Floats:
        """When each step ends."""
        return self.start + self.step * np.arange(1.0, self.count + 1.0)

    def empty(self) -> Floats:
        """A value of each step, of which none is known."""
        return np.full(self.count, np.nan)


@dataclass(frozen=True)
class LedgerTokens:
    """What the block ledger knows of: prompt tokens looked up, found, and that caches without end would have had."""

    tokens: float
    found: float
    attainable: float


@dataclass(frozen=True)
class ReviewArrays:
    """Arrays are [step, engine], NaN where nothing is known. Counts are of the whole step.

    data: by name, counters in their unit; `seen` seconds, `busy` a share of them, `running` and `waiting` the most
    requests at once, `gpus`, `usable` tokens a second. latencies: objective -> engine -> cumulative counts of a step.
    tenants: tenant -> what -> sum.
    """

    grid: StepGrid
    engines: tuple[Engine, ...]
    data: Mapping[str, Floats]
    latencies: Mapping[str, Mapping[int, Counts]]
    tenants: Mapping[str, Mapping[str, float]]
    slo: Mapping[Labels, Mapping[str, float]]  # of an engine, as it says itself: objective -> seconds
    energy: float  # joules of all GPUs that tell; NaN where none does
    gpu_busy: Floats  # of each step, what NVML calls utilisation, the mean of all GPUs
    lookups: LedgerTokens | None
    binding: Mapping[str, float]  # constraint -> share of the engines' time in which it bounded progress

    @property
    def start(self) -> float:
        return self.grid.start

    @property
    def step(self) -> float:
        return self.grid.step

    @property
    def steps(self) -> int:
        return self.grid.count

    @property
    def ends(self) -> Floats:
        return self.grid.ends

    def known(self, name: str) -> bool:
        """Whether anything was told of it."""
        return bool(np.isfinite(self.data[name]).any())

    def total(self, name: str) -> float:
        """The sum over all steps and engines; what is not told counts as 0."""
        return float(np.nansum(self.data[name]))


def step_of(seconds: float, gap: float) -> float:
    """How long a step of a review is: an hour, or less where there is less to look at."""
    fits = [step for step in STEPS if step <= seconds / MIN_STEPS and step >= ROWS_IN_STEP * gap]
    return fits[0] if fits else max(STEPS[-1], ROWS_IN_STEP * gap)


def steps_within(since: float, end: float, gap: float) -> tuple[float, float]:
    """Where the steps of a review of that time begin, and how long one is: as much of the time as can be is in a step.

    Hours begin with the hour. Shorter steps begin with a slot. The shortest, of which a few minutes have only a few,
    are made as long as fits; a quarter of one is a slot, and at most so much is lost.
    """
    seconds = end - since
    step = step_of(seconds, gap)
    if step >= ROWS_IN_STEP * SLOT_SECONDS or gap > SLOT_SECONDS:
        begin = step if step == STEPS[0] or gap > SLOT_SECONDS else SLOT_SECONDS
        return math.ceil(since / begin - 1e-6) * begin, step
    count = max(math.floor(seconds / step - 1 / ROWS_IN_STEP + 1e-6), 1)
    fits = math.floor(seconds / (count + 1 / ROWS_IN_STEP) * 125) * 8  # milliseconds, also of half a slot
    slot = max(step * 1000, fits) / ROWS_IN_STEP
    return math.ceil(since * 1000 / slot - 1e-6) * slot / 1000, slot * ROWS_IN_STEP / 1000


def gather(ask: Ask, start: float, end: float, step: float, gap: float, only: Collection[str] = ()) -> ReviewArrays:
    """What each engine did from start to end. `gap`: seconds between two rows. `only`: what is asked for, by its name;
    then latencies and tenants are not asked for either."""
    count = max(int((end - start) / step + 1e-6), 1)
    grid = StepGrid(start, step, count, 86400.0 if gap >= FINE_GAP else 21600.0, gap)
    found: dict[str, dict[Labels, Floats]] = {}
    places: dict[Labels, Labels] = {}
    for name, text in _questions(step, gap).items():
        of = found.setdefault(name, {})
        for series in over(ask, text, grid) if not only or name in only else ():
            entity = series.labels.keep(ENGINE)
            if name == "seen":
                places[entity] = series.labels.keep(PLACE)
            _put(of.setdefault(entity, grid.empty()), series, grid)
    _fill_in_hardware(ask, places, grid)
    engines = tuple(Engine(entity, places[entity]) for entity in sorted(places, key=str))
    data = {
        name: np.array([of.get(one.entity, grid.empty()) for one in engines]).reshape(len(engines), grid.count).T
        for name, of in found.items()
    }
    data["seen"] = _seen_seconds(data["seen"], step, gap)
    _drop_uncounted(data)
    share = _counted_share(data, step)
    whole = {name: data[name] for name in _COUNTERS.keys() & data.keys()}
    data |= {name: counts * share for name, counts in whole.items()}
    if only:
        return ReviewArrays(grid, engines, data, {}, {}, {}, math.nan, grid.empty(), None, {})
    number = {engine.entity: i for i, engine in enumerate(engines)}
    of_step, gpu_busy = promql_time(step), grid.empty()
    for series in over(ask, f"avg(avg_over_time(kvitals_gpu_utilization_ratio[{of_step}]))", grid):
        _put(gpu_busy, series, grid)
    energy = grid.empty()
    for series in over(ask, f"sum({grown('kvitals_gpu_energy_joules_total', step, gap)})", grid):
        _put(energy, series, grid)
    counted = {name: _ratio(np.nansum(data[name], 1), np.nansum(counts, 1)) for name, counts in whole.items()}
    seen = _ratio(np.nansum(np.where(data["seen"] > 0, share, 0.0), 1), np.nansum(data["seen"] > 0, 1))
    return ReviewArrays(
        grid,
        engines,
        data,
        {name: _histograms(ask, text, grid, number, share) for name, text in _BUCKETS.items()},
        _tenants(ask, grid, counted),
        _objectives(ask, grid),
        float(np.nansum(energy * seen)) if np.isfinite(energy).any() else math.nan,
        gpu_busy,
        _lookups(ask, grid),
        _binding(ask, grid),
    )


def _fill_in_hardware(ask: Ask, places: dict[Labels, Labels], grid: StepGrid) -> None:
    """The GPU that an engine uses is its hardware, where its target has no such label."""
    text = (
        f"max by ({_E}, hardware) (kvitals_gpu_engine * on (cluster, node, gpu) group_left (hardware)"
        " max by (cluster, node, gpu, hardware) (kvitals_gpu_info))"
    )
    for series in over(ask, text, grid):
        place = places.get(series.labels.keep(ENGINE))
        if place is not None and not place.get("hardware"):
            places[series.labels.keep(ENGINE)] = place.with_(hardware=series.labels.get("hardware", ""))


def anything(ask: Ask, start: float, end: float) -> bool:
    """Whether engines were watched at all, by one question."""
    step = (end - start) / 14
    return bool(
        ask(expression(f"count(count_over_time(kvitals_requests_running[{promql_time(step)}]))"), start, end, step)
    )


def _questions(step: float, gap: float) -> dict[str, str]:
    seconds = _slot(gap, step)
    of, slot = promql_time(step), promql_time(seconds)
    slots = f"{promql_time(step - seconds / 2)}:{slot}"  # so that no slot is in two steps
    late = promql_time(seconds + LATE_ROWS * gap)
    there = f"count by ({_ALL}) (count_over_time(kvitals_requests_running[{late}]))"
    begin = f"[{promql_time((1 + NEAR_SLOTS) * seconds)}] offset {promql_time(step - seconds)}"
    said = {
        "seen": f"count_over_time(({there})[{slots}])",
        "first": f"sum by ({_E}) (count_over_time(kvitals_requests_running{begin}))",
        "last": f"sum by ({_E}) (count_over_time(kvitals_requests_running[{slot}]))",
        "busy": f"avg_over_time((sum by ({_E}) (kvitals_requests_running) > bool 0)[{slots}])",
        "running": f"sum by ({_E}) (max_over_time(kvitals_requests_running[{of}]))",
        "waiting": f"sum by ({_E}) (max_over_time(kvitals_requests_waiting[{of}]))",
        "gpus": f"max by ({_E}) (avg_over_time(kvitals_engine_gpus[{of}]))",
        "usable": f"min by ({_E}) (max_over_time(kvitals_usable_tokens_per_second[{of}]))",
    }
    for name, metric in _COUNTERS.items():
        said[name] = f"sum by ({_E}) ({grown(metric, step, gap)})"
    return said


def grown(metric: str, step: float, gap: float) -> str:
    """What each series of a counter grows by in a step, in PromQL.

    In a step of many rows it is increase(). With few rows that extrapolates too much. There the growth is from the last
    sample before the step to the last one in it, so that the steps add up to the growth of the whole time. A series
    without a sample before, as after a gap, grew as much before its first sample as between two of them, and no more
    than the whole counter. Where a counter falls it is increase() again.
    """
    of = promql_time(step)
    if step >= MANY_ROWS * gap:
        return f"increase({metric}[{of}])"
    near = NEAR_SLOTS * _slot(gap, step)
    last, rows = f"last_over_time({metric}[{of}])", f"count_over_time({metric}[{of}])"
    whole = f"({last} - last_over_time({metric}[{promql_time(near)}] offset {of}))"
    begun = f"({last} - min_over_time({metric}[{of}])) * {rows} / ({rows} - 1 > 0)"
    known = f"({whole} or ({begun} <= {last}) or {last} and {rows} > 1)"
    return f"({known} unless resets({metric}[{promql_time(step + near)}]) > 0 or increase({metric}[{of}]))"


def _slot(gap: float, step: float) -> float:
    return max(min(SLOT_SECONDS, step / ROWS_IN_STEP), gap)


def _seen_seconds(slots: Floats, step: float, gap: float) -> Floats:
    whole = max(math.floor(step / _slot(gap, step) + 1e-6), 1)
    seconds: Floats = np.nan_to_num(np.minimum(slots / whole, 1.0)) * step
    return seconds


def _drop_uncounted(data: dict[str, Floats]) -> None:
    """A step with so few rows that an engine's tokens cannot be counted, as beside a gap, was not seen: it would be
    time without a token."""
    if "output" in data:
        uncounted = np.isnan(data["output"]) & np.isfinite(data["output"]).any(axis=0)
        data["seen"][uncounted] = 0.0


def _counted_share(data: Mapping[str, Floats], step: float) -> Floats:
    """Which share of what an engine's counters gained in a step is counted. In a step with a gap in its middle they
    went on in the gap: what is counted is the part of the time in which the engine was seen. Of a gap at an end of the
    step they tell nothing."""
    inside = np.isfinite(data["first"]) & np.isfinite(data["last"]) & (data["seen"] > 0)
    share: Floats = np.where(inside, np.minimum(data["seen"] / step, 1.0), 1.0)
    return share


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Of each step; 1 where there is nothing."""
    known = whole > 0
    shares: Floats = np.where(known, part / np.where(known, whole, 1.0), 1.0)
    return shares


def over(ask: Ask, text: str, grid: StepGrid) -> Iterator[Series]:
    """The answers of a question at the ends of all steps, some steps at a time."""
    at_once = max(int(grid.at_once / grid.step), 1)
    expr = expression(text)
    for first in range(0, grid.count, at_once):
        last = min(first + at_once, grid.count)
        yield from ask(expr, grid.start + (first + 1) * grid.step, grid.start + last * grid.step, grid.step)


def _put(column: Floats, series: Series, grid: StepGrid) -> None:
    places = np.rint((series.times - grid.start) / grid.step).astype(int) - 1
    good = (places >= 0) & (places < len(column))
    column[places[good]] = series.values[good]


def _histograms(
    ask: Ask, metric: str, grid: StepGrid, number: Mapping[Labels, int], share: Floats
) -> dict[int, Counts]:
    """Of each engine, how many observations were up to each bound, in each step. share: what is counted of them."""
    columns: dict[int, dict[float, Floats]] = {}
    for series in over(ask, f"sum by ({_E}, le) ({grown(metric, grid.step, grid.gap)})", grid):
        place, upper = number.get(series.labels.keep(ENGINE)), bucket_bound(series.labels.get("le", ""))
        if place is not None and upper is not None:
            _put(columns.setdefault(place, {}).setdefault(upper, grid.empty()), series, grid)
    return {
        place: Counts(
            np.array(sorted(of)),
            np.nan_to_num(np.array([of[upper] for upper in sorted(of)]) * share[:, place]).T,
        )
        for place, of in columns.items()
    }


def _tenants(ask: Ask, grid: StepGrid, counted: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    """What was done for each tenant; the empty name is of those that nobody named. counted: by counter, which share of
    each step of all engines is counted, so that the tenants add up to the engines."""
    found: dict[str, dict[str, float]] = {}
    for what, (metric, counter) in _TENANTS.items():
        for series in over(ask, f"sum by (tenant) ({grown(metric, grid.step, grid.gap)})", grid):
            of = found.setdefault(series.labels.get("tenant", ""), {})
            values = grid.empty()
            _put(values, series, grid)
            of[what] = of.get(what, 0.0) + float(np.nansum(values * counted[counter]))
    return found


def _objectives(ask: Ask, grid: StepGrid) -> dict[Labels, dict[str, float]]:
    """What each engine promised, the strictest of the time."""
    said: dict[Labels, dict[str, float]] = {}
    of = promql_time(grid.count * grid.step)
    text = f'min by ({_E}, slo) (min_over_time(kvitals_slo_seconds{{class=""}}[{of}]))'
    for series in ask(expression(text), grid.end, grid.end, 1.0):
        said.setdefault(series.labels.keep(ENGINE), {})[series.labels.get("slo", "")] = float(series.values[-1])
    return said


def _lookups(ask: Ask, grid: StepGrid) -> LedgerTokens | None:
    """Told node by node, by tenants; None where nobody does."""
    tokens = [
        _sum(list(over(ask, f"sum({grown(f'kvitals_cache_tenant_{what}_tokens_total', grid.step, grid.gap)})", grid)))
        for what in ("lookup", "hit", "attainable")
    ]
    return LedgerTokens(*tokens) if tokens[0] > 0 and all(map(math.isfinite, tokens)) else None


def _binding(ask: Ask, grid: StepGrid) -> dict[str, float]:
    """The mean over all steps in which it was told; the shares add up to 1."""
    text = f"sum by (constraint) (avg_over_time(kvitals_binding_share[{promql_time(grid.step)}]))"
    found: dict[str, float] = {}
    for series in over(ask, text, grid):
        name = series.labels.get("constraint", "")
        found[name] = found.get(name, 0.0) + float(np.nansum(series.values))
    all_ = sum(found.values())
    return {name: value / all_ for name, value in found.items()} if all_ > 0 else {}


def _sum(several: list[Series]) -> float:
    return float(sum(np.nansum(one.values) for one in several)) if several else math.nan


def promql_time(seconds: float) -> str:
    """A length of time as PromQL writes it."""
    return f"{round(seconds * 1000)}ms" if seconds % 1 else f"{seconds:.0f}s"
