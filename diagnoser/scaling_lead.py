"""The scaling-signal audit: what moved before objectives were missed, by how long, and how often it moved for nothing.

A signal has moved where it is further above the middle of quiet steps than twice what 95 of 100 of them are. Quiet is
what is neither within a time in which the objective was missed nor shortly before one. The limits come from the same
time that is judged, so the false alarms are what this pool would have had with limits that suit it, and no forecast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvitals.diagnoser.operating_point import PERCENTILE, quantiles
from kvitals.diagnoser.steps import SECONDS_AT_ONCE, Ask, Counts
from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.types import Bools, Floats, Labels

USUAL, MARGIN = 0.95, 2.0
HORIZON_SECONDS = 600.0
"""How long before a miss a signal may have moved because of it."""
CALM_STEPS = 3
"""That meet the objective, before another miss is another one."""
MOVED_STEPS = 2
"""In a row, for a false alarm: autoscalers look twice."""
MIN_QUIET = 60
MIN_MISSES = 3
MIN_FIRST_TOKENS = 20
START_STEP_SECONDS = 15.0
TREND_STEPS = 3
SIGNALS = ("queue", "queue_trend", "kv", "capacity_waits", "running", "tokens", "cpu", "gpu")

_BY = ", ".join(SCOPES["pool"])
_CAPACITY = 'kvitals_requests_waiting_by_reason{reason="capacity"}'
_ENGINE = ", ".join(SCOPES["engine"])

MAX_BOUNDS = 256
"""Of a pool's histogram; engines have 20 to 50. The others of a page that has more are left out."""


@dataclass(frozen=True)
class Lead:
    """One signal. caught: of the misses, those before which it had moved. median: seconds by which, over all misses, 0
    where it had not. least: of those caught. false_alarms: an hour of quiet."""

    signal: str
    limit: float
    caught: int
    median: float
    least: float | None
    false_alarms: float


@dataclass(frozen=True)
class Ready:
    """One start of an engine, in seconds. load: until it answered. first_token: from there to its first token, None
    where that was not seen."""

    entity: Labels
    at: float
    load: float
    first_token: float | None


@dataclass(frozen=True)
class Audit:
    """A pool's signals, the best one first. `missing`: what it takes where there is nothing to tell."""

    entity: Labels
    start: float
    end: float
    step: float
    objective: float
    misses: tuple[float, ...]
    leads: tuple[Lead, ...]
    absent: tuple[str, ...]
    missing: str


def audits(
    ask: Ask, start: float, end: float, step: float, objectives: Mapping[Labels, float], general: float
) -> list[Audit]:
    """The audit of each pool; engines without a pool are one together. objectives: of first tokens, by pool."""
    count = max(int((end - start) / step), 1)
    times: Floats = start + step * np.arange(1, count + 1, dtype=np.float64)
    told: dict[Labels, dict[str, Floats]] = {}
    buckets: dict[Labels, dict[float, Floats]] = {}
    at_once = max(int(SECONDS_AT_ONCE / step), 1)
    for first in range(0, count, at_once):
        last = min(first + at_once, count)
        for name, text in _questions(step).items():
            for one in ask(expression(text), float(times[first]), float(times[last - 1]), step):
                places = np.rint((one.times - times[0]) / step).astype(int)
                pool = one.labels.keep(SCOPES["pool"])
                if name == "ttft":
                    of, le = buckets.setdefault(pool, {}), bucket_bound(one.labels.get("le", ""))
                    if le is None or (le not in of and len(of) >= MAX_BOUNDS):
                        continue
                    row = of.setdefault(le, np.zeros(count))
                else:
                    row = told.setdefault(pool, {}).setdefault(name, np.full(count, np.nan))
                row[places] = one.values
    found = []
    for pool in sorted(buckets, key=str):
        of = buckets[pool]
        bounds = np.array(sorted(one for one in of if one == one))
        counts = Counts(bounds, np.column_stack([of[one] for one in bounds.tolist()]))
        found.append(audit(pool, times, step, counts, _with_trend(told.get(pool, {})), objectives.get(pool, general)))
    return found


def audit(
    pool: Labels, times: Floats, step: float, first_tokens: Counts, signals: Mapping[str, Floats], objective: float
) -> Audit:
    """Which signals moved before p99 of first tokens passed its objective. A value a step; NaN: not told."""
    p99 = quantiles(first_tokens, PERCENTILE)
    p99[first_tokens.counts[:, -1] < MIN_FIRST_TOKENS] = np.nan
    over = p99 > objective
    onsets = _onsets(over, np.isfinite(p99))
    near = max(round(HORIZON_SECONDS / step), 1)
    quiet = ~over
    for i in onsets:
        quiet[max(i - near, 0) : i + 1] = False
    known = {name: values for name, values in signals.items() if np.isfinite(values).sum() >= MIN_QUIET}
    absent = tuple(name for name in SIGNALS if name not in known)
    start, end = float(times[0] - step), float(times[-1])
    misses = tuple(float(times[i]) for i in onsets)
    missing = ""
    if len(onsets) < MIN_MISSES:
        missing = (
            f"how often p99 of first tokens exceeded {objective:g} s: {len(onsets)} times, and at least "
            f"{MIN_MISSES} are needed; use a longer time range, or give a tighter --slo"
        )
    elif quiet.sum() < MIN_QUIET:
        missing = f"only {quiet.sum()} quiet steps of {step:g} s: usual values need more than {MIN_QUIET}"
    leads = () if missing else tuple(lead(name, values, onsets, quiet, step) for name, values in known.items())
    ranked = tuple(sorted(leads, key=lambda one: (-one.median, one.false_alarms, one.signal)))
    return Audit(pool, start, end, step, objective, misses, ranked, absent, missing)


