"""What a change of an engine's settings does to latency and throughput: now, simulated now, and predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kvitals.diagnoser.text import render
from kvitals.diagnoser.twin.intervals import BucketCounts, ScrapeIntervals
from kvitals.diagnoser.twin.scheduler import SchedulerSettings, SimulatedRun, simulate
from kvitals.diagnoser.twin.settings import (
    UNMODELLED,
    KnownSettings,
    TwinChange,
    apply_changes,
    changes_of,
    settings_now,
)
from kvitals.diagnoser.twin.simulated_load import ArrivalKind, SimulatedLoad, arrival_kind, of_accesses, of_histograms
from kvitals.diagnoser.twin.step_time import (
    FRONT_END_RESTART,
    STEP_RESTART,
    Drift,
    FitError,
    StepFit,
    drift_of,
    fit_step_time,
    resample_factors,
    time_parts,
)
from kvitals.kvcache.accesses import Accesses
from kvitals.series.types import Floats, Labels

DRAWS = 24
MAX_SECONDS = 120.0
"""Of the load that is simulated: the latest."""
IDLE_INTERVALS = 3
"""Intervals without requests that end a period of load."""
TOLERANCE = {"finished_per_second": 0.20, "itl_mean_seconds": 0.25, "ttft_mean_seconds": 0.35}
"""How far the simulated present may be from the measured one, as a share of the measured one."""
MAX_CORRECTION = 1.4
"""Factor by which the fitted step time may be corrected, so that the simulated ITL is the measured one."""
MAX_SPREAD = 2.5
"""95th over 5th percentile of the step time at the new batch, above which the load did not determine it."""
MIN_OBSERVED = 0.9
"""Share of the lookups that must be known for hits to be simulated."""
LOW, HIGH = 0.05, 0.95
QUANTITIES = {
    "ttft_p50_seconds": ("TTFT p50", "seconds"),
    "ttft_p99_seconds": ("TTFT p99", "seconds"),
    "ttft_mean_seconds": ("TTFT mean", "seconds"),
    "itl_p50_seconds": ("ITL p50", "seconds"),
    "itl_p99_seconds": ("ITL p99", "seconds"),
    "itl_mean_seconds": ("ITL mean", "seconds"),
    "finished_per_second": ("requests finished", "per_second"),
    "output_tokens_per_second": ("output tokens", "per_second"),
    "prefix_hit_ratio": ("hit rate", "ratio"),
    "preemptions_per_second": ("preemptions", "per_second"),
    "running_avg": ("running", "requests"),
    "waiting_avg": ("waiting", "requests"),
}
_ANCHORED = frozenset(list(QUANTITIES)[:8])
"""Predicted as a multiple of what was measured. The others follow a difference where they grow, because a multiple of
almost none is no prediction."""
_OFFERED = {"finished_per_second": "requests_per_second", "output_tokens_per_second": "tokens_per_second"}
"""Quantities that cannot exceed what arrives, and the property of the load that states it."""

Values = dict[str, float | None]


class TwinQuantity(msgspec.Struct, frozen=True):
    """One number: measured and simulated now, and predicted with the range that holds 90 % of the simulations."""

    name: str
    title: str
    unit: str
    measured: float | None
    simulated: float | None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None


class TwinDocument(msgspec.Struct, frozen=True):
    """The twin of one engine and what it predicts. no_prediction: why it predicts nothing; empty where it predicts.

    engine: its identity. title: what people call it; of engines that have the same name it has what tells them apart.
    step: seconds of a step's terms. load: how requests arrive, in words. start, end: of the load, seconds since the
    epoch. notes: what bounds the prediction, a sentence each.
    """

    engine: dict[str, str]
    title: str
    start: float
    end: float
    changes: list[dict[str, float | str | None]]
    no_prediction: str
    quantities: list[TwinQuantity]
    step: dict[str, float]
    load: str
    assumed: list[str]
    seed: int
    notes: list[str] = []


@dataclass(frozen=True)
class TwinSubject:
    """What is known of one engine under its present configuration. title: what people call it. histograms: of
    `period`. accesses: its block lookups, None without KV events."""

    engine: Labels
    title: str
    system: str
    intervals: ScrapeIntervals
    period: ScrapeIntervals
    histograms: Mapping[str, BucketCounts]
    facts: Mapping[str, float]
    accesses: Accesses | None = None


@dataclass(frozen=True)
class _Kind:
    """A way of arrivals and the present as it simulates it. fit: with the correction that gives the measured ITL.
    overhead: seconds of a first token outside the scheduler."""

    load: SimulatedLoad
    fit: StepFit
    run: SimulatedRun
    overhead: float
    weight: float
    title: str


@dataclass(frozen=True)
class _Draw:
    """The quantities before the change; after it at the same time; after it at a later time, with the speed of another
    start. load, later_load: of these times."""

    now: Values
    then: Values
    later: Values
    load: SimulatedLoad
    later_load: SimulatedLoad


class _NoPredictionError(Exception):
    """Why nothing is predicted."""


def load_period(of: ScrapeIntervals) -> ScrapeIntervals:
    """The latest period with requests, at most `MAX_SECONDS` of it."""
    busy = (np.nan_to_num(of.generated) > 0) | (of.present > 0)
    rows = np.flatnonzero(busy)
    if not len(rows):
        return of.select(slice(0, 0))
    breaks = np.flatnonzero(np.diff(rows) > IDLE_INTERVALS)
    first = rows[breaks[-1] + 1] if len(breaks) else rows[0]
    last = rows[-1]
    while first < last and of.ends[last] - of.ends[first] > MAX_SECONDS:
        first += 1
    return of.select(slice(int(first), int(last) + 1))


def forecast(of: TwinSubject, texts: Sequence[str], *, draws: int = DRAWS, seed: int = 0) -> TwinDocument:
    """Predict what settings, each as `flag=value`, do to the engine under its latest load. Raises SettingError."""
    running = of.period.running[np.isfinite(of.period.running)]
    known = settings_now(
        of.facts, float(running.max(initial=0.0)), bool((of.period.waiting > 0).any()), _largest_step(of)
    )
    changes = changes_of(texts, of.system, known)
    measured = measured_quantities(of)
    simulated: Values = {}
    fit: StepFit | None = None
    notes: list[str] = []
    try:
        _check_model(of, known, changes)
        fit = fit_step_time(of.intervals, seed=seed)
        kinds = _kinds(of, known.scheduler, fit, measured, seed)
        best = max(kinds, key=lambda kind: kind.weight)
        simulated = _values(best.run, best.overhead, of.histograms)
        _check_present(measured, simulated)
        predicted = _Prediction(of, known.scheduler, apply_changes(known.scheduler, changes), kinds, measured, seed)
        rows = predicted.rows(draws, simulated)
        load, reason = " or ".join(kind.title for kind in kinds), ""
        notes += _notes(of, known, changes, kinds)
    except (_NoPredictionError, FitError) as error:
        rows, load, reason = _unpredicted(measured, simulated), "", str(error)
    return msgspec.structs.replace(
        no_forecast(of, reason, seed=seed),
        changes=[{"flag": one.flag, "now": one.now, "to": one.to} for one in changes],
        quantities=rows,
        step={} if fit is None else _step_document(fit),
        load=load,
        assumed=list(known.assumed),
        notes=notes,
    )


def no_forecast(of: TwinSubject, reason: str, *, seed: int = 0) -> TwinDocument:
    """What is known of an engine of which nothing is predicted, and why."""
    return TwinDocument(
        engine=dict(of.engine),
        title=of.title,
        start=float(of.period.ends[0] - of.period.seconds[0]) if len(of.period) else 0.0,
        end=float(of.period.ends[-1]) if len(of.period) else 0.0,
        changes=[],
        no_prediction=reason,
        quantities=_unpredicted(measured_quantities(of), {}),
        step={},
        load="",
        assumed=[],
        seed=seed,
    )


def _notes(
    of: TwinSubject, known: KnownSettings, changes: tuple[TwinChange, ...], kinds: Sequence[_Kind]
) -> Iterator[str]:
    """What bounds the prediction, a sentence each."""
    if apply_changes(known.scheduler, changes) == known.scheduler:
        yield "The setting is the present one: predicted is what was measured, and the range is of a later time"
    independent = next((kind.load for kind in kinds if not kind.load.clients), None)
    if independent is None:
        return
    held = 0 if independent.has_chains else max(round(float(np.nan_to_num(of.period.present[0]))), 0)
    queue = f", {held:,} request{'s' * (held != 1)} already in the engine at the start included" if held else ""
    yield (
        f"{independent.requests_per_second:.3g} requests/s arrive{queue}: no more than these finish with any setting."
        " The range includes later times with other arrivals"
    )


def _check_model(of: TwinSubject, known: KnownSettings, changes: Sequence[TwinChange]) -> None:
    for fact, title in UNMODELLED.items():
        if of.facts.get(fact, 0.0) > 0:
            raise _NoPredictionError(f"{title} is on, so the duration of a step depends on more than its tokens")
    if of.facts.get("pipeline_parallel", 1.0) > 1:
        raise _NoPredictionError("pipeline stages work on several steps at once")
    moved = [one for one in changes if apply_changes(known.scheduler, (one,)) != known.scheduler]
    fields = {one.field for one in moved}
    for one in changes:
        if one.field in ("slots", "blocks") and one.now is None:
            raise _NoPredictionError(
                f"today's --{one.flag} is not reported; set it in the agent's configuration, or run the agent "
                f"on the engine's node, where it reads the command line"
            )
    after = apply_changes(known.scheduler, tuple(changes))
    room = after.blocks * after.block_tokens
    longest = int(of.accesses.tokens.max(initial=0)) if of.accesses is not None else 0
    if "blocks" in fields and longest > room:
        raise _NoPredictionError(
            f"the longest prompt has {longest:,} tokens, and {room:,} tokens would fit in the cache"
        )
    turned_on = any(one.field == "caching" and one.to > 0 for one in moved)
    if ("blocks" in fields or turned_on) and not _has_lookups(of):
        raise _NoPredictionError(
            "hits of another cache depend on the looked-up blocks, which the source does not contain: start the "
            "engine with --kv-events-config and record until the cache is full"
        )


def _has_lookups(of: TwinSubject) -> bool:
    accesses = of.accesses
    if accesses is None or not len(of.period) or (accesses.observed or 0.0) < MIN_OBSERVED:
        return False
    first, last = float(of.period.ends[0] - of.period.seconds[0]), float(of.period.ends[-1])
    inside = int(((accesses.time >= first) & (accesses.time <= last)).sum())
    return inside >= 0.7 * float(np.nansum(of.period.finished))


def _kinds(of: TwinSubject, settings: SchedulerSettings, fit: StepFit, measured: Values, seed: int) -> list[_Kind]:
    """The ways of arrivals that are likely, each with the present as it simulates it; those that do not reproduce the
    present are left out as long as another does."""
    arrivals = arrival_kind(of.period)
    likely = [(arrivals.closed, arrivals), (1.0 - arrivals.closed, None)]
    kinds = [_kind(of, settings, fit, measured, way, weight, seed) for weight, way in likely if weight > 0]
    right = [kind for kind in kinds if not _off(measured, _values(kind.run, kind.overhead, of.histograms))]
    return right or kinds


def _kind(
    of: TwinSubject,
    settings: SchedulerSettings,
    fit: StepFit,
    measured: Values,
    way: ArrivalKind | None,
    weight: float,
    seed: int,
) -> _Kind:
    lone = _lone(of, settings)
    load: SimulatedLoad
    if _has_lookups(of):
        assert of.accesses is not None
        load = of_accesses(of.accesses, of.period, dict(of.histograms), closed=way, lone=lone, seed=seed)
    else:
        load = of_histograms(of.period, dict(of.histograms), closed=way, lone=lone, seed=seed)
    if not load.requests:
        raise _NoPredictionError("no request arrived in the period; name a time with load")
    every = _interval(of)
    run = simulate(settings, fit.step, load, speed=fit.factors, every=every, seed=seed)
    own, real = _mean_itl(run), measured["itl_mean_seconds"]
    if own and real:
        fit = fit.times(float(np.clip(real / own, 1 / MAX_CORRECTION, MAX_CORRECTION)))
        run = simulate(settings, fit.step, load, speed=fit.factors, every=every, seed=seed)
    ttft = measured["ttft_mean_seconds"] or 0.0
    missing = ttft - (float(run.ttft.mean()) if len(run.ttft) else 0.0)
    overhead = float(np.clip(missing, 0.0, _front_end_seconds(of.period)))
    title = (
        "requests that arrive independently of the answers"
        if way is None
        else f"{way.clients} clients that wait for each answer and then pause {way.think:.2g} s"
    )
    return _Kind(load, fit, run, overhead, weight, title)


def _front_end_seconds(period: ScrapeIntervals) -> float:
    """Mean part of a first token that is neither queue nor prefill; all of it where these are not reported."""
    requests = max(float(np.nansum(period.ttft_count)), 1.0)
    inside = float(np.nansum(period.queue_seconds) + np.nansum(period.prefill_seconds))
    return max((float(np.nansum(period.ttft_seconds)) - inside) / requests, 0.0)


def _front_end_drift(of: TwinSubject) -> Drift:
    """How much the front end's time differs between parts of the period."""
    rows = time_parts(np.arange(len(of.period), dtype=np.float64), _interval(of))
    seconds = np.array([_front_end_seconds(of.period.select(slice(int(part[0]), int(part[-1]) + 1))) for part in rows])
    return drift_of(np.log(seconds[seconds > 0]), FRONT_END_RESTART)


