"""Who was at work at an engine while others waited there or decoded.

    work = Work(columns)                     # all that is known
    behind = work.in_front(places)           # whose requests were running while these were queued
    shares = work.beside()                   # of each one's decode time, in which some prefill ran there

Only times of one engine's clock are compared: starts of phases as that engine told them. A request of which no phase's
start is known can not be placed; it is counted and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from kvitals.agent.requests.columns import NOBODY, ROLES, Bools, Floats, Numbers, RequestColumns
from kvitals.agent.requests.observation import PHASES

MAX_WAITING = 200
"""Waiting requests that are looked at, the worst ones."""

MOST = 0.9
"""Share of the occupied time of which tokens must be known to count in tokens."""

TOP = 10
OTHER = "other"
UNKNOWN = "unknown"

NOTHING = 1e-6
"""Seconds. What overlaps for less is rounding: clocks have no better numbers."""

Measure = Literal["token_seconds", "request_seconds"]


class Occupant(msgspec.Struct, frozen=True):
    """A tenant whose requests were running."""

    tenant: str  # "unknown" where no tenant is told, "other" for those beyond the first ones
    amount: float  # in the measure's unit
    share: float


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """What stood in front of waiting requests."""

    measure: Measure  # token_seconds: tokens of prompt and output times seconds, as KV is held
    occupants: tuple[Occupant, ...]  # the largest first; their shares add up to 1
    own: float | None  # share of the waiting tenant's own requests; None where no waiting one's tenant is known
    waiting: int  # requests that were looked at
    unplaced: int  # requests of which nobody knows when they ran


class _Intervals(NamedTuple):
    """A stretch of time of each request; NaN where it is not known."""

    starts: Floats
    ends: Floats

    @property
    def known(self) -> Bools:
        return ~np.isnan(self.starts)

    def at(self, places: Numbers | Bools) -> _Intervals:
        return _Intervals(self.starts[places], self.ends[places])


class _Engine(NamedTuple):
    """What ran at one engine."""

    ran: _Intervals
    tenants: Numbers
    tokens: Floats  # NaN where they are not told


class RunningWork:
    """What ran where and when, of some requests."""

    def __init__(self, around: RequestColumns) -> None:
        self._around = around
        both = (around.engine("prefill") != NOBODY) & (around.engine("decode") != NOBODY)
        self._ran = _at_work(around, both)
        self._engines = _first(around, ROLES)
        self._queued = _placed(around, ("queue",))
        # Of a pair it is the prefill side's queue, unless the decode side's is in it and can not be told apart.
        self._queued.starts[(both & around.hides_transfer(np.arange(len(around)))) | (self._engines == NOBODY)] = np.nan
        self._by_engine: dict[int, _Engine] = {}

    def in_front(self, waiting: Numbers) -> Behind | str:
        """Whose requests were running at the same engine while these were queued there, or why that is unknown.

        `waiting` are places, the worst first.
        """
        waiting = waiting[:MAX_WAITING]
        waiting = waiting[self._queued.known[waiting]]
        if not waiting.size:
            return "it is unknown when they were queued, and at which engine"
        tally = _Tally(len(self._around.tenants))
        engines, tenants = self._engines[waiting], self._around.tenant[waiting]
        unplaced = 0
        for engine in np.unique(engines):
            here = engines == engine
            ran = self._at(int(engine))
            unplaced += self._unplaced(int(engine))
            tally.add(self._queued.at(waiting[here]), self._somebody(tenants[here]), ran)
        found = tally.result([name or UNKNOWN for name in self._around.tenants])
        if found is None:
            return "no request is known to have run in that time; requests that still run are not known yet"
        measure, occupants, own = found
        return Behind(measure=measure, occupants=occupants, own=own, waiting=len(waiting), unplaced=unplaced)

    def beside(self) -> Floats:
        """For each request the share of its decode time in which some other's prefill ran at the same engine; NaN:
        unknown. Its own prefill is over when it decodes."""
        around = self._around
        decoded, where = _placed(around, ("decode",)), _first(around, ("unified", "decode"))
        prefills, ran_at = _placed(around, ("prefill",)), _first(around, ("unified", "prefill"))
        found = np.full(len(around), np.nan)
        asked = ~np.isnan(around.of("itl_max")) & (decoded.ends > decoded.starts)
        for engine in np.unique(where[asked & (where != NOBODY)]):
            here = np.flatnonzero(asked & (where == engine))
            covered = _Covered(_union(prefills.at(prefills.known & (ran_at == engine))))
            of = decoded.at(here)
            found[here] = covered.within(of) / (of.ends - of.starts)
        return found

    def _at(self, engine: int) -> _Engine:
        """What ran at an engine; of a pair each side has its own."""
        found = self._by_engine.get(engine)
        if found is None:
            around, ran = self._around, self._ran
            places = [np.flatnonzero((around.engine(role) == engine) & ran[role].known) for role in ROLES]
            starts, ends = (
                np.concatenate([getattr(ran[role].at(at), name) for role, at in zip(ROLES, places, strict=True)])
                for name in ("starts", "ends")
            )
            rows = np.concatenate(places)
            tokens = around.of("prompt_tokens")[rows] + around.of("output_tokens")[rows]
            found = self._by_engine[engine] = _Engine(_Intervals(starts, ends), around.tenant[rows], tokens)
        return found

    def _unplaced(self, engine: int) -> int:
        """How many requests of an engine ran nobody knows when."""
        placed = np.zeros(len(self._around), np.bool_)
        for role in ROLES:
            placed |= self._ran[role].known
        here = (self._around.names[:, 1:] == engine).any(axis=1)
        return int((here & ~placed).sum())

    def _somebody(self, tenants: Numbers) -> Numbers:
        """The tenants that are known; NOBODY for the others."""
        named = np.array([bool(name) for name in self._around.tenants], np.bool_)
        return np.where(named[tenants], tenants, NOBODY)


class _Covered:
    """How much of some intervals, which may overlap, lies before a time: each counts."""

    def __init__(self, some: _Intervals) -> None:
        count = len(some.starts)
        at = np.concatenate((some.starts, some.ends))
        order = np.argsort(at, kind="stable")
        going_on = np.cumsum(np.where(order < count, 1.0, -1.0))
        self._at = at[order]
        self._seconds = np.concatenate(([0.0], np.cumsum(going_on[:-1] * np.diff(self._at)))) if count else self._at

    def within(self, of: _Intervals) -> Floats:
        """Seconds of the intervals that lie within each of others."""
        if not self._at.size:
            return np.zeros(len(of.starts))
        seconds = np.interp(of.ends, self._at, self._seconds) - np.interp(of.starts, self._at, self._seconds)
        return np.where(seconds > NOTHING, seconds, 0.0)


class _Tally:
    """Adds up occupied time by tenant, in requests and in tokens."""

    def __init__(self, tenants: int) -> None:
        self._requests = np.zeros(tenants)
        self._tokens = np.zeros(tenants)
        self._told = 0.0  # seconds of requests whose tokens are known
        self._own = [0.0, 0.0]  # of the tenant that waits: request-seconds, token-seconds
        self._while_known = [0.0, 0.0]  # of all, while one with a known tenant waits

    def add(self, queued: _Intervals, tenants: Numbers, engine: _Engine) -> None:
        """Add what ran at an engine while some were queued there, each one's tenant beside it."""
        seconds = _Covered(queued).within(engine.ran)
        is_told = ~np.isnan(engine.tokens)
        tokens = np.where(is_told, engine.tokens, 0.0)
        self._told += float(seconds[is_told].sum())
        self._requests += np.bincount(engine.tenants, seconds, len(self._requests))
        self._tokens += np.bincount(engine.tenants, seconds * tokens, len(self._tokens))
        known = tenants != NOBODY
        _add(self._while_known, _Covered(queued.at(known)).within(engine.ran), tokens)
        for tenant in np.unique(tenants[known]):
            mine = np.flatnonzero(engine.tenants == tenant)
            _add(self._own, _Covered(queued.at(tenants == tenant)).within(engine.ran.at(mine)), tokens[mine])

    def result(self, names: Sequence[str]) -> tuple[Measure, tuple[Occupant, ...], float | None] | None:
        """The measure, who occupied, and the share of the one who waits; None where nobody did."""
        seconds = float(self._requests.sum())
        if seconds <= 0.0:
            return None
        in_tokens = self._told >= MOST * seconds and bool(self._tokens.any())
        amounts = self._tokens if in_tokens else self._requests
        there = [(float(amounts[number]), names[int(number)]) for number in np.flatnonzero(amounts)]
        ranked = sorted(there, key=lambda one: (-one[0], one[1]))
        rest = sum(amount for amount, _ in ranked[TOP:])
        if rest:
            ranked = [*ranked[:TOP], (rest, OTHER)]
        total = sum(amount for amount, _ in ranked)
        whole = self._while_known[in_tokens]
        occupants = tuple(Occupant(name, amount, amount / total) for amount, name in ranked)
        own = self._own[in_tokens] / whole if whole else None
        return "token_seconds" if in_tokens else "request_seconds", occupants, own


