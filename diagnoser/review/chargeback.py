"""Who is charged for what: all of the GPU-hours, shared out by the work that each tenant caused, to the cent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvitals.diagnoser.review.result import Chargeback, TenantRow
from kvitals.diagnoser.review.work import Week, work

UNNAMED = "(no tenant named)"
OUTPUT_WEIGHT = 2.0
"""Of an output token against a prompt token, where engines tell no phases: that of the VTC scheduler (OSDI 2024)."""
OWN_SHARE = 0.02
"""What engines count beyond what the requests' records do, below which it is edges and not requests nobody saw."""


@dataclass(frozen=True)
class _Done:
    """cached: of the prompt tokens; None where no record of the tenant has it."""

    tenant: str
    requests: float
    prompt: float
    cached: float | None
    output: float


_NO_TENANTS = "no requests with tenants: the tap, spans or request logs report tenants, engines do not"
_NO_TOKENS = (
    "the tenants' requests have no token counts: clients of the tap have to set stream_options.include_usage, or spans "
    "or request logs report them"
)


def chargeback(week: Week, gpu_hours: float, usd: float | None) -> Chargeback:
    """Tenants' shares of the whole bill, idle time and waste included."""
    tenants = week.seen.tenants
    if not any(of.get("prompt", 0) + of.get("output", 0) > 0 for of in tenants.values()):
        return Chargeback(
            rows=[], total_cents=None, gpu_hours=gpu_hours, method="",
            missing=_NO_TOKENS if any(of.get("requests", 0) > 0 for of in tenants.values()) else _NO_TENANTS,
        )  # fmt: skip
    prefill, decode, how = _weights(week)
    done = [_done(name, of) for name, of in tenants.items()]
    rest = _rest(week, done)
    done = [one for one in done if one.prompt + one.output > 0] + ([rest] if rest else [])
    unknown = _unknown_share(week, tenants.values())
    weights = [prefill * _computed(one, unknown) + decode * one.output for one in done]
    all_ = sum(weights) or 1.0
    shares = [one / all_ for one in weights]
    total_cents = round(usd * 100) if usd is not None else None
    cents = apportion(total_cents, shares) if total_cents is not None else [None] * len(done)
    rows = [
        TenantRow(
            tenant=one.tenant,
            requests=one.requests,
            prompt_tokens=one.prompt,
            cached_tokens=one.cached,
            output_tokens=one.output,
            share=share,
            gpu_hours=gpu_hours * share,
            usd_cents=cent,
            tokens_per_gpu_hour=one.output / (gpu_hours * share) if gpu_hours * share > 0 else 0.0,
        )
        for one, share, cent in zip(done, shares, cents, strict=True)
    ]
    rows.sort(key=lambda row: (-row.share, row.tenant))
    return Chargeback(rows=rows, total_cents=total_cents, gpu_hours=gpu_hours, method=how, missing="")


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """A whole number shared out by shares that add up to 1, by largest remainders: the parts add up to it exactly."""
    exact = [total * share for share in shares]
    parts = [math.floor(one) for one in exact]
    order = sorted(range(len(exact)), key=lambda i: (parts[i] - exact[i], i))
    for place in order[: total - sum(parts)]:
        parts[place] += 1
    return parts


def _done(name: str, of: Mapping[str, float]) -> _Done:
    """Where a record has no cached tokens, the same share of its prompt counts as cached as of the others."""
    prompt, cached = of.get("prompt", 0.0), of.get("cached")
    told = of.get("told", prompt)
    if cached is not None:
        cached = min(cached * prompt / told, prompt) if told > 0 else None
    return _Done(name or UNNAMED, of.get("requests", 0.0), prompt, cached, of.get("output", 0.0))


def _computed(one: _Done, unknown: float) -> float:
    """Prompt tokens that were not cached. unknown: which share is cached of those where no record has it."""
    return max(one.prompt - (one.cached if one.cached is not None else one.prompt * unknown), 0.0)


def _unknown_share(week: Week, tenants: Iterable[Mapping[str, float]]) -> float:
    """Of the prompt tokens of which no record has it, which share the engines' caches had."""
    several = list(tenants)
    known = sum(of.get("told", of.get("prompt", 0.0)) for of in several if "cached" in of)
    hit = week.seen.total("hit") - sum(of.get("cached", 0.0) for of in several)
    rest = week.seen.total("prompt") - known
    return min(max(hit, 0.0) / rest, 1.0) if rest > 0 else 0.0


_REST = (
    " Idle time and waste are divided in the same proportion. Cents are rounded by largest remainders, so that "
    "they add up to the total."
)


def _weights(week: Week) -> tuple[float, float, str]:
    """What a computed prompt token and an output token weigh, and how that is known."""
    seen, parts = week.seen, week.ledger.parts
    in_prefill, in_decode = (float(parts[a].sum() + parts[b].sum()) for a, b in
                             (("prefill", "reprefill"), ("decode", "drafts")))  # fmt: skip
    computed, output = seen.total("looked_up") - seen.total("hit"), seen.total("output")
    if min(in_prefill, in_decode, computed, output) > 0:
        ratio = in_decode / output / (in_prefill / computed)
        return in_prefill / computed, in_decode / output, (
            f"Divided by GPU time of this week: an output token took {ratio:.3g} times as much as an uncached "
            f"prompt token.{_REST}"
        )  # fmt: skip
    return 1.0, OUTPUT_WEIGHT, (
        f"Divided by tokens: an uncached prompt token counts 1, an output token {OUTPUT_WEIGHT:g} (engines do "
        f"not report how long prefill and decode take).{_REST}"
    )  # fmt: skip


def _rest(week: Week, done: Sequence[_Done]) -> _Done | None:
    """What engines did and no record of a request accounts for."""
    seen = week.seen
    prompt = seen.total("prompt") - sum(one.prompt for one in done)
    output = seen.total("output") - sum(one.output for one in done)
    if max(prompt, 0.0) + max(output, 0.0) < OWN_SHARE * (seen.total("prompt") + seen.total("output")):
        return None
    prompt, requests = max(prompt, 0.0), work(week).requests - sum(one.requests for one in done)
    cached = None
    if seen.known("hit") and all(one.cached is not None for one in done):
        cached = min(max(seen.total("hit") - sum(one.cached or 0.0 for one in done), 0.0), prompt)
    return _Done("(seen by engines only)", max(requests, 0.0), prompt, cached, max(output, 0.0))
