"""Predicted hits by replay: the look-ups that a ledger recorded, once more under what a lever would make of the cache.

A replay takes the place of what the reuse curve in `kvitals.diagnoser.predictions` predicts: the curve needs many
look-ups and knows LRU alone, and two predictions of one thing would differ. What is told is anchored at the hits that
there are: to those is added what the replay gains. How far the replay of today's cache is from today's hits is the
error.

Counting begins once the larger cache has filled in the replay: from an empty cache both sizes miss alike, and the gain
of a large one looks small. If the look-ups that are kept do not fill it, the reuse curve, which has seen all of them
since the agent began, keeps its prediction; without a curve the replay's is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from kvitals.diagnoser.text import points, render
from kvitals.kvcache.accesses import Accesses
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.rules.finding import Finding, LeverAdvice, PredictedValue, Triage
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import ReplaySpec

MAX_REFERENCES = 1_000_000
"""The latest that are replayed: all that a ledger keeps, some 0.2 s of CPU for all engines and sizes."""
MAX_EXACT_REFERENCES = 200_000
"""The latest for another eviction or routing, which are replayed block by block."""
KEPT_SECONDS = 300.0
"""How long a replay's outcome is told before it is made anew: an agent's documents come often."""
MIN_LOOKUPS = 100
LEAST_GAIN = 0.0005
"""A share that is printed as no gain."""
BELOW = "prompt_found_ratio"
HITS = {"engine": "prefix_hit_ratio", "node": "node_prefix_hit_ratio", "pool": "pool_hit_ratio"}
TITLES = {BELOW: "hit rate with the tier", "": "hit rate"}
GROUPS = ("causes", "symptoms", "telemetry", "notes")


class Gain(NamedTuple):
    """hit: share of prompt tokens that the look-ups hit. now, then: what replays of today's cache and of the other one
    hit. start, end: of the look-ups that are counted, seconds since the epoch. filled: earlier ones filled the other
    cache."""

    hit: float
    now: float
    then: float
    lookups: int
    start: float
    end: float
    filled: bool

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


def tells_of_hits(advice: LeverAdvice) -> bool:
    """Whether a lever's prediction is of the hits, which a replay of lookups can show."""
    return not {BELOW, *HITS.values()}.isdisjoint(one.metric for one in advice.predicted)


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
    unchanged = abs(found.to - found.hit) <= max(found.error, LEAST_GAIN)
    known = how.policy == "lru" and any(one.metric == metric for one in advice.predicted)
    if not found.filled and (known or unchanged):  # a lower bound of nothing says nothing
        return advice
    start, end = (datetime.fromtimestamp(t, UTC) for t in (found.start, found.end))
    begun = (
        "after earlier lookups filled the caches" if found.filled else "but these lookups do not fill the larger cache"
    )
    method = (
        f"The latest {found.lookups:,} lookups, {start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC, replayed"
        f" {_words(how)}, {begun}: a hit rate of {_percent(found.now)} becomes {_percent(found.then)}."
        f" The replay of today's cache differs by {points(found.error)} from the observed hits."
    )
    bound: Literal["about", "at least"] = "about" if found.filled else "at least"
    # As a difference: the rate of these lookups is of another time than the one that the finding states.
    gain = f"{bound} {points(found.to - found.hit).removesuffix(' points')} ± {points(found.error)} more"
    same = f"the same within {points(max(found.error, LEAST_GAIN))}"
    text = f"{same if unchanged else gain}, over {render(found.end - found.start, 'seconds')} of lookups"
    gained = PredictedValue(
        metric, TITLES.get(metric, TITLES[""]), found.hit, found.to, "ratio", bound, found.error, method, text
    )
    others = [one for one in advice.predicted if one.metric != metric]
    return msgspec.structs.replace(advice, predicted=[*others, gained] if unchanged else [gained, *others])


