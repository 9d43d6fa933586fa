"""Prefill and decode over NIXL: one record of both sides, with the transfer between them."""

from __future__ import annotations

from collections import Counter

import aiohttp

from ..traffic import Prompts, Tenant
from . import checks
from .checks import Check, Pair
from .clients import Order, Seen, one_at_a_time
from .rig import Rig, Stand

STAND = Stand("pd")
ROUTED = Stand("pd", door="router")

WARM_UP, REQUESTS = 3, 24
TENANT = Tenant("pair", question=520, answer=16)
"""Nothing is shared, so that neither engine has anything of a prompt by itself."""
ROLES = {"prefill": "prefill", "decode": "decode"}
BOTH_SIDES = {"prefill": "measured", "transfer": "derived", "decode": "measured"}
EXTERNAL = "kvitals_external_prefix_hit_tokens_total"


async def play(rig: Rig) -> tuple[list[Seen], list[Check]]:
    """Quiet requests, one at a time."""
    prompts = Prompts(TENANT, "pair")
    orders = [Order(prompts.ask(prompts.session()).prompt, TENANT.answer) for _ in range(WARM_UP + REQUESTS)]
    async with aiohttp.ClientSession() as session:
        first = await one_at_a_time(session, rig.door, orders[:WARM_UP], "warming up")
        seen = await one_at_a_time(session, rig.door, orders[WARM_UP:], "tap")
    records = await rig.records([one.id for one in (*first, *seen)])
    some = checks.pairs(seen, records)
    found = [
        checks.all_there("pair", seen, records),
        _both_roles(some),
        _one_trace(some),
        checks.phase_sources("pair", some, BOTH_SIDES),
        checks.adds_up("pair", some),
        checks.quiet("pair", some, "ttft"),
        checks.quiet("pair", some, "e2e"),
        _cached(some),
        await _external(rig, checks.pairs([*first, *seen], records)),
    ]
    return [*first, *seen], found


def _both_roles(some: list[Pair]) -> Check:
    told = Counter(str(p.record["engines"]) for p in some)
    ok = bool(some) and all(p.record["engines"] == ROLES for p in some)
    return Check("pair: roles", ok, "; ".join(f"{engines} {count}" for engines, count in told.items()))


def _one_trace(some: list[Pair]) -> Check:
    """Tap and both engines spoke of it under one trace id."""
    whole = [p for p in some if p.record.get("complete") and len(p.record.get("spans", [])) == 3]
    return Check("pair: trace", len(whole) == len(some) > 0, f"three spans in one trace: {len(whole)} of {len(some)}")


def _cached(some: list[Pair]) -> Check:
    """vLLM's usage says that nothing was cached, although all of the prompt came from the other engine."""
    zero = sum(1 for p in some if p.seen.cached_tokens == 0 and p.record.get("cached_tokens") == 0)
    external = Counter(p.record.get("external_tokens") for p in some)
    words = ", ".join(f"{value} in {count}" for value, count in external.items())
    return Check("pair: usage", zero == len(some) > 0, f"0 cached in {zero} of {len(some)}; external tokens {words}")


async def _external(rig: Rig, some: list[Pair]) -> Check:
    """The decode engine's counter has the prompts' tokens that came from the prefill engine."""
    sent = sum(p.seen.prompt for p in some)
    found = {labels.get("engine", ""): value for labels, value in await rig.query(EXTERNAL)}
    said = found.get("decode")
    return Check("pair: external", said == sent, f"decode's counter says {said}, the prompts have {sent}")