def lead(name: str, values: Floats, onsets: Sequence[int], quiet: Bools, step: float) -> Lead:
    """One signal against the steps in which misses began."""
    usual = values[quiet & np.isfinite(values)]
    middle, high = np.quantile(usual, (0.5, USUAL)).tolist() if len(usual) else (math.nan, math.nan)
    limit = middle + MARGIN * (high - middle)
    moved = values > limit
    near = max(round(HORIZON_SECONDS / step), 1)
    leads = [_run_before(moved, i, near) * step for i in onsets]
    caught = [seconds for seconds in leads if seconds > 0]
    return Lead(
        name, limit, len(caught), float(np.median(leads)), min(caught, default=None), _false(moved & quiet, quiet, step)
    )


def starts(ask: Ask, start: float, end: float) -> list[Ready]:
    """The starts of engines that were seen, the earliest first, to START_STEP_SECONDS."""
    found: list[Ready] = []
    questions = (
        f"max by ({_ENGINE}) (kvitals_process_start_time_seconds)",
        f"sum by ({_ENGINE}) (kvitals_ttft_seconds_count)",
    )
    began: dict[Labels, list[tuple[float, float]]] = {}
    tokens: dict[Labels, list[tuple[float, float]]] = {}
    at = start
    while at < end:
        until = min(at + SECONDS_AT_ONCE, end)
        for text, into in zip(questions, (began, tokens), strict=True):
            for one in ask(expression(text), at, until, START_STEP_SECONDS):
                rows = into.setdefault(one.labels.keep(SCOPES["engine"]), [])
                rows += zip(one.times.tolist(), one.values.tolist(), strict=True)
        at = until + START_STEP_SECONDS
    for entity, rows in began.items():
        seen = {value: t for t, value in reversed(rows)}
        for value, answered in seen.items():
            if value >= start and answered >= value:
                served = next((t for t, n in tokens.get(entity, []) if t >= answered and n > 0), None)
                found.append(Ready(entity, value, answered - value, None if served is None else served - answered))
    return sorted(found, key=lambda one: one.at)


def _onsets(over: Bools, known: Bools) -> list[int]:
    """The steps in which misses begin, each after some that met the objective."""
    found, calm = [], 0
    for i, (missed, told) in enumerate(zip(over.tolist(), known.tolist(), strict=True)):
        if missed:
            if calm >= CALM_STEPS:
                found.append(i)
            calm = 0
        elif told:
            calm += 1
    return found


def _run_before(moved: Bools, onset: int, near: int) -> int:
    """For how many steps before the onset a signal had moved without a break; 0 where it had not."""
    length = 0
    while length < near and onset - length - 1 >= 0 and moved[onset - length - 1]:
        length += 1
    return length


def _false(moved: Bools, quiet: Bools, step: float) -> float:
    """Runs of moved steps in quiet times, an hour."""
    runs, length = 0, 0
    for one in [*moved.tolist(), False]:
        if not one and length >= MOVED_STEPS:
            runs += 1
        length = length + 1 if one else 0
    return runs / (float(quiet.sum()) * step / 3600)


def _with_trend(signals: Mapping[str, Floats]) -> dict[str, Floats]:
    """With the queue's growth over some steps as a signal of its own."""
    told = dict(signals)
    if "queue" in told:
        queue = told["queue"]
        trend = np.full(len(queue), np.nan)
        trend[TREND_STEPS:] = queue[TREND_STEPS:] - queue[:-TREND_STEPS]
        told["queue_trend"] = trend
    return told


def _questions(step: float) -> dict[str, str]:
    over = f"[{math.ceil(step)}s]"
    return {
        "ttft": f"sum by ({_BY}, le) (increase(kvitals_ttft_seconds_bucket{over}))",
        "queue": f"sum by ({_BY}) (avg_over_time(kvitals_requests_waiting{over}))",
        "kv": f"avg by ({_BY}) (avg_over_time(kvitals_kv_usage_ratio{over}))",
        "capacity_waits": f"sum by ({_BY}) (avg_over_time({_CAPACITY}{over}))",
        "running": f"sum by ({_BY}) (avg_over_time(kvitals_requests_running{over}))",
        "tokens": f"sum by ({_BY}) (rate(kvitals_prompt_tokens_total{over}))",
        "cpu": f"sum by ({_BY}) (rate(kvitals_engine_process_cpu_seconds_total{over}))"
        f" or sum by ({_BY}) (rate(kvitals_process_cpu_seconds_total{over}))",
        "gpu": f"avg by ({_BY}) (avg_over_time(kvitals_gpu_utilization_ratio{over}))",
    }
