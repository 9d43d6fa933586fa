"""SGLang's own tracing: its stages in one record, measured."""

from __future__ import annotations

import aiohttp

from ..traffic import Prompts, Tenant
from . import checks
from .checks import Check
from .clients import Order, Seen, one_at_a_time
from .rig import Rig, Stand

STAND = Stand("sglang")

WARM_UP, REQUESTS = 3, 24
TENANT = Tenant("stages", prefix=256, question=32, answer=16)
STAGES = {"queue": "measured", "prefill": "measured", "decode": "measured"}


async def play(rig: Rig) -> tuple[list[Seen], list[Check]]:
    """Quiet requests through the tap, one at a time."""
    prompts = Prompts(TENANT, "stages")
    orders = [Order(prompts.ask(prompts.session()).prompt, TENANT.answer) for _ in range(WARM_UP + REQUESTS)]
    async with aiohttp.ClientSession() as session:
        first = await one_at_a_time(session, rig.door, orders[:WARM_UP], "warming up")
        seen = await one_at_a_time(session, rig.door, orders[WARM_UP:], "tap")
    records = await rig.records([one.id for one in (*first, *seen)])
    some = checks.pairs(seen, records)
    spoken = sum(1 for p in some if "sglang" in p.record["observers"])
    return [*first, *seen], [
        checks.all_there("stages", seen, records),
        Check("stages: spans", spoken == len(some) > 0, f"SGLang's spans are in {spoken} of {len(some)}"),
        checks.phase_sources("stages", some, STAGES),
        checks.adds_up("stages", some),
        checks.unattributed("stages", some),
        checks.quiet("stages", some, "ttft"),
        checks.quiet("stages", some, "e2e"),
        checks.cached_as_usage("stages", some),
    ]
