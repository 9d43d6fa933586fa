"""Predicted hits by replay: the look-ups that a ledger recorded, once more under what a lever would make of the cache.

A replay takes the place of what the reuse curve in `kvitals.diagnoser.predictions` predicts: the curve needs many
look-ups and knows LRU alone, and two predictions of one thing would differ. What is told is anchored at the hits that
there are: to those is added what the replay gains. How far the replay of today's cache is from today's hits is the
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import numpy as np

from kvitals.diagnoser.text import points
from kvitals.kvcache.accesses import Accesses
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.rules.finding import Finding, LeverAdvice, PredictedValue, Triage
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import ReplaySpec

MAX_REFERENCES = 50_000
"""The latest that are replayed, some 30 ms each time."""
KEPT_SECONDS = 300.0
"""How long a replay's outcome is told before it is made anew: an agent's documents come often."""
MIN_LOOKUPS = 100
BELOW = "prompt_found_ratio"
HITS = {"engine": "prefix_hit_ratio", "node": "node_prefix_hit_ratio", "pool": "pool_hit_ratio"}
TITLES = {BELOW: "hit rate with the tier", "": "hit rate"}
GROUPS = ("causes", "symptoms", "telemetry", "notes")


class Gain(NamedTuple):
    """hit: share of prompt tokens that the look-ups hit. now, then: what replays of today's cache and of the other one
    hit. start, end: of the look-ups, seconds since the epoch."""

    hit: float
    now: float
    then: float
    lookups: int
    start: float
    end: float

    @property
    def to(self) -> float:
        """From the hits that were seen, by as much as the replay gains."""
        return min(max(self.hit + self.then - self.now, 0.0), 1.0)

    @property
    def error(self) -> float:
        """How far the replay of today's cache is from the hits that were seen."""
        return abs(self.now - self.hit)


@dataclass(frozen=True)
class RecordedLookups:
    """Look-ups of a node's engines, and the blocks of each."""

    accesses: Accesses
    pools: Mapping[str, int]


class Replays:
    """Replays of one node's look-ups, each made once in a while."""

    def __init__(self, recorded: Callable[[], RecordedLookups | None]) -> None:
        """`recorded` is asked when there are levers that a replay can tell of."""
        self._recorded = recorded
        self._made: _Replayed | None = None
        self._at = float("-inf")

    def told(self, document: Triage, knowledge: Knowledge) -> Triage:
        """The same document, where levers that a replay can tell of say what it tells."""
        levers = _replayable(knowledge)
        asked = any(advice.lever in levers for group in GROUPS for f in getattr(document, group) for advice in f.levers)
        replayed = self._of(document.window.end) if asked else None
        if replayed is None:
            return document
        changed = {group: [_finding(f, levers, replayed) for f in getattr(document, group)] for group in GROUPS}
        return msgspec.structs.replace(document, **changed)

    def of(self, finding: Finding, knowledge: Knowledge, at: float) -> list[LeverAdvice]:
        """The levers of one finding, likewise."""
        levers = _replayable(knowledge)
        replayed = self._of(at) if any(advice.lever in levers for advice in finding.levers) else None
        return finding.levers if replayed is None else _finding(finding, levers, replayed).levers

    def _of(self, at: float) -> _Replayed | None:
        if not 0 <= at - self._at < KEPT_SECONDS:
            known = self._recorded()
            self._made = _Replayed(known) if known is not None else None
            self._at = at
        return self._made


def _replayable(knowledge: Knowledge) -> dict[str, ReplaySpec]:
    return {name: lever.replay for name, lever in knowledge.levers.items() if lever.replay is not None}


def _finding(finding: Finding, levers: Mapping[str, ReplaySpec], replayed: _Replayed) -> Finding:
    if not any(advice.lever in levers for advice in finding.levers):
        return finding
    return msgspec.structs.replace(finding, levers=[_advice(finding, one, levers, replayed) for one in finding.levers])


def _advice(
    finding: Finding, advice: LeverAdvice, levers: Mapping[str, ReplaySpec], replayed: _Replayed
) -> LeverAdvice:
    how = levers.get(advice.lever)
    metric = BELOW if how is not None and how.below else HITS.get(finding.entity.kind)
    if how is None or metric is None:
        return advice
    found = replayed.gain(finding, advice, how)
    if found is None:
        return advice
    start, end = (datetime.fromtimestamp(t, UTC) for t in (found.start, found.end))
    method = (
        f"The latest {found.lookups:,} look-ups, {start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC, replayed"
        f" {_words(how)}: {_percent(found.now)} become {_percent(found.then)}. The replay of today's cache differs by"
        f" {points(found.error)} from the hits that were seen."
    )
    text = f"{_percent(found.hit)} → about {_percent(found.to)}, give or take {points(found.error)}"
    told = PredictedValue(
        metric, TITLES.get(metric, TITLES[""]), found.hit, found.to, "ratio", "about", found.error, method, text
    )
    others = [one for one in advice.predicted if one.metric != metric]
    return msgspec.structs.replace(advice, predicted=[told, *others])


