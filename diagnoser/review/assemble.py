"""A review from series: what is asked once, and what is computed of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvitals.diagnoser.review import chargeback, efficiency, incidents, opportunities, summary, weeks, work
from kvitals.diagnoser.review.events import order_events
from kvitals.diagnoser.review.gpu_time import ledger
from kvitals.diagnoser.review.money import GpuPrices, price_engines
from kvitals.diagnoser.review.published import published_rates
from kvitals.diagnoser.review.result import Incidents, Review, ReviewCoverage, ReviewEvent
from kvitals.diagnoser.review.review_steps import gather, steps_within
from kvitals.diagnoser.review.words import moments
from kvitals.diagnoser.review.work import Week
from kvitals.diagnoser.steps import Ask
from kvitals.rules.loader import Knowledge

MOST_GAPS = 5


class NothingSeenError(Exception):
    """There is nothing to review; the message says what to do."""


@dataclass(frozen=True)
class ReviewRequest:
    """What is to be reviewed, of what, and what is not among the series.

    start: what was asked for; since: from when on there is anything of it; first: and at all. gap: seconds between
    rows. objectives: of engines that tell none. incidents, noted: where they come from.
    """

    source: str
    start: float
    since: float
    end: float
    first: float
    gap: float
    objectives: Mapping[str, float]
    objectives_from: str
    given: GpuPrices
    incidents: Callable[[float, float], Incidents]
    noted: Callable[[float, float], Sequence[ReviewEvent]]


def review(ask: Ask, asked: ReviewRequest, knowledge: Knowledge) -> Review:
    """Raises NothingSeenError."""
    start, step = steps_within(max(asked.since, asked.start), asked.end, asked.gap)
    count = math.floor((asked.end - start) / step + 1e-6)
    end = start + count * step
    seen = gather(ask, start, end, step, asked.gap) if count > 0 else None
    if seen is None or not seen.engines or not seen.data["seen"].any():
        raise NothingSeenError(
            f"{asked.source}: no engine was watched for at least {step:.0f} s between "
            f"{moments(asked.start, asked.end)} UTC; choose another time with --from and --to"
        )
    of_engines = ledger(seen, asked.given.gpus)
    prices = price_engines(seen.engines, of_engines.gpu_hours.sum(axis=0), asked.given)
    week = Week(seen, of_engines, prices, work.within(seen, asked.objectives))
    total = work.work(week)
    found = incidents.with_losses(asked.incidents(start, end), week)
    cache = efficiency.cache_money(week)
    told = summary.SummaryFacts(
        week=week,
        coverage=_coverage(week, asked.start),
        gpus=efficiency.gpus(week, asked.given.gpus),
        prices=prices.used,
        total=total,
        days=summary.said_of(work.days(week), found),
        compared=weeks.compare_weeks(ask, seen, of_engines, asked.gap, asked.given.gpus, asked.first),
        goodput=work.goodput(week, total, asked.objectives_from),
        trap=efficiency.trap(week, total),
        ledger=efficiency.parts(week),
        chargeback=chargeback.chargeback(week, total.gpu_hours, total.usd),
        incidents=found,
        levers=opportunities.levers(week, total, cache, found, knowledge.levers),
    )
    changes, more = order_events(ask, seen, asked.noted(start, end))
    return Review(
        made=time.time(),
        source=asked.source,
        start=start,
        end=end,
        step=step,
        story=summary.story(told),
        coverage=told.coverage,
        gpus=told.gpus,
        prices=prices.used,
        total=total,
        groups=work.groups(week),
        days=list(told.days),
        compared=told.compared,
        goodput=told.goodput,
        trap=told.trap,
        ledger=list(told.ledger),
        cache=cache,
        chargeback=told.chargeback,
        incidents=found,
        levers=list(told.levers),
        happened=changes,
        happened_not_listed=more,
        published=published_rates({one.place.get("hardware", "") for one in seen.engines}),
        courses=work.courses(week),
        unknown=_unknown(told),
    )


def _coverage(week: Week, start: float) -> ReviewCoverage:
    seen = week.seen
    share = seen.data["seen"].max(axis=1)
    end = float(seen.ends[-1])
    return ReviewCoverage(
        asked_from=start,
        seen_share=min(float(share.sum()) / max(end - min(start, seen.start), 1e-9), 1.0),
        engine_share=work.engine_share(seen),
        engines=len(seen.engines),
        gaps=work.gaps(week, start, MOST_GAPS),
    )


def _unknown(told: summary.SummaryFacts) -> list[str]:
    """What the numbers do not contain, and why."""
    said = [f"{efficiency.NAMES[part.part]}: {part.unknown}" for part in told.ledger if part.unknown]
    said += [
        f"price of {one.hardware}: {one.basis}; set it with --price" for one in told.prices if one.usd_per_hour is None
    ]
    if told.gpus.energy_kwh is None:
        said.append(
            "power: no GPU reports its energy (an agent reads it from NVML on the node, or from a DCGM exporter)"
        )
    if told.compared.missing:
        said.append(f"comparison with earlier weeks: {told.compared.missing}")
    if told.chargeback.missing:
        said.append(f"tenants: {told.chargeback.missing}")
    if told.incidents.missing:
        said.append(f"incidents: {told.incidents.missing}")
    if not told.week.seen.known("usable"):
        said.append(
            "the capacity of engines within the objective: kvitals knee and the agent report it after enough load"
        )
    return said
