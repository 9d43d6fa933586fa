"""One engine: records beside the client's own clock, through the tap and from the engine's spans alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import aiohttp

from ..traffic import Prompts, Tenant
from . import checks
from .checks import Check
from .clients import Order, Seen, one_at_a_time
from .rig import Rig, Stand, load_average

STAND = Stand("vllm", flags={"max_num_seqs": 16})

QUIET = 50
LOADED = 80
AT_ONCE = 8
ONE = Tenant("one", prefix=320, question=32, answer=24)
MANY = Tenant("many", prefix=64, question=640, answer=24)
"""New prompts, long enough that they wait for each other, and short answers."""
CHATS = Tenant("chats", prefix=320, question=32, answer=128)
"""A known prompt and something new, and answers as long as people read."""
WARM_UP = 4
ONE_ENGINE = {"queue": "measured", "prefill": "measured", "decode": "measured"}


async def play(rig: Rig) -> tuple[list[Seen], list[Check]]:
    """Fifty quiet requests each way, one at a time; then eight clients at once each way, with chats and with new long
    prompts."""
    kinds = {tenant.name: Prompts(tenant, "agreement") for tenant in (ONE, MANY, CHATS)}

    def orders(tenant: Tenant, count: int) -> list[Order]:
        prompts = kinds[tenant.name]
        return [Order(prompts.ask(prompts.session()).prompt, tenant.answer) for _ in range(count)]

    ways = {"tap": rig.door, "otlp": rig.straight}
    found: list[Check] = []
    ledger: list[Seen] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for via, url in ways.items():
            await one_at_a_time(session, url, orders(ONE, WARM_UP), f"{via}, warming up")
        before = load_average()
        runs = {
            f"{via}, quiet": await one_at_a_time(session, url, orders(ONE, QUIET), via) for via, url in ways.items()
        }
        for tenant in (MANY, CHATS):
            for via, url in ways.items():
                name = f"{via}, {AT_ONCE} at once, {tenant.name}"
                runs[name] = await _at_once(session, url, orders(tenant, LOADED), via)
    ledger = [one for seen in runs.values() for one in seen]
    records = await rig.records([one.id for one in ledger])
    found.append(Check("load average", True, f"{before} before, {load_average()} after"))
    for name, seen in runs.items():
        some = checks.pairs(seen, records)
        found.append(checks.all_there(name, seen, records))
        if "quiet" in name:
            found += [checks.quiet(name, some, "ttft"), checks.quiet(name, some, "e2e")]
            found.append(checks.unattributed(name, some))
        else:
            found += [checks.loaded(name, some), checks.quantiles(name, some)]
            # Of new long prompts it is told and not demanded: docs/requests.md says what it is.
            found.append(checks.unattributed(name, some, limit=1.0 if MANY.name in name else checks.UNATTRIBUTED_LIMIT))
        found.append(checks.adds_up(name, some))
        found.append(checks.phase_sources(name, some, ONE_ENGINE))
        found.append(checks.cached_as_usage(name, some) if "tap" in name else checks.cached_unknown(name, some))
    return ledger, found


async def _at_once(session: aiohttp.ClientSession, url: str, orders: Sequence[Order], via: str) -> list[Seen]:
    """So many clients, each with its share of the orders one after another."""
    draw = random.Random(via)

    async def client(mine: Sequence[Order]) -> list[Seen]:
        await asyncio.sleep(draw.uniform(0, 0.2))  # clients do not start in step
        return await one_at_a_time(session, url, mine, via)

    shares = await asyncio.gather(*(client(orders[number::AT_ONCE]) for number in range(AT_ONCE)))
    return [one for share in shares for one in share]