def _lone(of: TwinSubject, settings: SchedulerSettings) -> float:
    """Share of a request's cached blocks that it holds alone, from the blocks in use per running request."""
    period = of.period
    running, requests = float(np.nanmean(period.running)), max(float(np.nansum(period.ttft_count)), 1.0)
    usage = float(np.nanmean(period.kv_usage)) if np.isfinite(period.kv_usage).any() else np.nan
    if not running > 0 or not np.isfinite(usage):
        return 1.0
    cached = float(np.nansum(period.cached)) / requests / settings.block_tokens
    tokens = (float(np.nansum(period.prompt)) + float(np.nansum(period.generated)) / 2) / requests
    if cached < 1:
        return 1.0
    held = usage * settings.blocks / running
    return float(np.clip((held - (tokens / settings.block_tokens - cached)) / cached, 0.0, 1.0))


def _interval(of: TwinSubject) -> float:
    return float(np.median(of.intervals.seconds)) if len(of.intervals) else 1.0


def _largest_step(of: TwinSubject) -> float:
    sizes = of.histograms.get("step")
    if sizes is None or sizes.total <= 0:
        return 0.0
    place = int(np.searchsorted(sizes.counts, sizes.total))
    return float(sizes.bounds[min(place, len(sizes.bounds) - 2)])


