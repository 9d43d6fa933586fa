"""What was done for how much, of all engines or of some, of all steps or of some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kvitals.diagnoser.review.gpu_time import WASTE, GpuTimeLedger
from kvitals.diagnoser.review.money import Prices
from kvitals.diagnoser.review.result import Courses, Day, Goodput, ModelGroup, ObjectiveShare, PaidWork
from kvitals.diagnoser.review.review_steps import Engine, ReviewArrays
from kvitals.series.types import Bools, Floats

OBJECTIVES = {"ttft_p99": "first tokens", "itl_p99": "gaps between tokens"}
DAY_SECONDS = 86400.0
_GROUPS: Mapping[str, Callable[[Engine], str]] = {
    "pool": lambda one: one.place.get("pool", ""),
    "model": lambda one: one.place.get("model", ""),
    "tier": lambda one: one.place.get("hardware", ""),
}


@dataclass(frozen=True)
class Within:
    """Of one objective: observations, and those within it, [step, engine] each. at_least, at_most: those in the buckets
    that end below the objective, and in those that begin below it. seconds: what was promised, of each engine; told:
    whether the engine said so itself."""

    observations: Floats
    good: Floats
    at_least: Floats
    at_most: Floats
    seconds: Floats
    told: Bools

    def share(self, steps: Bools | slice = slice(None), engines: Bools | slice = slice(None)) -> float | None:
        """Of the observations; None where there are none."""
        all_ = float(self.observations[steps][:, engines].sum())
        return float(self.good[steps][:, engines].sum()) / all_ if all_ > 0 else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and the largest share that the histograms allow; None where there are no observations."""
        all_ = float(self.observations.sum())
        return (float(self.at_least.sum()) / all_, float(self.at_most.sum()) / all_) if all_ > 0 else None


@dataclass(frozen=True)
class Week:
    """What is known of the time, for all that is computed of it."""

    seen: ReviewArrays
    ledger: GpuTimeLedger
    prices: Prices
    within: Mapping[str, Within]


def within(seen: ReviewArrays, general: Mapping[str, float]) -> dict[str, Within]:
    """How much was within the objectives. `general`: of engines that tell none. Within a bucket it is interpolated."""
    found = {}
    for name in OBJECTIVES:
        shape = seen.steps, len(seen.engines)
        observations, good, at_least, at_most = (np.zeros(shape) for _ in range(4))
        own = [seen.slo.get(one.entity, {}).get(name) for one in seen.engines]
        seconds = np.array([general[name] if said is None else said for said in own], dtype=np.float64)
        for i, counts in seen.latencies.get(name, {}).items():
            cumulative = np.maximum.accumulate(counts.counts, axis=1)
            observations[:, i] = cumulative[:, -1]
            at_least[:, i], at_most[:, i] = _around(counts.bounds, cumulative, float(seconds[i]))
            bounds = np.concatenate([[0.0], counts.bounds])
            if not np.isfinite(bounds[-1]):  # beyond the last bound nothing is known to be within
                bounds, cumulative = bounds[:-1], cumulative[:, :-1]
            heights = np.column_stack([np.zeros(len(cumulative)), cumulative])
            good[:, i] = [np.interp(seconds[i], bounds, row) for row in heights]
        told = np.array([said is not None for said in own], dtype=np.bool_)
        found[name] = Within(observations, good, at_least, at_most, seconds, told)
    return found


def _around(bounds: Floats, cumulative: Floats, seconds: float) -> tuple[Floats, Floats]:
    """Observations up to the last bound that is not above so many seconds, and up to the first that is not below."""
    near = 1e-9 * seconds
    below, above = int(np.searchsorted(bounds, seconds + near, "right")), int(np.searchsorted(bounds, seconds - near))
    least = cumulative[:, below - 1] if below else np.zeros(len(cumulative))
    return least, cumulative[:, min(above, len(bounds) - 1)]


def work(week: Week, steps: Bools | slice = slice(None), engines: Bools | slice = slice(None)) -> PaidWork:
    """Of some engines in some steps."""
    seen = week.seen

    def total(name: str) -> float:
        return float(np.nansum(seen.data[name][steps][:, engines]))

    hours = np.zeros_like(week.ledger.gpu_hours)
    chosen = np.zeros_like(hours, dtype=np.bool_)
    chosen[np.ix_(np.arange(hours.shape[0])[steps], np.arange(hours.shape[1])[engines])] = True
    hours[chosen] = week.ledger.gpu_hours[chosen]
    gpu_hours, usd = float(hours.sum()), week.prices.cost(hours)
    output, prompt = total("output"), total("prompt")
    told = np.isfinite(seen.data["busy"]) & chosen
    of = float(week.ledger.gpu_hours[told].sum())
    busy = float((week.ledger.gpu_hours * np.nan_to_num(seen.data["busy"]))[told].sum()) / of if of > 0 else None
    return PaidWork(
        gpu_hours=gpu_hours,
        usd=usd,
        output_tokens=output,
        prompt_tokens=prompt,
        cached_tokens=total("hit") if np.isfinite(seen.data["hit"][steps][:, engines]).any() else None,
        requests=max(total("finished"), total("first_tokens")),
        busy_share=busy,
        tokens_per_gpu_hour=output / gpu_hours if gpu_hours > 0 else 0.0,
        usd_per_million_output=per_million(usd, output),
        usd_per_million_tokens=per_million(usd, output + prompt),
    )


