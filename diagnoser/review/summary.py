"""The time in sentences, what matters most first. A reader who stops after them knows what happened."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kvitals.diagnoser.review.money import USER
from kvitals.diagnoser.review.result import (
    Chargeback,
    Day,
    Goodput,
    Gpus,
    GpuTimePart,
    Incidents,
    LeverRow,
    ObjectiveShare,
    PaidWork,
    PriceUsed,
    ReviewCoverage,
    ReviewIncident,
    Trap,
    WeekComparison,
)
from kvitals.diagnoser.review.words import count, day, hours, lasting, moment, share, share_range, span, usd
from kvitals.diagnoser.review.work import Week
from kvitals.diagnoser.text import lower_title

LONG_STEP_SECONDS = 300.0
"""Of a step that is longer, what happens between two rows is a small part."""
WHOLE = 0.995
FEW_HOURS = 0.05
"""Of the incidents' time on a day, below which an incident is not what the day was about."""
HEAVY = 0.5
"""Of a day's bill by one tenant."""
NIGHT_HOURS = 3
QUIET, LIVELY = 0.8, 0.5
_FACTORS = {
    "load": "time with work",
    "batch": "requests at a time",
    "hits": "cache hits",
    "waste": "prompts computed twice",
    "mix": "longer or shorter prompts per answer",
    "prefill": "speed of prefill",
    "decode": "speed of decode",
    "busy": "speed while busy",
    "pools": "which pools ran",
}
_PARTS = {
    "idle": "was idle",
    "aborted": "was for clients that disconnected",
    "reprefill": "was prefill done twice",
    "drafts": "was for rejected drafts",
}


@dataclass(frozen=True)
class SummaryFacts:
    """All that the sentences are of."""

    week: Week
    coverage: ReviewCoverage
    gpus: Gpus
    prices: Sequence[PriceUsed]
    total: PaidWork
    days: Sequence[Day]
    compared: WeekComparison
    goodput: Goodput
    trap: Trap
    ledger: Sequence[GpuTimePart]
    chargeback: Chargeback
    incidents: Incidents
    levers: Sequence[LeverRow]


def story(of: SummaryFacts) -> list[str]:
    """Some sentences each with its numbers."""
    parts = (_paid, _before, _went, _objective, _best_and_worst, _night, _happened, _lever, _seen)
    return [sentence for part in parts for sentence in part(of)]


def _paid(of: SummaryFacts) -> Iterator[str]:
    total, gpus, seen = of.total, of.gpus, of.week.seen
    cost = f", {usd(total.usd)}," if total.usd is not None else ""
    assumed = "" if not gpus.assumed_engines else (
        f" ({_some(gpus.assumed_engines, of.coverage.engines)} do not report how many GPUs they have;"
        f" {gpus.assumed_each:g} each is assumed)"
    )  # fmt: skip
    engines = f"{of.coverage.engines} engine{'s' if of.coverage.engines != 1 else ''}"
    on = f"{gpus.count:g} GPU{'s' if gpus.count != 1 else ''}"
    yield (
        f"In {lasting(seen.steps * seen.step)}, {engines} on {on}{assumed} used {hours(total.gpu_hours)} "
        f"GPU-hours{cost} and generated {count(total.output_tokens)} tokens: {count(total.tokens_per_gpu_hour)} "
        f"per GPU-hour{_per_million(of)}."
    )


def _some(some: int, all_: int) -> str:
    return "they" if some == all_ else f"{some} of them"


def _per_million(of: SummaryFacts) -> str:
    if of.total.usd_per_million_output is None:
        return ""
    text = f", {usd(of.total.usd_per_million_output)} a million output tokens"
    default = [one for one in of.prices if one.usd_per_hour is not None and not one.basis.startswith(USER)]
    if not default:
        return text
    priced = [one for one in of.prices if one.usd_per_hour is not None]
    low, high = (
        sum((getattr(one, of_) or 0.0) * one.gpu_hours for one in priced) / of.total.output_tokens * 1e6
        for of_ in ("low", "high")
    )
    between = f" ({usd(low)} to {usd(high)} over their span)" if low != high else ""
    return f"{text} at default prices{between}; set yours with --price"


def _before(of: SummaryFacts) -> Iterator[str]:
    one = of.compared
    if one.best is None or one.before is None or one.now is None or one.before <= 0:
        return
    change = one.now / one.before - 1.0
    best = next(week for week in one.weeks if week.weeks == one.best)
    which = f"the best comparable week, from {day(best.start)} ({len(one.weeks)} compared)"
    if abs(change) < 0.01:
        yield f"That is as much per GPU-hour as in {which}."
        return
    factors = [f"{_FACTORS[f.name]} {_points(f.share)}" for f in one.factors if abs(f.share) >= 0.005][:4]
    yield (
        f"That is {share(abs(change))} {'more' if change > 0 else 'less'} per GPU-hour than in {which}: "
        f"{', '.join(factors)}, in points of that week's rate."
    )