def measured_quantities(of: TwinSubject) -> Values:
    """The quantities of the latest load as the engine's counters show them; None where unknown."""
    period = of.period
    seconds = float(period.seconds.sum()) if len(period) else 0.0
    if not seconds:
        return dict.fromkeys(QUANTITIES)

    def ratio(total: Floats, count: Floats) -> float | None:
        base = float(np.nansum(count))
        return float(np.nansum(total)) / base if base > 0 and np.isfinite(total).any() else None

    return {
        **_quantiles(of.histograms),
        "ttft_mean_seconds": ratio(period.ttft_seconds, period.ttft_count),
        "itl_mean_seconds": ratio(period.itl_seconds, period.itl_count),
        "finished_per_second": float(np.nansum(period.finished)) / seconds,
        "output_tokens_per_second": float(np.nansum(period.generated)) / seconds,
        "prefix_hit_ratio": ratio(period.cached, period.prompt),
        "preemptions_per_second": ratio(period.preempted, period.seconds),
        "running_avg": float(np.nanmean(period.running)),
        "waiting_avg": float(np.nanmean(period.waiting)) if np.isfinite(period.waiting).any() else None,
    }


def _quantiles(histograms: Mapping[str, BucketCounts]) -> Values:
    read: Values = {}
    for name in ("ttft", "itl"):
        for percent in (50, 99):
            of = histograms.get(name)
            read[f"{name}_p{percent}_seconds"] = of.quantile(percent / 100) if of is not None else None
    return read


