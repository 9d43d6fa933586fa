"""This week against its own best comparable one, and why it is better or worse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvitals.diagnoser.review.change import FACTORS, Totals, explain_change
from kvitals.diagnoser.review.gpu_time import GpuTimeLedger, ledger, recomputed_share
from kvitals.diagnoser.review.result import Factor, WeekBefore, WeekComparison
from kvitals.diagnoser.review.review_steps import COMPARED, ReviewArrays, anything, gather
from kvitals.diagnoser.steps import Ask
from kvitals.series.types import Bools, Labels

WEEK_SECONDS = 7 * 86400.0
WEEKS = 4
"""That are looked back at."""
LEAST_SHARE = 0.25
"""Of this week's GPU-hours have to be of hours that the other week has too."""
MOST_UNLIKE = 2.0
"""Prompt tokens per output token may differ by this factor; beyond it the work is of another kind."""
METHOD = (
    "Only hours of the week that both weeks have are compared. Tokens per GPU-hour = share of time with a "
    "running request x requests at a time x tokens per second of a request. The last factor is split into "
    "seconds of decode per token, prompt tokens per output token, the shares of them that were cached and "
    "recomputed, and seconds to compute one."
    " The change is divided by logarithmic mean Divisia weights (LMDI-I), which leave no remainder."
)


@dataclass(frozen=True)
class _Before:
    said: WeekBefore
    parts: dict[str, float]


def compare_weeks(
    ask: Ask, seen: ReviewArrays, now: GpuTimeLedger, gap: float, gpus: float, first: float
) -> WeekComparison:
    """Looks at the same hours of the weeks before, as far back as `first`."""
    found: list[_Before] = []
    end = seen.start + seen.steps * seen.step
    for weeks in range(1, WEEKS + 1):
        back = weeks * WEEK_SECONDS
        if end - back > first and anything(ask, seen.start - back, end - back):
            before = gather(ask, seen.start - back, end - back, seen.step, gap, COMPARED)
            found.append(_compared(seen, now, before, ledger(before, gpus), weeks))
    good = [one for one in found if one.said.comparable]
    if not good:
        missing = "no earlier week was watched" if not found else "no earlier week is comparable"
        return WeekComparison(
            weeks=[one.said for one in found], best=None, before=None, now=None, factors=[], method=METHOD,
            missing=missing,
        )  # fmt: skip
    best = max(good, key=lambda one: one.said.tokens_per_gpu_hour)
    return WeekComparison(
        weeks=[one.said for one in found],
        best=best.said.weeks,
        before=best.said.tokens_per_gpu_hour,
        now=best.said.now,
        factors=[
            Factor(
                name=name, what=FACTORS[name], tokens_per_gpu_hour=value, share=value / best.said.tokens_per_gpu_hour
            )
            for name, value in sorted(best.parts.items(), key=lambda item: -abs(item[1]))
        ],
        method=METHOD,
        missing="",
    )


def _compared(seen: ReviewArrays, now: GpuTimeLedger, before: ReviewArrays, then: GpuTimeLedger, weeks: int) -> _Before:
    pools = sorted({one.place for one in (*seen.engines, *before.engines)}, key=str)
    old, new = [], []
    all_hours = float(now.gpu_hours.sum())
    for pool in pools:
        common = _there(seen, pool) & _there(before, pool)
        if not common.any():  # came or went since: its hours of the week are those of the others
            common = _any(seen) & _any(before)
        old.append(totals(before, then, pool, common))
        new.append(totals(seen, now, pool, common))
    hours = [sum(one.gpu_hours for one in several) for several in (old, new)]
    rates = [sum(one.output for one in s) / h if h > 0 else 0.0 for s, h in zip((old, new), hours, strict=True)]
    said = WeekBefore(
        weeks=weeks,
        start=before.start,
        tokens_per_gpu_hour=rates[0],
        now=rates[1],
        hours=hours[0],
        comparable=not (why := _why_not(old, new, hours, all_hours)),
        why_not=why,
    )
    return _Before(said, explain_change(old, new))


def _why_not(old: list[Totals], new: list[Totals], hours: list[float], all_hours: float) -> str:
    if min(hours) <= 0 or hours[1] < LEAST_SHARE * all_hours:
        return f"less than {LEAST_SHARE:.0%} of this week's hours were watched then"
    mixes = []
    for several in (old, new):
        output, prompt = sum(one.output for one in several), sum(one.prompt for one in several)
        if output <= 0:
            return "no token was generated in one of the weeks"
        mixes.append(prompt / output)
    if min(mixes) > 0 and max(mixes) / min(mixes) > MOST_UNLIKE:
        return f"{mixes[0]:.3g} prompt tokens per output token then, {mixes[1]:.3g} now: a different workload"
    return ""


def totals(seen: ReviewArrays, of: GpuTimeLedger, pool: Labels, steps: Bools) -> Totals:
    """Of a pool in some steps."""
    engines = np.array([one.place == pool for one in seen.engines], dtype=np.bool_)
    chosen = np.ix_(np.flatnonzero(steps), np.flatnonzero(engines))

    def total(name: str) -> float:
        return float(np.nansum(seen.data[name][chosen]))

    computed = seen.data["looked_up"] - seen.data["hit"]
    return Totals(
        gpu_hours=float(of.gpu_hours[chosen].sum()),
        busy_hours=float((of.gpu_hours - of.parts["idle"])[chosen].sum()) if seen.known("busy") else 0.0,
        output=total("output"),
        prompt=total("looked_up"),
        computed=float(np.nansum(computed[chosen])),
        again=float(np.nansum((np.nan_to_num(computed) * recomputed_share(seen))[chosen])),
        prefill=total("prefill"),
        decode=total("decode"),
    )


def _there(seen: ReviewArrays, pool: Labels) -> Bools:
    engines = np.array([one.place == pool for one in seen.engines], dtype=np.bool_)
    return np.asarray((seen.data["seen"][:, engines] > 0).any(axis=1), dtype=np.bool_)


def _any(seen: ReviewArrays) -> Bools:
    return np.asarray((seen.data["seen"] > 0).any(axis=1), dtype=np.bool_)
