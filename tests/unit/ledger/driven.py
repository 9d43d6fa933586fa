"""Conversations on the pool of `tests/unit/ledger/pool.py`, with its events and requests' records given to a ledger."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from tests.unit.ledger.pool import Pool, Request, events, record

STITCH_SECONDS = 8.0
"""How long after a request's end its record comes."""


@dataclass
class Traffic:
    """What is asked."""

    seed: int = 1
    sessions: int = 60
    turns: int = 6
    rate: float = 1.0  # sessions a second
    think: tuple[float, float] = (0.2, 6.0)
    output: tuple[int, int] = (1, 60)  # tokens, less than the second
    message: tuple[int, int] = (4, 200)
    tenants: int = 4
    told: bool = False  # events tell tenant and session
    report: float = 0.0  # the part of requests that have reused prefixes reported


@dataclass
class Driven:
    """A pool and a ledger after the traffic."""

    pool: Pool
    ledger: EngineLedger
    looks: list[SettledLookup]
    requests: list[Request]

    def joined(self) -> float:
        """The part of requests whose look-up is known for theirs, with its hits and its blocks."""
        by = {look.request: look for look in self.looks if look.request}
        right = 0
        for request in self.requests:
            look = by.get(request.id)
            right += look is not None and (look.hits, look.blocks) == (
                request.hits,
                len(request.prompt) // self.pool.size,
            )
        return right / len(self.requests)

    def inferred(self) -> float:
        """The part of requests that missed whole blocks of which there is a look-up at their time with their hits."""
        there = Counter((round(look.at, 3), look.hits) for look in self.looks)
        asked = Counter((round(one.stored_at, 3), one.hits) for one in self.requests if one.stored_at is not None)
        return (there & asked).total() / asked.total()

    def surplus(self) -> float:
        """Look-ups that were none, over requests."""
        return (len(self.looks) - len(self.requests)) / len(self.requests)


@dataclass
class _Session:
    tenant: str
    name: str
    context: list[int]
    turns: int
    chance: random.Random
    open: list[Request] = field(default_factory=list)


def drive(traffic: Traffic, blocks: int, *, records: bool, sessions: bool = True, size: int = 16) -> Driven:
    """Run it all. records: of requests are given; sessions: and tell their session."""
    chance = random.Random(traffic.seed)
    pool = Pool(blocks, size=size, budget=256)
    looks: list[SettledLookup] = []
    ledger = EngineLedger(Room(), Owners(), Style.BLOCKS, looks.append)
    ledger.set_pool(blocks)
    due, plans = _plans(traffic, chance, pool.now)
    done: list[Request] = []
    running: dict[Request, _Session] = {}
    told: list[tuple[float, Request]] = []
    last = pool.now
    while due or not pool.idle:
        if pool.idle:
            pool.now = max(pool.now, due[0][0])
        while due and due[0][0] <= pool.now:
            session = plans[heapq.heappop(due)[1]]
            request = _ask(session, traffic, pool, len(done) + len(running), named=sessions)
            running[request] = session
        batch = pool.step()
        if batch is not None:
            ledger.feed(events([batch], pool.now))
        for request in [one for one in running if one.ends is not None]:
            session = running.pop(request)
            done.append(request)
            session.context, session.turns = request.tokens, session.turns - 1
            told.append((pool.now + STITCH_SECONDS, request))
            if session.turns:
                heapq.heappush(due, (pool.now + session.chance.uniform(*traffic.think), plans.index(session)))
        while records and told and told[0][0] <= pool.now:
            ledger.request(record(told.pop(0)[1], size))
        if pool.now >= last + 1:
            ledger.advance(pool.now, records)
            last = pool.now
    for _, request in told:
        if records:
            ledger.request(record(request, size))
    ledger.advance(pool.now + 10.0, records)
    ledger.flush()
    return Driven(pool, ledger, looks, done)


def _plans(traffic: Traffic, chance: random.Random, now: float) -> tuple[list[tuple[float, int]], list[_Session]]:
    prompts = [[chance.randrange(50_000) for _ in range(chance.randrange(20, 400))] for _ in range(traffic.tenants)]
    due, plans = [], []
    for i in range(traffic.sessions):
        now += chance.expovariate(traffic.rate)
        tenant = chance.randrange(traffic.tenants)
        name = f"told{i}" if traffic.told else f"s{i}"
        own = random.Random(traffic.seed * 1000 + i)
        plans.append(_Session(f"t{tenant}", name, list(prompts[tenant]), chance.randrange(1, traffic.turns + 1), own))
        due.append((now, i))
    return due, plans


def _ask(session: _Session, traffic: Traffic, pool: Pool, number: int, *, named: bool) -> Request:
    chance = session.chance
    prompt = [*session.context, *(chance.randrange(50_000) for _ in range(chance.randrange(*traffic.message)))]
    request = Request(
        f"r{number}",
        prompt,
        chance.randrange(*traffic.output),
        pool.now,
        tenant=session.tenant,
        session=session.name if named else "",
        report=chance.random() < traffic.report,
        seed=number,
    )
    pool.ask(request)
    return request