def _mean_itl(run: SimulatedRun) -> float | None:
    return float(np.average(run.itl, weights=run.itl_tokens)) if run.itl_tokens.sum() else None


def _values(run: SimulatedRun, overhead: float, histograms: Mapping[str, BucketCounts]) -> Values:
    """The quantities of a simulation, latencies through the engine's own buckets. overhead: mean seconds of a first
    token outside the scheduler, exponentially distributed."""
    ttft = run.ttft + overhead * np.random.default_rng(0).exponential(size=len(run.ttft))
    binned = {}
    if "ttft" in histograms:
        binned["ttft"] = histograms["ttft"].of(ttft, np.ones_like(ttft))
    if "itl" in histograms:
        binned["itl"] = histograms["itl"].of(run.itl, run.itl_tokens)
    return {
        **_quantiles(binned),
        "ttft_mean_seconds": float(ttft.mean()) if len(ttft) else None,
        "itl_mean_seconds": _mean_itl(run),
        "finished_per_second": run.requests,
        "output_tokens_per_second": run.tokens,
        "prefix_hit_ratio": run.hit_rate,
        "preemptions_per_second": run.preemptions_per_second,
        "running_avg": run.running,
        "waiting_avg": run.waiting,
    }


def _off(measured: Values, simulated: Values) -> str:
    """Which quantity of the present the twin does not reproduce; empty where it does."""
    for name, tolerance in TOLERANCE.items():
        real, own = measured[name], simulated[name]
        title, unit = QUANTITIES[name]
        if real is None or own is None:
            return f"{title} is not known"
        if abs(own - real) > tolerance * real:
            return f"{title} is {render(real, unit)} but the twin shows {render(own, unit)}"
    return ""