def _add(to: list[float], seconds: Floats, tokens: Floats) -> None:
    to[0] += float(seconds.sum())
    to[1] += float((seconds * tokens).sum())


def _at_work(around: RequestColumns, both: Bools) -> dict[str, _Intervals]:
    """When requests ran on their engine in each role: from the start of its prefill to the end, of a pair on each
    engine its own share."""
    after, alone = _placed(around, ("transfer", "decode")), _placed(around, ("transfer", "prefill", "decode"))
    decode = _Intervals(np.where(both, after.starts, alone.starts), np.where(both, after.ends, alone.ends))
    found = {
        "unified": _placed(around, ("prefill", "decode")),
        "prefill": _placed(around, ("prefill",)),
        "decode": decode,
    }
    for role, ran in found.items():
        ran.starts[around.engine(role) == NOBODY] = np.nan
    return found


def _first(around: RequestColumns, roles: Sequence[str]) -> Numbers:
    """The engine of the first of some roles that a request has one in."""
    found = np.full(len(around), NOBODY)
    for role in reversed(roles):
        engine = around.engine(role)
        found = np.where(engine != NOBODY, engine, found)
    return found


def _placed(around: RequestColumns, names: Sequence[str]) -> _Intervals:
    """From the start of the first of these phases to the end of the last, by an engine's clock."""
    start, end = np.full((2, len(around)), np.nan)
    before = np.zeros(len(around))  # seconds of phases whose start is not told, before the first that is
    for name in names:
        i = PHASES.index(name)
        seconds, at = around.seconds[:, i], around.starts[:, i]
        told, placed = ~np.isnan(seconds), ~np.isnan(at)
        here = told & placed
        start = np.where(here & np.isnan(start), at - before, start)
        last = np.where(here, np.fmax(end, at), end)
        before = np.where(told & ~placed & np.isnan(end), before + seconds, before)
        end = np.where(told, last + seconds, end)
    return _Intervals(start, end)


def _union(some: _Intervals) -> _Intervals:
    """Intervals as stretches that do not touch."""
    order = np.argsort(some.starts, kind="stable")
    starts, until = some.starts[order], np.maximum.accumulate(some.ends[order])
    if not starts.size:
        return some
    begins = np.concatenate(([True], starts[1:] > until[:-1]))
    ends = np.concatenate((until[:-1][begins[1:]], until[-1:]))
    return _Intervals(starts[begins], ends)
