"""How much of what the hardware can do was used, and what the cache is worth."""

from __future__ import annotations

import numpy as np

from kvitals.diagnoser.review.gpu_time import WASTE
from kvitals.diagnoser.review.result import CacheMoney, Gpus, GpuTimePart, PaidWork, Trap
from kvitals.diagnoser.review.work import Week

TRAPPED = 0.4
TARGET = 0.7
"""Utilisation that a fleet with a margin for bursts reaches; at TRAPPED a token costs 1.75 times as much."""
JOULES_PER_KWH = 3.6e6
NAMES = {
    "decode": "decode",
    "prefill": "prefill",
    "reprefill": "prefill done twice",
    "drafts": "rejected drafts",
    "aborted": "for clients that left",
    "unattributed": "not told",
    "idle": "idle",
}
"""Of the ledger's parts, as people call them."""
BINDS = {
    "arrival": "nothing: the engines kept up with the load",
    "kv": "KV blocks",
    "slots": "slots",
    "room": "slots or KV blocks",
    "token_budget": "the token budget of a step",
    "deferral": "requests deferred",
    "fault": "faults",
    "unknown": "not told",
}
"""What can bound an engine's progress, as people call it."""
_WHAT = {
    "idle": "nothing ran",
    "aborted": "for requests whose client disconnected before the end",
    "reprefill": "prefill of prompts whose KV the cache had held before",
    "drafts": "decode of drafted tokens that the model rejected",
    "prefill": "prefill of prompts that were computed for the first time",
    "decode": "decode",
    "unattributed": "busy, but no engine reports whether with prefill or decode",
}


def parts(week: Week) -> list[GpuTimePart]:
    """The ledger of the GPU-hours; the parts add up to all of them."""
    all_ = float(week.ledger.gpu_hours.sum())
    return [
        GpuTimePart(
            part=name,
            what=_WHAT[name],
            gpu_hours=(hours := float(of.sum())),
            share=hours / all_ if all_ > 0 else 0.0,
            usd=week.prices.cost(of),
            waste=name in WASTE,
            unknown=week.ledger.unknown.get(name, ""),
        )
        for name, of in week.ledger.parts.items()
    ]


def trap(week: Week, total: PaidWork) -> Trap:
    """Output tokens over those usable at C_max, where that was measured, else the part of the time in which it ran."""
    seen = week.seen
    usable, output = seen.data["usable"], seen.data["output"]
    there = np.isfinite(usable) & np.isfinite(output) & (usable > 0)
    could = float((usable * seen.data["seen"])[there].sum())
    measured = could > 0 and float(week.ledger.gpu_hours[there].sum()) > 0.5 * total.gpu_hours
    used = float(output[there].sum()) / could if measured else total.busy_share
    of = "the tokens that these engines can generate within the objective (C_max)" if measured else "the time"
    busy = seen.gpu_busy[np.isfinite(seen.gpu_busy)]
    per_million = total.usd_per_million_output
    return Trap(
        used=used,
        of=of if used is not None else "",
        busy_share=total.busy_share,
        gpu_utilization=float(busy.mean()) if len(busy) else None,
        trapped=used < TRAPPED if used is not None else None,
        binding=dict(week.seen.binding),
        usd_at_target=per_million * used / TARGET if per_million is not None and used is not None else None,
        method=(
            f"At {TARGET:.0%} used, the same price buys {TARGET:.0%} / used times the tokens. NVML's "
            f"utilization is 100 % with a single request, so it is not used here."
            + ("" if measured else " The time with any running request is an upper bound of the used time.")
        ),
    )


ROUNDING = 1e-3
"""By which a share of two counters may exceed 1, as each is read at its own moments."""


def cache_money(week: Week) -> CacheMoney:
    """What hits saved, and what those would save that an infinite cache would give this traffic."""
    seen, missing = week.seen, []
    looked_up, hit = seen.total("looked_up"), seen.total("hit")
    prefill = week.ledger.parts["prefill"] + week.ledger.parts["reprefill"]
    ratio = hit / looked_up if looked_up > 0 and hit <= looked_up * (1 + ROUNDING) else None
    if ratio is None and looked_up > 0:
        missing.append("engines report more prompt tokens found than looked up, which cannot be")
    elif ratio is None:
        missing.append("no engine reports how many prompt tokens its cache held")
    if float(prefill.sum()) <= 0:
        missing.append("no engine reports how long prefill takes, so hits have no price")
    priced = ratio if float(prefill.sum()) > 0 else None
    known = seen.lookups
    if known is None:
        missing.append("the attainable hit rate needs KV events and tenants (the block ledger)")
    saved = _saved(0.0, priced, priced)
    known_share = min(known.tokens / looked_up, 1.0) if known and looked_up > 0 else None
    known_hits, attainable = (known.found / known.tokens, known.attainable / known.tokens) if known else (None, None)
    more = _times(_saved(known_hits, attainable, known_hits), known_share if priced is not None else None)
    hours = float(prefill.sum())
    return CacheMoney(
        hit_ratio=ratio,
        saved_gpu_hours=hours * saved if saved is not None else None,
        saved_usd=_times(week.prices.cost(prefill), saved),
        known_share=known_share,
        known_hit_ratio=known_hits,
        attainable=attainable,
        attainable_gpu_hours=hours * more if more is not None else None,
        attainable_usd=_times(week.prices.cost(prefill), more),
        method=(
            "GPU-hours of prefill x (h2 - h1) / (1 - h1), where h1 and h2 are the hit rates before and after; "
            "prefill's share of the GPU comes from request times, and is an underestimate."
        ),
        missing=missing,
    )


def _saved(low: float | None, high: float | None, now: float | None) -> float | None:
    """Prefill of `high - low` of the prompt tokens, as a share of the prefill that is done now."""
    if low is None or high is None or now is None or now >= 1.0:
        return None
    return max(high - low, 0.0) / (1.0 - now)


def _times(a: float | None, b: float | None) -> float | None:
    return a * b if a is not None and b is not None else None


def gpus(week: Week, assumed_each: float) -> Gpus:
    """How many there were, and what they drew."""
    energy = week.seen.energy
    kwh = energy / JOULES_PER_KWH if np.isfinite(energy) else None
    output = week.seen.total("output")
    return Gpus(
        count=float(week.ledger.gpus.sum()),
        assumed_engines=int(week.ledger.assumed.sum()),
        assumed_each=assumed_each,
        energy_kwh=kwh,
        tokens_per_kwh=output / kwh if kwh else None,
    )