def _percent(share: float) -> str:
    """With as many digits as `kvitals whatif` prints."""
    return f"{share:.1%}"


def _words(how: ReplaySpec) -> str:
    if how.routing:
        return f"with {how.routing} routing"
    if how.policy != "lru":
        return f"with {how.policy} eviction"
    if how.by_setting:
        return "with more blocks"
    return f"with {how.capacity:g} times the blocks{', a tier beside the device' if how.below else ''}"


class _Replayed:
    """The replays of some look-ups, each made once."""

    def __init__(self, of: RecordedLookups) -> None:
        self._of = of
        self._rates: dict[tuple[str, int, str], float] = {}
        self._routings: dict[str, Gain | None] = {}

    def gain(self, finding: Finding, advice: LeverAdvice, how: ReplaySpec) -> Gain | None:
        if how.routing:
            if how.routing not in self._routings:
                self._routings[how.routing] = self._routed(how)
            return self._routings[how.routing] if finding.entity.kind != "engine" else None
        engine = finding.entity.labels.get("engine", "")
        pool = self._of.pools.get(engine, 0)
        times = _times(advice, how)
        accesses = self._accesses(engine) if pool and times else None
        if accesses is None or times is None:
            return None
        now = self._rate(accesses, engine, pool, "lru")
        then = self._rate(accesses, engine, max(1, int(pool * times)), how.policy)
        return _anchored([accesses], now, then)

    def _routed(self, how: ReplaySpec) -> Gain | None:
        """Of all engines, each a node with the blocks of the smallest, instead of as requests came to them."""
        parts = {name: one for name in self._of.pools if (one := self._accesses(name)) is not None}
        if len(parts) < 2:
            return None
        pool = min(self._of.pools[name] for name in parts)
        tokens = np.array([float(one.tokens.sum()) for one in parts.values()])
        rates = np.array([self._rate(one, name, self._of.pools[name], "lru") for name, one in parts.items()])
        latest = max(float(one.time[0]) for one in parts.values())
        together = _tail(self._of.accesses.select(since=latest))
        if not together.references:
            return None
        plan = ReplayPlan(capacities=(pool,), nodes=len(parts), routings=(how.routing,))  # type: ignore[arg-type]
        then = what_if(together, plan)[0].token_hit_rate
        return _anchored(list(parts.values()), float((rates * tokens).sum() / tokens.sum()), then)

    def _accesses(self, engine: str) -> Accesses | None:
        found = _tail(self._of.accesses.select(engine=engine))
        return found if len(found) >= MIN_LOOKUPS and found.references and found.tokens.any() else None

    def _rate(self, accesses: Accesses, engine: str, blocks: int, policy: str) -> float:
        key = engine, blocks, policy
        if key not in self._rates:
            plan = ReplayPlan(capacities=(blocks,), policies=(policy,))  # type: ignore[arg-type]
            self._rates[key] = what_if(accesses, plan)[0].token_hit_rate
        return self._rates[key]


def _times(advice: LeverAdvice, how: ReplaySpec) -> float | None:
    """How many times today's blocks there would be."""
    if not how.by_setting:
        return how.capacity
    setting = advice.setting
    if setting is None or how.flag != setting.flag:
        return None
    try:
        return float(setting.to) / float(setting.now)
    except (ValueError, ZeroDivisionError):
        return None


def _anchored(parts: Iterable[Accesses], now: float, then: float) -> Gain | None:
    """What replays of some look-ups gain, beside what these hit."""
    several = list(parts)
    known = [one.hit >= 0 for one in several]
    tokens = sum(int(one.tokens[rows].sum()) for one, rows in zip(several, known, strict=True))
    if not tokens:
        return None
    hit = sum(int(one.hit[rows].sum()) * one.block_size for one, rows in zip(several, known, strict=True)) / tokens
    start, end = min(float(one.time[0]) for one in several), max(float(one.time[-1]) for one in several)
    return Gain(hit, now, then, sum(map(len, several)), start, end)


def _tail(accesses: Accesses) -> Accesses:
    """The latest, with so many references at most."""
    if accesses.references <= MAX_REFERENCES:
        return accesses
    first = int(np.searchsorted(accesses.start, accesses.references - MAX_REFERENCES))
    return accesses.take(np.arange(first, len(accesses)))