def _points(value: float) -> str:
    return f"{100 * value:+.0f}" if abs(value) >= 0.1 else f"{100 * value:+.1f}"


def _went(of: SummaryFacts) -> Iterator[str]:
    lost = [part for part in of.ledger if part.waste and part.share >= 0.005]
    if lost:
        lost.sort(key=lambda part: -part.share)
        said = [f"{share(part.share)} {_PARTS[part.part]}{_money(part.usd)}" for part in lost]
        yield f"Of the GPU time {_listed(said)}."
    trap = of.trap
    if trap.trapped and trap.used is not None:
        nvml = f" (NVML's utilization reads {share(trap.gpu_utilization)})" if trap.gpu_utilization is not None else ""
        better = f"; at 70 % a million output tokens would cost {usd(trap.usd_at_target)}" if trap.usd_at_target else ""
        yield f"{share(trap.used)} of {trap.of} was used{nvml}{better}."


def _money(value: float | None) -> str:
    return f" ({usd(value)})" if value is not None else ""


def _objective(of: SummaryFacts) -> Iterator[str]:
    said = [
        f"{share(one.within)} of {one.what} came within {span(*one.seconds)}{_true_share(one)}"
        for one in of.goodput.objectives
        if one.within is not None
    ]
    if said:
        good = of.goodput.tokens_per_gpu_hour
        more = f"; {count(good)} tokens per GPU-hour were in time" if good is not None else ""
        yield f"{_listed(said)[0].upper()}{_listed(said)[1:]}{more}."


def _true_share(one: ObjectiveShare) -> str:
    """Between which shares the true one lies, where the objective is inside a histogram bucket."""
    true = share_range(one.bounds)
    return f" ({true}: the objective is inside a histogram bucket)" if true else ""


def _best_and_worst(of: SummaryFacts) -> Iterator[str]:
    """The day that was best, and those that were not as they should be."""
    if len(of.days) < 2:
        return
    quiet = [one for one in of.days if not one.said] or of.days
    best = max(quiet, key=lambda one: (one.ttft_within or 0.0, one.work.tokens_per_gpu_hour))
    said = [f"{day(best.start)} was the best day: {_day(best)}."]
    said += [f"{day(one.start)}: {one.said}." for one in of.days if one.said and one is not best]
    yield " ".join(said[:5])


def _day(one: Day) -> str:
    within = f"{share(one.ttft_within)} of first tokens in time, " if one.ttft_within is not None else ""
    return f"{within}{count(one.work.tokens_per_gpu_hour)} tokens a GPU-hour"


def said_of(days: Sequence[Day], incidents: Incidents) -> list[Day]:
    """The days, with what each was about: the incidents that lasted longest on it, or that nothing ran."""
    usual = [one.ttft_within for one in days if one.ttft_within is not None]
    middle = statistics.median(usual) if usual else None
    return [msgspec.structs.replace(one, said=_about(one, incidents.rows, middle)) for one in days]


def _about(one: Day, rows: Sequence[ReviewIncident], middle: float | None) -> str:
    inside = [(sum(max(min(b, one.end) - max(a, one.start), 0.0) for a, b in row.spans), row) for row in rows]
    long = [(seconds, row) for seconds, row in inside if seconds >= FEW_HOURS * (one.end - one.start)]
    causes = [(seconds, row) for seconds, row in long if row.kind == "cause" and not row.explained_by]
    parts = []
    for seconds, row in sorted(causes or long, key=lambda pair: _rank(*pair))[:1]:
        others = len({other.entity for _, other in long if other.code == row.code}) - 1
        more = f" and {others} more" if others else ""
        parts.append(f"{row.title} ({row.code}, {row.entity}{more}) for {lasting(seconds)}")
    if one.ttft_within is not None and middle is not None and one.ttft_within < min(middle - 0.02, 0.99):
        parts.append(f"{share(one.ttft_within)} of first tokens in time")
    if one.idle_share is not None and one.idle_share > QUIET:
        parts.append(f"idle for {share(one.idle_share)} of the time")
    return ", ".join(parts)


def _rank(seconds: float, row: ReviewIncident) -> tuple[float, int, float]:
    """The longest first, by hours; of these what explains most."""
    return -round(seconds / 3600.0), -len(row.explains), -max(row.lost_gpu_hours or 0.0, row.late_gpu_hours or 0.0)


