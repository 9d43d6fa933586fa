"""Who was at work at an engine while others waited there or decoded.

    work = Work(records)              # all that is known
    behind = work.in_front(waiting)   # whose requests were running while these were queued
    share = work.beside(record)       # of a request's decode time, in which another was in prefill there

Only times of one engine's clock are compared: starts of phases as that engine told them. A request of which no phase's
start is known can not be placed; it is counted and left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from agent.requests.record import RequestRecord

MAX_WAITING = 200
"""Waiting requests that are looked at, the worst ones."""

MOST = 0.9
"""Share of the occupied time of which tokens must be known to count in tokens."""

TOP = 10
OTHER = "other"
UNKNOWN = "unknown"

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]
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


class Interval(NamedTuple):
    """A stretch of time at an engine."""

    engine: str
    start: float
    end: float


class _Engine(NamedTuple):
    """Requests that ran at one engine, in an order of their own, so that sums do not depend on that of arrival."""

    starts: Floats
    ends: Floats
    tenants: Numbers
    tokens: Floats  # NaN where they are not told


class _Prefills(NamedTuple):
    """When some request was in prefill, as stretches that do not touch."""

    starts: list[float]
    ends: list[float]
    before: list[float]  # seconds in prefill before each


class Work:
    """What ran where and when, of some requests."""

    def __init__(self, records: Iterable[RequestRecord]) -> None:
        rows: dict[str, list[tuple[float, float, str, float]]] = {}
        prefills: dict[str, list[tuple[float, float]]] = {}
        self._unplaced: Counter[str] = Counter()  # engine -> requests of which nobody knows when they ran
        for record in records:
            places = at_work(record)
            if not places:
                self._unplaced.update(set(record.engines.values()))
            for place in places:
                row = (place.start, place.end, record.tenant or UNKNOWN, _tokens(record))
                rows.setdefault(place.engine, []).append(row)
            prefill = _placed(record, ("prefill",), ("unified", "prefill"))
            if prefill is not None:
                prefills.setdefault(prefill.engine, []).append((prefill.start, prefill.end))
        self._numbers: dict[str, int] = {}  # by tenant
        self._engines = {engine: self._arrays(some) for engine, some in sorted(rows.items())}
        self._prefills = {engine: _union(sorted(some)) for engine, some in prefills.items()}
        self._names = list(self._numbers)

    def in_front(self, waiting: Sequence[RequestRecord]) -> Behind | str:
        """Whose requests were running at the same engine while these were queued there, or why that is unknown.

        `waiting` has the worst first.
        """
        queued = [(one, place) for one in waiting[:MAX_WAITING] if (place := queue(one)) is not None]
        if not queued:
            return "when they were queued, and at which engine, is not known"
        tally = _Tally(len(self._names))
        for record, place in queued:
            if place.engine in self._engines:
                tally.add(self._numbers.get(record.tenant), place, self._engines[place.engine])
        found = tally.result(self._names)
        if found is None:
            return "no request is known to have run meanwhile: those that are still running are not known yet"
        measure, occupants, own = found
        unplaced = sum(self._unplaced[engine] for engine in {place.engine for _, place in queued})
        return Behind(measure=measure, occupants=occupants, own=own, waiting=len(queued), unplaced=unplaced)

    def beside(self, record: RequestRecord) -> float | None:
        """The share of a request's decode time in which some other's prefill ran at the same engine; None: unknown.

        Its own prefill is over when it decodes.
        """
        place = _placed(record, ("decode",), ("unified", "decode"))
        if place is None or place.end <= place.start:
            return None
        if place.engine not in self._prefills:
            return 0.0
        prefills = self._prefills[place.engine]
        return (_covered(place.end, prefills) - _covered(place.start, prefills)) / (place.end - place.start)

    def _arrays(self, rows: list[tuple[float, float, str, float]]) -> _Engine:
        rows.sort(key=lambda row: (row[0], row[1], row[2], str(row[3])))
        starts, ends, tenants, tokens = zip(*rows, strict=True)
        numbers = [self._numbers.setdefault(tenant, len(self._numbers)) for tenant in tenants]
        return _Engine(np.array(starts), np.array(ends), np.array(numbers, np.intp), np.array(tokens))


class _Tally:
    """Adds up occupied time by tenant, in requests and in tokens."""

    def __init__(self, tenants: int) -> None:
        self._requests = np.zeros(tenants)
        self._tokens = np.zeros(tenants)
        self._told = 0.0  # seconds of requests whose tokens are known
        self._own = [0.0, 0.0]  # of the tenant that waits: request-seconds, token-seconds
        self._while_known = [0.0, 0.0]  # of all, while one with a known tenant waits

    def add(self, tenant: int | None, place: Interval, engine: _Engine) -> None:
        """Add what ran at an engine while one of a tenant was queued there."""
        overlap = np.clip(np.minimum(engine.ends, place.end) - np.maximum(engine.starts, place.start), 0.0, None)
        here = np.flatnonzero(overlap)
        seconds, tenants, tokens = overlap[here], engine.tenants[here], engine.tokens[here]
        is_told = ~np.isnan(tokens)
        weight = np.where(is_told, seconds * tokens, 0.0)
        self._told += float(seconds[is_told].sum())
        np.add.at(self._requests, tenants, seconds)
        np.add.at(self._tokens, tenants, weight)
        if tenant is not None:
            mine = tenants == tenant
            for i, amounts in enumerate((seconds, weight)):
                self._own[i] += float(amounts[mine].sum())
                self._while_known[i] += float(amounts.sum())

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


def queue(record: RequestRecord) -> Interval | None:
    """Where and when it was queued, as far as that is known.

    Of a pair it is the prefill side's queue, unless the decode side's is in it and can not be told apart.
    """
    phases = {phase.name: phase for phase in record.phases}
    both = "prefill" in record.engines and "decode" in record.engines
    if both and "transfer" in phases and phases["transfer"].seconds is None:
        return None
    return _placed(record, ("queue",), ("unified", "prefill", "decode"))


def at_work(record: RequestRecord) -> list[Interval]:
    """Where and when it ran: from the start of its prefill to its end, of a pair on each engine its own share."""
    sides = {
        "unified": ("prefill", "decode"),
        "prefill": ("prefill",),
        "decode": ("transfer", "decode") if "prefill" in record.engines else ("transfer", "prefill", "decode"),
    }
    found = (_placed(record, sides[role], (role,)) for role in record.engines if role in sides)
    return [place for place in found if place is not None]


def _placed(record: RequestRecord, names: Sequence[str], roles: Sequence[str]) -> Interval | None:
    """From the start of the first of these phases to the end of the last, by an engine's clock."""
    engine = next((record.engines[role] for role in roles if role in record.engines), "")
    if not engine:
        return None
    start = end = None
    before = 0.0  # seconds of phases whose start is not told, before the first that is
    for phase in record.phases:
        if phase.name not in names or phase.seconds is None:
            continue
        if phase.start is not None:
            start = phase.start - before if start is None else start
            end = max(end or phase.start, phase.start) + phase.seconds
        elif end is not None:
            end += phase.seconds
        else:
            before += phase.seconds
    return Interval(engine, start, end) if start is not None and end is not None else None


def _tokens(record: RequestRecord) -> float:
    if record.prompt_tokens is None or record.output_tokens is None:
        return float("nan")
    return float(record.prompt_tokens + record.output_tokens)


def _union(intervals: Sequence[tuple[float, float]]) -> _Prefills:
    """Sorted intervals as stretches."""
    found = _Prefills([], [], [])
    covered = 0.0
    for start, end in intervals:
        if found.ends and start <= found.ends[-1]:
            covered += max(0.0, end - found.ends[-1])
            found.ends[-1] = max(found.ends[-1], end)
        else:
            found.starts.append(start)
            found.ends.append(end)
            found.before.append(covered)
            covered += end - start
    return found


def _covered(t: float, prefills: _Prefills) -> float:
    """Seconds in prefill up to `t`."""
    i = bisect_right(prefills.starts, t) - 1
    return 0.0 if i < 0 else prefills.before[i] + min(t, prefills.ends[i]) - prefills.starts[i]