def per_million(usd: float | None, tokens: float) -> float | None:
    """Price over tokens that were really served: how busy the hardware was is in them already."""
    return usd / tokens * 1e6 if usd is not None and tokens > 0 else None


def groups(week: Week) -> list[ModelGroup]:
    """By pool, by model and by hardware. The groups of a kind add up to the whole."""
    found = []
    for kind, of in _GROUPS.items():
        names = [of(one) for one in week.seen.engines]
        for name in sorted(set(names)):
            chosen = np.array([one == name for one in names], dtype=np.bool_)
            found.append(
                ModelGroup(
                    kind=kind,
                    name=name or "not told",
                    engines=int(chosen.sum()),
                    gpus=float(week.ledger.gpus[chosen].sum()),
                    work=work(week, engines=chosen),
                    ttft_within=week.within["ttft_p99"].share(engines=chosen),
                )
            )
    return found


def days(week: Week) -> list[Day]:
    """Day by day (UTC), where there are several; what is to be said of each is added later."""
    seen = week.seen
    number = np.floor((seen.ends - seen.step / 2) / DAY_SECONDS)
    found = []
    for day in np.unique(number).tolist():
        steps = number == day
        hours = float(week.ledger.gpu_hours[steps].sum())
        if hours <= 0:
            continue
        wasted = sum(float(week.ledger.parts[part][steps].sum()) for part in WASTE if part != "idle")
        ends = seen.ends[steps]
        found.append(
            Day(
                start=float(ends[0] - seen.step),
                end=float(ends[-1]),
                work=work(week, steps),
                ttft_within=week.within["ttft_p99"].share(steps),
                idle_share=float(week.ledger.parts["idle"][steps].sum()) / hours if seen.known("busy") else None,
                wasted_share=wasted / hours,
                said="",
            )
        )
    return found


def goodput(week: Week, total: PaidWork, source: str) -> Goodput:
    """Tokens within the objectives."""
    objectives = [
        ObjectiveShare(
            name=name,
            what=what,
            seconds=(float(one.seconds.min(initial=np.inf)), float(one.seconds.max(initial=0.0))),
            source="the engines' agents" if one.told.any() else source,
            observations=float(one.observations.sum()),
            within=one.share(),
            bounds=one.bounds,
        )
        for name, what in OBJECTIVES.items()
        if len((one := week.within[name]).seconds)
    ]
    by_engine = [_both(week, i) for i in range(len(week.seen.engines))]
    output = np.nansum(week.seen.data["output"], axis=0)
    known = [(tokens, share) for tokens, share in zip(output.tolist(), by_engine, strict=True) if share is not None]
    all_ = sum(tokens for tokens, _ in known)
    share = sum(tokens * one for tokens, one in known) / all_ if all_ > 0 else None
    return Goodput(
        objectives=objectives,
        tokens_per_gpu_hour=total.tokens_per_gpu_hour * share if share is not None else None,
        share=share,
        method=(
            "Each engine's output tokens times the smaller of two shares: first tokens in time, and gaps "
            "between tokens in time."
            " Engines report no tokens by latency, so this is an estimate."
        ),
    )


def _both(week: Week, engine: int) -> float | None:
    chosen = np.arange(len(week.seen.engines)) == engine
    shares = [share for one in week.within.values() if (share := one.share(engines=chosen)) is not None]
    return min(shares) if shares else None


def courses(week: Week) -> Courses:
    """For charts."""
    hours = week.ledger.gpu_hours.sum(axis=1)
    output = np.nansum(week.seen.data["output"], axis=1)
    one = week.within["ttft_p99"]
    observed, good = one.observations.sum(axis=1), one.good.sum(axis=1)
    there = hours > 0
    return Courses(
        ends=week.seen.ends.tolist(),
        gpu_hours=_where(there, hours),
        output_tokens=_where(there, output),
        tokens_per_gpu_hour=_where(there, output / np.where(there, hours, 1.0)),
        ttft_within=_where(observed > 0, good / np.where(observed > 0, observed, 1.0)),
        parts={name: part.sum(axis=1).tolist() for name, part in week.ledger.parts.items()},
    )


def _where(there: Bools, values: Floats) -> list[float | None]:
    return [value if known else None for known, value in zip(there.tolist(), values.tolist(), strict=True)]


def gaps(week: Week, start: float, most: int) -> list[tuple[float, float]]:
    """The longest times from `start` on in which nobody watched."""
    seen = week.seen
    there = seen.data["seen"].sum(axis=1) > 0
    found = list(_runs(~there, seen.start, seen.step))
    if seen.start - start > seen.step:
        found.insert(0, (start, seen.start))
    joined: list[tuple[float, float]] = []
    for first, last in found:
        if joined and abs(joined[-1][1] - first) < 1.0:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return sorted(sorted(joined, key=lambda one: one[0] - one[1])[:most])


def _runs(chosen: Bools, start: float, step: float) -> Iterator[tuple[float, float]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(int)))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield start + first * step, start + last * step


def engine_share(seen: ReviewArrays) -> float:
    """Of the time between each engine's first and last sight, how much it was watched."""
    spent = all_ = 0.0
    for column in seen.data["seen"].T:
        there = np.flatnonzero(column > 0)
        if len(there):
            spent += float(column.sum())
            all_ += float(there[-1] - there[0] + 1) * seen.step
    return spent / all_ if all_ > 0 else 0.0