def _percent(share: float) -> str:
    return render(share, "ratio")


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
        self._rates: dict[tuple[str, int, int, str, int], float] = {}
        self._routings: dict[str, Gain | None] = {}

    def gain(self, finding: Finding, advice: LeverAdvice, how: ReplaySpec) -> Gain | None:
        if how.routing:
            if how.routing not in self._routings:
                self._routings[how.routing] = self._routed(how)
            return self._routings[how.routing] if finding.entity.kind != "engine" else None
        engine = finding.entity.labels.get("engine", "")
        pool = self._of.pools.get(engine, 0)
        wanted = _blocks(advice, how, pool)
        most = MAX_REFERENCES if how.policy == "lru" else MAX_EXACT_REFERENCES
        accesses = self._accesses(engine, most) if pool and wanted else None
        if accesses is None or wanted is None:
            return None
        blocks = max(1, wanted)
        warm, filled = warm_rows(accesses, max(blocks, pool))
        now = self._rate(accesses, engine, pool, "lru", warm)
        then = self._rate(accesses, engine, blocks, how.policy, warm)
        return _anchored([_from(accesses, warm)], now, then, filled)

    def _routed(self, how: ReplaySpec) -> Gain | None:
        """Of all engines, each a node with the blocks of the smallest, instead of as requests came to them."""
        parts = {name: one for name in self._of.pools if (one := self._accesses(name, MAX_REFERENCES)) is not None}
        if len(parts) < 2:
            return None
        pool = min(self._of.pools[name] for name in parts)
        latest = max(float(one.time[0]) for one in parts.values())
        together = _tail(self._of.accesses.select(since=latest), MAX_EXACT_REFERENCES)
        if len(together) < MIN_LOOKUPS:
            return None
        warm, filled = warm_rows(together, pool * len(parts))
        since = float(together.time[warm])
        rows = {name: int(np.searchsorted(one.time, since)) for name, one in parts.items()}
        parts = {name: one for name, one in parts.items() if _from(one, rows[name]).tokens.any()}
        if len(parts) < 2 or not _from(together, warm).references:
            return None
        tokens = np.array([float(one.tokens[rows[name] :].sum()) for name, one in parts.items()])
        rates = np.array(
            [self._rate(one, name, self._of.pools[name], "lru", rows[name]) for name, one in parts.items()]
        )
        plan = ReplayPlan((pool,), nodes=len(parts), routings=(how.routing,), warm=warm)  # type: ignore[arg-type]
        then = what_if(together, plan)[0].token_hit_rate
        counted = [_from(one, rows[name]) for name, one in parts.items()]
        return _anchored(counted, float((rates * tokens).sum() / tokens.sum()), then, filled)

    def _accesses(self, engine: str, most: int) -> Accesses | None:
        found = _tail(self._of.accesses.select(engine=engine), most)
        return found if len(found) >= MIN_LOOKUPS and found.references and found.tokens.any() else None

    def _rate(self, accesses: Accesses, engine: str, blocks: int, policy: str, warm: int) -> float:
        key = engine, len(accesses), blocks, policy, warm
        if key not in self._rates:
            plan = ReplayPlan((blocks,), policies=(policy,), warm=warm)  # type: ignore[arg-type]
            self._rates[key] = what_if(accesses, plan)[0].token_hit_rate if _from(accesses, warm).references else 0.0
        return self._rates[key]


def warm_rows(accesses: Accesses, blocks: int) -> tuple[int, bool]:
    """The look-ups that fill a cache of so many blocks, and whether they do: at least a quarter is left to count.
    Otherwise half of them, where that leaves enough."""
    _, first = np.unique(accesses.block, return_index=True)
    if len(first) >= blocks:
        reference = int(np.partition(first, blocks - 1)[blocks - 1])
        row = int(np.searchsorted(accesses.start, reference, side="right"))
        if row <= len(accesses) * 3 // 4:
            return row, True
    return (len(accesses) // 2 if len(accesses) >= 2 * MIN_LOOKUPS else 0), False


def _from(accesses: Accesses, row: int) -> Accesses:
    return accesses.take(np.arange(row, len(accesses)))


def _blocks(advice: LeverAdvice, how: ReplaySpec, pool: int) -> int | None:
    """The blocks that requests could use, of `pool` today. A setting also counts the blocks that the engine keeps for
    itself, so only its difference is added."""
    if not how.by_setting:
        return int(pool * how.capacity)
    setting = advice.setting
    if setting is None or how.flag != setting.flag:
        return None
    try:
        return pool + int(float(setting.to) - float(setting.now))
    except (ValueError, OverflowError):
        return None


def _anchored(parts: Iterable[Accesses], now: float, then: float, filled: bool) -> Gain | None:
    """What replays of some look-ups gain, beside what these hit."""
    several = list(parts)
    known = [one.hit >= 0 for one in several]
    tokens = sum(int(one.tokens[rows].sum()) for one, rows in zip(several, known, strict=True))
    if not tokens:
        return None
    hit = sum(int(one.hit[rows].sum()) * one.block_size for one, rows in zip(several, known, strict=True)) / tokens
    start, end = min(float(one.time[0]) for one in several), max(float(one.time[-1]) for one in several)
    return Gain(hit, now, then, sum(map(len, several)), start, end, filled)


def _tail(accesses: Accesses, most: int) -> Accesses:
    """The latest, with so many references at most."""
    if accesses.references <= most:
        return accesses
    first = int(np.searchsorted(accesses.start, accesses.references - most))
    return _from(accesses, first)