def _night(of: SummaryFacts) -> Iterator[str]:
    """Hours of the day (UTC) in which nothing runs, day after day."""
    seen, parts = of.week.seen, of.week.ledger
    if seen.step > 3600 or seen.steps * seen.step < 2 * 86400 or not seen.known("busy"):
        return
    hour = np.floor((seen.ends - seen.step / 2) % 86400 / 3600).astype(int)
    idle, all_ = (np.bincount(hour, values.sum(axis=1), 24) for values in (parts.parts["idle"], parts.gpu_hours))
    share_of = np.where(all_ > 0, idle / np.where(all_ > 0, all_, 1.0), 0.0)
    quiet = share_of >= QUIET
    first, length = _longest(quiet.tolist())
    inside = [(first + i) % 24 for i in range(length)]
    outside = [i for i in range(24) if i not in inside]
    if length < NIGHT_HOURS or not outside or idle[outside].sum() / max(all_[outside].sum(), 1e-9) > LIVELY:
        return
    idle_hours = float(idle[inside].sum())
    cost = of.total.usd / of.total.gpu_hours * idle_hours if of.total.usd is not None else None
    part = share(idle_hours / max(float(all_[inside].sum()), 1e-9))
    yield (
        f"Nights are idle: from {first:02}:00 to {(first + length) % 24:02}:00 UTC no request ran for {part} of "
        f"the time, {hours(idle_hours)} GPU-hours{_money(cost)}."
    )


def _longest(flags: Sequence[bool]) -> tuple[int, int]:
    """Where the longest run of a circle begins, and how long it is."""
    if all(flags):
        return 0, len(flags)
    best, length = 0, 0
    run = 0
    for i in range(2 * len(flags)):
        run = run + 1 if flags[i % len(flags)] else 0
        if run > length:
            best, length = (i - run + 1) % len(flags), run
    return best, length


def _happened(of: SummaryFacts) -> Iterator[str]:
    rows = of.incidents.rows
    if of.incidents.missing or not rows:
        return
    times = sum(row.times for row in rows if row.kind == "cause" and not row.explained_by) or sum(r.times for r in rows)
    told = (
        f", detected {lasting(of.incidents.detected)} after they began (median)"
        if of.incidents.detected is not None
        else ""
    )
    worst = max(rows, key=_weight)
    least, on = "at least " if worst.at_least else "", ", still open" if worst.open else ""
    often = f"{worst.times} time{'s' if worst.times != 1 else ''}, {least}{lasting(worst.seconds)} in all{on}"
    yield (
        f"{times} incident{'s' if times != 1 else ''}{told}; the longest or most expensive: {worst.title} "
        f"({worst.code}, {worst.entity}), {often}{_cost(worst)}."
    )


def _weight(one: ReviewIncident) -> tuple[bool, float, float]:
    own = one.kind == "cause" and not one.explained_by
    return own, max(one.lost_gpu_hours or 0.0, one.late_gpu_hours or 0.0), one.seconds


def _cost(one: ReviewIncident) -> str:
    lost, late = one.lost_gpu_hours or 0.0, one.late_gpu_hours or 0.0
    if max(lost, late) <= 0:
        return ""
    if late > lost:
        return f"; {share(one.ttft_within)} of first tokens were in time during it"
    return f"; tokens worth {hours(lost)} GPU-hours were not generated"


def _lever(of: SummaryFacts) -> Iterator[str]:
    worth = [row for row in of.levers if row.gpu_hours]
    if worth:
        first = worth[0]
        bring = f"{hours(first.gpu_hours or 0.0)} GPU-hours{_money(first.usd)}"
        yield (
            f"The largest saving: {lower_title(first.title)} ({first.lever}), "
            f"{'at most ' if first.at_most else ''}{bring}; {first.confidence} confidence."
        )


def _seen(of: SummaryFacts) -> Iterator[str]:
    one = of.coverage
    if one.seen_share < WHOLE or one.engine_share < WHOLE:
        longest = max(one.gaps, key=lambda gap: gap[1] - gap[0], default=None)
        where = f"; the longest gap is from {moment(longest[0])} to {moment(longest[1])} UTC" if longest else ""
        yield (
            f"Only observed time is counted: {share(one.seen_share)} of the requested time, and engines "
            f"{share(one.engine_share)} of the time between their first and last scrape{where}."
        )
    if of.week.seen.step < LONG_STEP_SECONDS:
        gap = of.week.seen.grid.gap
        yield (
            f"Rows are {gap:.3g} s apart: a count may include or omit what happened in {gap:.3g} s at either end "
            "of the time range."
        )


def _listed(several: Sequence[str]) -> str:
    return several[0] if len(several) == 1 else f"{', '.join(several[:-1])} and {several[-1]}" if several else ""