def _check_present(measured: Values, simulated: Values) -> None:
    if off := _off(measured, simulated):
        raise _NoPredictionError(
            f"the twin does not reproduce the present: {off}. Other work on the machine, or a load that changed "
            f"in the period, causes this; choose a steadier time"
        )


class _Prediction:
    """Simulations of the present and of the change, both with the same draws."""

    def __init__(
        self,
        of: TwinSubject,
        now: SchedulerSettings,
        then: SchedulerSettings,
        kinds: Sequence[_Kind],
        measured: Values,
        seed: int,
    ) -> None:
        self._of, self._now, self._then = of, now, then
        self._kinds, self._measured = kinds, measured
        self._weights = np.array([kind.weight for kind in kinds]) / sum(kind.weight for kind in kinds)
        self._rng = np.random.default_rng(seed)
        self._every = _interval(of)
        self._front_end = _front_end_drift(of)

    def rows(self, draws: int, simulated: Values) -> list[TwinQuantity]:
        """A row for each quantity. Raises _NoPredictionError."""
        self._check_load()
        drawn = [self._draw(number) for number in range(draws)]
        return [self._row(name, drawn, simulated) for name in QUANTITIES]

    def _check_load(self) -> None:
        for kind in self._kinds:
            run = simulate(self._then, kind.fit.step, kind.load, seed=0)
            sequences = max(run.sequences_of_step, 1e-9)
            spread = kind.fit.spread(run.prefill_of_step, sequences, sequences * kind.fit.context)
            if spread > MAX_SPREAD:
                low, high = kind.fit.sequences
                raise _NoPredictionError(
                    f"the load did not vary enough: steps had {low:.2g} to {high:.2g} sequences, the change "
                    f"makes about {sequences:.2g}, and the time of such a step is known only to a factor of "
                    f"{spread:.2g}. The load must have steps with {max(sequences / 2, low + 1):.0f} or more "
                    f"sequences, and steps with 1, for 30 s each"
                )

    def _draw(self, number: int) -> _Draw:
        """The quantities by one sample of the step time, the speeds and the way of arrivals."""
        kind = self._kinds[int(self._rng.choice(len(self._kinds), p=self._weights))]
        step = kind.fit.draws[number % len(kind.fit.draws)]
        rows = max(int(kind.load.seconds / self._every), 1)
        speed = resample_factors(kind.fit.factors, self._every, rows, self._rng)
        drift, front_end = kind.fit.drift.draw(self._rng), self._front_end.draw(self._rng)
        share = float(self._rng.random())  # of the front end's time that grows with the steps

        def simulated(settings: SchedulerSettings, load: SimulatedLoad, factor: float) -> SimulatedRun:
            return simulate(settings, step, load, speed=speed * factor, every=self._every, seed=number)

        def changed(load: SimulatedLoad, steps: float, outside: float) -> Values:
            run = simulated(self._then, load, steps)
            grown = run.step_seconds / now.step_seconds if now.step_seconds else 1.0
            return _values(run, kind.overhead * outside * (1.0 - share + share * grown), self._of.histograms)

        now = simulated(self._now, kind.load, 1.0)
        later = kind.load.next_minute(self._rng)
        return _Draw(
            _values(now, kind.overhead, self._of.histograms),
            changed(kind.load, 1.0, 1.0),
            changed(later, drift, front_end),
            kind.load,
            later,
        )

    def _row(self, name: str, draws: Sequence[_Draw], simulated: Values) -> TwinQuantity:
        title, unit = QUANTITIES[name]
        real = self._measured[name]

        def within(value: float, load: SimulatedLoad) -> float:
            """No more than what arrives; a queue at the start, which drains, is in that."""
            offered = getattr(load, _OFFERED[name]) if name in _OFFERED else None
            return value if offered is None else min(value, max(offered, real or 0.0))

        def scaled(draw: _Draw, then: float | None, load: SimulatedLoad) -> float | None:
            value = then if then is None or real is None else _scaled(name, real, draw.now[name], then)
            return None if value is None else within(value, load)

        chosen = [one for draw in draws if (one := scaled(draw, draw.then[name], draw.load)) is not None]
        chosen = chosen or [within(then, draw.load) for draw in draws if (then := draw.then[name]) is not None]
        row = TwinQuantity(name, title, unit, real, simulated[name])
        if not chosen:
            return row
        spread = [one for draw in draws if (one := scaled(draw, draw.later[name], draw.later_load)) is not None]
        spread += [within(later, draw.later_load) for draw in draws if (later := draw.later[name]) is not None]
        predicted = float(np.median(chosen))
        low, high = (float(np.quantile(spread or chosen, share)) for share in (LOW, HIGH))
        if name in _ANCHORED:
            # A median inside a wide bucket hides what a restart changes.
            low, high = min(low, predicted * (1 - STEP_RESTART)), max(high, predicted * (1 + STEP_RESTART))
        return msgspec.structs.replace(row, predicted=predicted, low=min(low, predicted), high=max(high, predicted))


def _scaled(name: str, real: float, now: float | None, then: float) -> float | None:
    """What was measured, changed as the simulation changes: where nothing changes, it is what was measured. None where
    the simulated present has no such quantity."""
    if name in _ANCHORED:
        return real * then / now if now else None
    if now is None:
        return None
    value = real * then / now if then < now else real + then - now
    return min(value, 1.0) if QUANTITIES[name][1] == "ratio" else value


def _unpredicted(measured: Values, simulated: Values) -> list[TwinQuantity]:
    return [
        TwinQuantity(name, title, unit, measured.get(name), simulated.get(name))
        for name, (title, unit) in QUANTITIES.items()
    ]


def _step_document(fit: StepFit) -> dict[str, float]:
    step = fit.step
    return {
        "base_seconds": step.base,
        "seconds_per_prefill_token": step.prefill,
        "seconds_per_sequence": step.sequence,
        "seconds_per_context_token": step.context,
        "intervals": fit.intervals,
        "drift": fit.drift.deviation,
    }
