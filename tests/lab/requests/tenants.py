"""Three light tenants and a heavy one on an engine with few slots; some clients hang up. The ledger is theirs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.slow_tail import Recent

from ..traffic import Prompts, Tenant
from . import checks
from .checks import Check, Told
from .clients import Order, Seen, ask
from .rig import Rig, Stand

HEAVY = Tenant("northwind-batch", clients=10, prefix=192, question=48, answer=96)
LIGHT = (
    Tenant("acme-chat", clients=1, think_s=0.25, prefix=256, question=32, answer=16),
    Tenant("globex-search", clients=1, think_s=0.25, prefix=192, question=24, answer=16),
    Tenant("initech-notes", clients=1, think_s=0.25, prefix=128, question=40, answer=16),
)
STAND = Stand("vllm", flags={"max_num_seqs": 4}, classes={"light": [one.name for one in LIGHT], "batch": [HEAVY.name]})
ALONE_S, TOGETHER_S = 16.0, 12.0
HANG_UPS = {HEAVY.name: 0.2, "globex-search": 0.25, "initech-notes": 0.25}
"""Share of a tenant's clients that leave: behind some pieces of output, or in `EARLY` of them before the first."""
EARLY = 0.3
FAMILIES = {
    "requests": "sum by (tenant) (kvitals_tenant_requests_total)",
    "aborted": 'sum by (tenant) (kvitals_tenant_requests_total{outcome="aborted"})',
    "prompt tokens": "sum by (tenant) (kvitals_tenant_prompt_tokens_total)",
    "cached tokens": "sum by (tenant) (kvitals_tenant_cached_tokens_total)",
    "first tokens": "sum by (tenant) (kvitals_tenant_ttft_seconds_count)",
}


@dataclass
class _Doors:
    """Open until it is time to stop."""

    open: bool = True


async def play(rig: Rig) -> tuple[list[Seen], list[Check]]:
    """The light ones alone for a while, then all together."""
    ledger: list[Seen] = []
    doors = _Doors()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = _clients(session, rig.door, LIGHT, doors, ledger)
        await asyncio.sleep(ALONE_S)
        clients += _clients(session, rig.door, (HEAVY,), doors, ledger)
        await asyncio.sleep(TOGETHER_S)
        doors.open = False
        await asyncio.gather(*clients)
    records = await rig.records([one.id for one in ledger])
    found = [checks.all_there("tenants", ledger, records)]
    told, listed = checks.tenants(ledger, records)
    found += told
    words = "; ".join(f"{one['tenant']}: {one['story']}" for one in listed)
    found.append(Check("left within 50 ms of the first or last byte", True, words or "none", {"listed": listed}))
    found.append(_names(ledger, records))
    found.append(await _families(rig, records.values()))
    found.append(_tail(records))
    return ledger, found


def _clients(
    session: aiohttp.ClientSession, url: str, tenants: Iterable[Tenant], doors: _Doors, ledger: list[Seen]
) -> list[asyncio.Task[None]]:
    return [
        asyncio.create_task(_client(session, url, tenant, number, doors, ledger))
        for tenant in tenants
        for number in range(tenant.clients)
    ]


async def _client(
    session: aiohttp.ClientSession, url: str, tenant: Tenant, number: int, doors: _Doors, ledger: list[Seen]
) -> None:
    prompts = Prompts(tenant, f"tenants/{number}")
    draw = random.Random(f"tenants/{tenant.name}/{number}")
    while doors.open:
        if tenant.think_s:
            await asyncio.sleep(draw.expovariate(1 / tenant.think_s))
        prompt = prompts.ask(prompts.session()).prompt
        after: int | None = None
        within: float | None = None
        if draw.random() < HANG_UPS.get(tenant.name, 0.0):
            if draw.random() < EARLY:
                within = draw.uniform(0.005, 0.3)
            else:
                after = draw.randint(1, max(tenant.answer // 3, 1))
        ledger.append(await ask(session, url, Order(prompt, tenant.answer, tenant.name, after, within), "tap"))


def _names(ledger: Sequence[Seen], records: Mapping[str, Told]) -> Check:
    """Every pseudonym resolves, here on loopback, to the name that the client sent; and is no name itself."""
    off = [one.id for one in ledger if one.id in records and records[one.id].get("tenant_name") != one.tenant]
    bare = [name for name in {one["tenant"] for one in records.values()} if not name.startswith("t-")]
    who = {one["tenant"]: one.get("tenant_name", "?") for one in records.values()}
    words = ", ".join(f"{pseudonym} {name}" for pseudonym, name in sorted(who.items(), key=lambda each: each[1]))
    return Check("names", bool(records) and not off and not bare, words, {"names": who})


async def _families(rig: Rig, records: Iterable[Told]) -> Check:
    """The families count what the records say."""
    wanted: dict[str, dict[str, float]] = {name: {} for name in FAMILIES}
    for one in records:
        for name, amount in (
            ("requests", 1),
            ("aborted", int(one["outcome"] == "aborted")),
            ("prompt tokens", one.get("prompt_tokens") or 0),
            ("cached tokens", one.get("cached_tokens") or 0),
            ("first tokens", int(one.get("ttft") is not None)),
        ):
            wanted[name][one["tenant"]] = wanted[name].get(one["tenant"], 0.0) + amount
    found = {
        name: {labels["tenant"]: value for labels, value in await rig.query(promql) if value}
        for name, promql in FAMILIES.items()
    }
    off = [
        f"{name}: {found[name]} and not {said}"
        for name, said in wanted.items()
        if found[name] != {tenant: amount for tenant, amount in said.items() if amount}
    ]
    return Check("families", not off, "; ".join(off) or "requests, hang-ups, tokens and first tokens of each tenant")


def _tail(records: Mapping[str, Told]) -> Check:
    """What explains the slow first tokens is the queue, behind the heavy tenant."""
    known = [msgspec.convert({k: v for k, v in one.items() if k in _FIELDS}, RequestRecord) for one in records.values()]
    report = Recent(known, min(r.end for r in known), max(r.end for r in known)).explain("ttft")
    named = {one["tenant"]: one.get("tenant_name") for one in records.values()}
    first = report.behind.occupants[0].tenant if report.behind is not None else ""
    ok = report.dominant is not None and report.dominant.name == "queue" and named.get(first) == HEAVY.name
    return Check(
        "tail", ok, report.sentence.replace(first, f"{first} ({named.get(first)})") if first else report.sentence
    )


_FIELDS = frozenset(RequestRecord.__struct_fields__)
