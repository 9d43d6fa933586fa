"""What a trace or watched engines tell of a workload, for a sizing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kvitals.agent import objectives as promised
from kvitals.app.pipeline import Setup
from kvitals.app.timeseries_sources import TimeseriesSource
from kvitals.app.trace_files import SHORT_SECONDS, doubt_of_times, duration_text, read_trace
from kvitals.diagnoser import steps
from kvitals.diagnoser.change_effect import latest_changes
from kvitals.diagnoser.operating_point import Limit, operating_point
from kvitals.diagnoser.sizing.quantity import several
from kvitals.diagnoser.sizing.workload import Lengths
from kvitals.diagnoser.steps import Steps, gather, step_of
from kvitals.kvcache.accesses import Accesses
from kvitals.kvcache.traces.request import TraceError
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.rules import catalogue
from kvitals.rules.expressions import expression
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.types import Floats

MINUTE = 60.0
PEAK = 0.95
"""Of minutes, or of steps: the rate that is sized for."""
DAY_SECONDS = 86400.0
CAPACITY_SEEN = "one instance has the capacity that these engines reached within their objective, on their hardware"


class SourceError(ValueError):
    """It does not tell what a sizing takes; the message says what is missing."""


@dataclass
class ObservedLoad:
    """What is known; None where it is not. peak, mean: requests a second of all engines together. usable, c_max: of
    one engine, at its objective. days: it was watched for a day and more; short: why its peak is that of a short time,
    empty where it is not. doubts: what the user should know."""

    source: str = ""
    peak: float | None = None
    mean: float | None = None
    prompt: Lengths | None = None
    output: Lengths | None = None
    cached: float | None = None
    usable: float | None = None
    c_max: float | None = None
    littles_gap: float | None = None
    model: str = ""
    tensor: int = 0
    days: bool = False
    short: str = ""
    doubts: list[str] = field(default_factory=list)


def without_rates_of_another_model(found: ObservedLoad, model: str) -> ObservedLoad:
    """The load alone, where what an engine carried was measured on another model than the one that is sized."""
    try:
        own = catalogue.model(found.model).name
    except catalogue.CatalogueError:
        own = found.model
    if not found.model or found.usable is None or own == model:
        return found
    doubt = (
        f"the measured {found.usable:.3g} requests/s per engine are of its model {found.model} on its hardware, so they"
        f" do not size {model}. If both are the same, give --usable-rate {found.usable:.3g}"
    )
    others = [one for one in found.doubts if one != CAPACITY_SEEN]
    return replace(found, usable=None, c_max=None, littles_gap=None, tensor=0, doubts=[*others, doubt])


def of_trace(path: Path) -> ObservedLoad:
    """The workload of a trace; hits are those of an endless cache, unknown without prefix ids. Raises SourceError."""
    try:
        trace = read_trace(path)
    except TraceError as error:
        raise SourceError(str(error)) from error
    accesses, facts = trace.accesses, trace.facts
    made = accesses.output[accesses.output >= 0]
    if not len(made):
        raise SourceError(f"{path}: no request has an output length; a sizing needs input and output lengths")
    if facts.time_unit == "none":
        raise SourceError(f"{path}: the {facts.format} trace has no arrival times; a sizing needs a request rate")
    if not accesses.tokens.any():
        raise SourceError(f"{path}: all prompts have 0 tokens; a sizing needs input lengths")
    lasted = float(accesses.time[-1] - accesses.time[0])
    if lasted < MINUTE:
        doubt = f": {doubt}" if (doubt := doubt_of_times(trace)) else ""
        raise SourceError(f"{path}: a rate needs at least a minute of requests{doubt}")
    found = ObservedLoad(
        source=f"{path.name}, {len(accesses):,} requests in {lasted / 60:.0f} min ({facts.sentence})",
        peak=max(_peak(accesses, lasted, path), len(accesses) / lasted),
        mean=len(accesses) / lasted,
        prompt=_of(accesses.tokens.astype(np.float64)),
        output=_of(made.astype(np.float64)),
        cached=what_if(accesses, ReplayPlan(capacities=(None,)))[0].token_hit_rate if accesses.references else None,
        days=lasted >= DAY_SECONDS,
    )
    if doubt := doubt_of_times(trace):
        found.doubts.append(doubt)
    found.doubts.append(
        "the trace has no prefix ids: its hit rate is unknown"
        if found.cached is None
        else f"the {found.cached:.0%} hits belong to one unlimited cache; `kvitals whatif --curve --trace` "
        f"shows smaller caches"
    )
    return found


def _peak(accesses: Accesses, lasted: float, path: Path) -> float:
    """Requests a second. Raises SourceError where so few minutes have requests that there is no peak."""
    minutes = np.bincount(((accesses.time - accesses.time[0]) // MINUTE).astype(np.int64))
    whole = minutes[: max(int(lasted // MINUTE), 1)]
    if peak := float(np.quantile(whole, PEAK)) / MINUTE:
        return peak
    pause = float(np.diff(accesses.time).max())
    raise SourceError(
        f"{path}: only {np.count_nonzero(whole):,} of {len(whole):,} minutes have requests, so the trace has no peak"
        f" rate; its longest pause is {pause / 3600:,.1f} h. Cut the trace to the hours with requests, or correct times"
        " that are wrong"
    )


def _of(values: Floats) -> Lengths:
    mean, p95, p99 = float(values.mean()), *(float(np.quantile(values, q)) for q in (0.95, 0.99))
    return Lengths(mean, max(p95, mean), max(p99, mean))


def observe_load(of: TimeseriesSource, chosen: Setup) -> ObservedLoad:
    """The workload of all engines of a course together, and what one of them was seen to carry. Raises SourceError."""
    step = step_of(of.gap)
    start, end = steps.whole_steps(of.start, of.end, step)
    engines = gather(of.ask, start, end, step)
    rate = _together(engines)
    if rate is None:
        raise SourceError(f"{of.name}: no engine there reports its finished requests")
    found = ObservedLoad(source=of.name, peak=float(np.quantile(rate, PEAK)), mean=float(rate.mean()))
    covered = len(rate) * step
    found.days = covered >= DAY_SECONDS * 0.9
    if covered < SHORT_SECONDS:
        found.short = (
            f"{of.name}: its request rates cover only {duration_text(covered)}, in {several(len(rate), 'step')}; the"
            " peak of a day can be higher: name a longer time, or give --peak"
        )
    seconds = f"{max(1, round(of.end - of.start))}s"
    found.prompt = _lengths(of, "kvitals_request_prompt_tokens", seconds, "--prompt")
    found.output = _lengths(of, "kvitals_request_generation_tokens", seconds, "--answer")
    hits, queries = (f"sum(increase(kvitals_prefix_{what}_tokens_total[{seconds}]))" for what in ("hit", "query"))
    found.cached = _value(of, f"{hits} / {queries}")
    found.tensor = int(_value(of, 'max(kvitals_engine_fact{fact="tensor_parallel"})') or 0)
    found.model = _model(of)
    changed = latest_changes(of.ask, start, end, step)
    now = [steps.steps_after(one, changed[one.entity].first) if one.entity in changed else one for one in engines]
    _carried(found, now, {one.name: one.seconds for one in promised.general(chosen.config, chosen.slo_sources)}, of)
    return found


def _together(engines: list[Steps]) -> Floats | None:
    """Requests that finished a second in each step, of all engines."""
    sums: dict[float, float] = {}
    for one in engines:
        for t, value in zip(one.times.tolist(), one.requests.tolist(), strict=True):
            if value == value:
                sums[round(t, 3)] = sums.get(round(t, 3), 0.0) + value
    return np.array(list(sums.values())) if sums and max(sums.values()) > 0 else None


def _carried(found: ObservedLoad, engines: list[Steps], objectives: Mapping[str, float], of: TimeseriesSource) -> None:
    """What one engine carried at its objective: the least of all engines that passed theirs."""
    told = steps.objectives(of.ask, of.end)
    best: Limit | None = None
    for one in engines:
        own = told.get(one.entity, {})
        point = operating_point(one, {name: own.get(name, objectives[name]) for name in steps.OBJECTIVES})
        for limit in point.limits:
            if limit.requests and limit.concurrency and (best is None or limit.requests < (best.requests or 0.0)):
                best, found.littles_gap = limit, point.littles_gap
    if best is not None and best.concurrency is not None:
        found.usable, found.c_max = best.requests, best.concurrency.value
        found.doubts.append(CAPACITY_SEEN)


def _lengths(of: TimeseriesSource, family: str, seconds: str, option: str) -> Lengths | None:
    mean = _value(of, f"sum(increase({family}_sum[{seconds}])) / sum(increase({family}_count[{seconds}]))")
    tails = [
        _value(of, f"histogram_quantile({q}, sum by (le) (increase({family}_bucket[{seconds}])))") for q in (0.95, 0.99)
    ]
    if mean is None or tails[0] is None or tails[1] is None:
        return None
    low, high = _bucket(of, f"sum by (le) (increase({family}_bucket[{seconds}]))")
    note = f"interpolated in histogram buckets: p95 is from {low:,.0f} to {high:,.0f}; {option} sets it"
    return Lengths(mean, max(tails[0], mean), max(tails[1], mean), note)


def _bucket(of: TimeseriesSource, text: str) -> tuple[float, float]:
    """The bounds of the bucket of the quantile `PEAK`."""
    counts = {
        bound: float(one.values[-1])
        for one in of.ask(expression(text), of.end, of.end, 1.0)
        if (bound := bucket_bound(one.labels.get("le", ""))) is not None
    }
    bounds = sorted(counts)
    at = next((i for i, bound in enumerate(bounds) if counts[bound] >= PEAK * counts[bounds[-1]]), 0)
    return (bounds[at - 1] if at else 0.0), bounds[at]


def _value(of: TimeseriesSource, text: str) -> float | None:
    found = of.ask(expression(text), of.end, of.end, 1.0)
    value = float(found[0].values[-1]) if found and len(found[0].values) else np.nan
    return value if np.isfinite(value) else None


def _model(of: TimeseriesSource) -> str:
    """The model of the engines, where it is one."""
    named = {one.labels.get("model", "") for one in of.ask(expression("kvitals_engine_info"), of.end, of.end, 1.0)} - {
        ""
    }
    return next(iter(named)) if len(named) == 1 else ""
