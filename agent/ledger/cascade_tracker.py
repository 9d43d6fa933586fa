"""Eviction cascades of a node's engines: which stage each is in, since when, what it costs, and who (docs/cascade.md).

The stages are found by kvitals.kvcache.cascade, from what the ledger counts and what the window knows of the engine's
pace. Who is made of look-ups, which are known some time after they were; so that part of a cascade is filled in later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvitals.agent.ledger.blame import UNATTRIBUTED, Blame
from kvitals.agent.ledger.cascade_facts import EnginePace, Pace
from kvitals.agent.ledger.cascade_turns import Turns
from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.event import GPU
from kvitals.agent.ledger.watched import WatchedEngine
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.request_families import OTHER
from kvitals.agent.series_keys import Key
from kvitals.kvcache.cascade import EVICTION, PRESSURE, ROW_SECONDS, SHORT, STAGES, Cascade, CascadeSecond, Detector
from kvitals.series.window import Window

MAX_CASCADES = 50
"""Of an engine that are remembered, the latest."""

GAP_ROWS = 60
"""After so many rows without a sign of life what is going on is not known any more."""

TOLD_SECONDS = 900.0
"""How long after its end the latest cascade has series."""

FILL_SECONDS = 300.0
"""How long after its end look-ups are still taken that were made in it: their records may come late."""

SHRANK_SECONDS = 120.0
"""How long a smaller pool is taken for what set a cascade off."""

STORES_SECONDS = 900
USUAL_SECONDS = 60
"""Before a cascade, over which it is told what a tenant usually stores."""

MAX_TENANTS = 24
"""Of one second; what others stored is not told apart."""

CONFIDENT = 0.5
"""Below this the ledger knows too little of what the device held to tell what was wanted again."""

MAIN_SHARE = 0.5
"""A tenant whose part in the rise is as large is what set it off."""


@dataclass
class CascadeReport:
    """A cascade with what the ledger adds to it."""

    id: str
    cascade: Cascade
    block_tokens: int
    pool: tuple[int | None, int | None]  # blocks of the device before and then
    below: float = 0.0  # tokens of it that a lower tier still had
    blame: Blame = field(default_factory=Blame)
    rate: float | None = None  # prompt tokens that a second of prefill computes
    gpus: float | None = None

    @property
    def tokens(self) -> float:
        """What was computed again."""
        return max(self.cascade.refaulted * self.block_tokens - self.below, 0.0)

    @property
    def prefill_seconds(self) -> float | None:
        """What computing it took, by the engine's speed."""
        return self.tokens / self.rate if self.rate else None

    def covers(self, t: float) -> bool:
        """Whether what is said of `t` belongs to it."""
        early = self.cascade.began - SHORT * ROW_SECONDS  # the rows that are looked at together
        return early <= t and (self.cascade.ended is None or t <= self.cascade.ended)

    def by(self) -> dict[str, float]:
        """Tokens by whose blocks pushed them out."""
        found: dict[str, float] = {}
        for (_, by), tokens in self.blame.cells.items():
            found[by] = found.get(by, 0.0) + tokens
        return found

    def suffered(self) -> dict[str, float]:
        """Tokens by who wanted them again."""
        found: dict[str, float] = {}
        for (victim, _), tokens in self.blame.cells.items():
            found[victim] = found.get(victim, 0.0) + tokens
        return found

    def top(self) -> tuple[str, float] | None:
        """The tenant who is blamed most, and its share; None where nobody is known."""
        by = self.by()
        named = {tenant: tokens for tenant, tokens in by.items() if tenant not in ("", UNATTRIBUTED, OTHER)}
        if not named:
            return None
        worst = max(named, key=named.__getitem__)
        return worst, named[worst] / sum(by.values())


@dataclass(frozen=True, slots=True)
class _Counts:
    """What was counted until `t`."""

    t: float
    stored: int
    removed: int
    refaulted: int
    absent: float
    below: int
    cleared: int
    requests: int
    ttft: float
    late: int


class EngineCascades:
    """The cascades of one engine."""

    def __init__(self, window: Window, engine: str) -> None:
        self.detector = Detector()
        self.told: deque[CascadeReport] = deque(maxlen=MAX_CASCADES)
        self.count = 0
        self.turns = Turns()
        self.knows = True  # whether the ledger knows enough to say that there is none
        self._engine = engine
        self._pace = EnginePace(window, engine)
        self._last: _Counts | None = None
        self._stores: dict[int, dict[str, int]] = {}  # second -> tenant -> tokens
        self._pool: int | None = None
        self._shrank: tuple[float, int] | None = None  # when the pool last did, and from how many blocks
        self._requests, self._ttft, self._late = 0, 0.0, 0

    def request(self, record: RequestRecord, t: float) -> None:
        """A request, for engines that do not tell of first tokens themselves."""
        if record.ttft is None:
            return
        self._requests += 1
        self._ttft += record.ttft
        objective = self._pace.objective(t)
        self._late += objective is not None and record.ttft > objective

    def look(self, look: SettledLookup) -> None:
        """A look-up that is settled."""
        self.turns.look(look)
        missed = (look.blocks - look.hits) * look.tokens
        if missed > 0:
            stores = self._stores.setdefault(int(look.at), {})
            tenant = look.party.tenant
            name = tenant if tenant in stores or len(stores) < MAX_TENANTS else OTHER
            stores[name] = stores.get(name, 0) + missed
        if look.refaults:
            for told in reversed(self.told):
                if told.covers(look.at):
                    told.blame.wanted(look.party, look.refaults, look.tokens, look.at)
                    break

    def advance(self, t: float, watched: WatchedEngine) -> None:
        """It is `t` now."""
        now = self._counted(t, watched)
        pool = watched.ledger.pool
        if pool and self._pool and pool < self._pool:
            self._shrank = t, self._pool
        self._pool = pool
        self._forget_stores(t)
        for told in self.told:
            ended = told.cascade.ended
            if ended is None or t - ended < FILL_SECONDS:
                told.blame.settle(t)
        last = self._last
        if last is not None and now.cleared > last.cleared:
            self.turns.forget()
        if last is None:
            self._last = now
            return
        rows = int((t - last.t) / ROW_SECONDS)
        if abs(rows) > GAP_ROWS:
            self._begin_anew(now, last.t)
            return
        if rows < 1:  # what came from several senses is not in order to the second
            return
        share = watched.ledger.share
        self.knows = share is not None and share >= CONFIDENT
        self._last = now
        for row in _rows(last, now, rows, self._pace.at(t)):
            self.detector.feed(row)
        self._note(t, watched, now.below - last.below)

    def gauges(self, t: float) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
        """Series of this moment."""
        if not self.knows:
            return
        yield "kvitals_cascade_stage", (), float(self.detector.stage)
        told = self.told[-1] if self.told else None
        if told is not None and told.cascade.ended is not None and t - told.cascade.ended > TOLD_SECONDS:
            told = None
        onsets = dict(told.cascade.stages) if told is not None else {}
        if not onsets and self.detector.pressure is not None:
            onsets[PRESSURE] = self.detector.pressure
        for stage, onset in onsets.items():
            yield "kvitals_cascade_stage_began_timestamp_seconds", (("stage", str(stage)),), onset.began
        if told is None:
            return
        yield "kvitals_cascade_refaulted_tokens", (), told.tokens
        seconds, top, cascade = told.prefill_seconds, told.top(), told.cascade
        if seconds is not None:
            yield "kvitals_cascade_prefill_seconds", (), seconds
            if told.gpus:
                yield "kvitals_cascade_gpu_seconds", (), seconds * told.gpus
        if top is not None:
            yield "kvitals_cascade_blamed_ratio", (("tenant", top[0]),), top[1]
        for since, lead in _leads(cascade).items():
            yield "kvitals_cascade_lead_seconds", (("since", since),), lead

    @property
    def state(self) -> str:
        """What is going on, in a word."""
        if not self.knows:
            return "unknown"
        if self.detector.open is not None:
            return "cascade"
        return "cold" if self.detector.is_cold else "pressure" if self.detector.pressure is not None else "calm"

    def report(self) -> list[dict[str, Any]]:
        """The cascades that are remembered, the latest first."""
        return [self._one(told) for told in reversed(self.told)]

    def _one(self, told: CascadeReport) -> dict[str, Any]:
        cascade, top, seconds = told.cascade, told.top(), told.prefill_seconds
        return {
            "id": told.id,
            "engine": self._engine,
            "kind": "cascade",
            "state": "open" if cascade.ended is None else "cut" if cascade.cut else "ended",
            "began": cascade.began,
            "ended": cascade.ended,
            "until": cascade.ended or max(self._last.t if self._last is not None else 0.0, cascade.called),
            "stage": cascade.stage,
            "stages": [
                {"stage": stage, "name": STAGES[stage], "began": one.began, "said": one.said, "before": one.before}
                for stage, one in sorted(cascade.stages.items())
            ],
            "pressure_known": cascade.baseline.stored is not None,
            "trigger": self._trigger(told),
            "alarm": cascade.alarm,
            "alarmed_before": cascade.alarmed_before,
            "lead_seconds": _leads(cascade),
            "peak_refault_share": round(cascade.peak, 4),
            "refaulted_tokens": round(told.tokens),
            "prefill_seconds": round(seconds, 3) if seconds is not None else None,
            "gpu_seconds": round(seconds * told.gpus, 3) if seconds is not None and told.gpus else None,
            "blamed": {"tenant": top[0], "share": round(top[1], 4)} if top is not None else None,
            "caused": _largest(told.by()),
            "suffered": _largest(told.suffered()),
            "baseline": {
                "stored_tokens_per_second": _times(cascade.baseline.stored, told.block_tokens),
                "ttft_mean_seconds": cascade.baseline.ttft,
                "waiting": cascade.baseline.waiting,
                "running": cascade.baseline.running,
                "output_tokens_per_second": cascade.baseline.output,
            },
        }

    def _trigger(self, told: CascadeReport) -> dict[str, Any]:
        """What set it off, as far as it can be told."""
        before, then = told.pool
        if before and then and then < before:
            return {"kind": "capacity", "from_blocks": before, "to_blocks": then}
        began = told.cascade.began
        first, until = int(began) - 1, int(told.cascade.stages[EVICTION].said + ROW_SECONDS) + 1
        earlier, later = self._by_tenant(first - USUAL_SECONDS, first), self._by_tenant(first, until)
        old, new = float(USUAL_SECONDS), float(until - first)
        rises = {name: tokens / new - earlier.get(name, 0) / old for name, tokens in later.items()}
        rise = sum(value for value in rises.values() if value > 0)
        if PRESSURE not in told.cascade.stages or rise <= 0:
            known = told.cascade.baseline.stored is not None
            return {"kind": "working_set" if known else "unknown"}
        most = max(rises, key=rises.__getitem__)
        if not most or most == OTHER or rises[most] < MAIN_SHARE * rise:
            return {"kind": "load"}
        return {
            "kind": "tenant",
            "tenant": most,
            "share_of_rise": round(rises[most] / rise, 4),
            "from_tokens_per_second": round(earlier.get(most, 0) / old, 1),
            "to_tokens_per_second": round(later[most] / new, 1),
        }

    def _by_tenant(self, start: int, end: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for second in range(start, end):
            for name, tokens in self._stores.get(second, {}).items():
                found[name] = found.get(name, 0) + tokens
        return found

    def _note(self, t: float, watched: WatchedEngine, below: int) -> None:
        """What the detector said with the newest rows."""
        opened = self.detector.open
        known = self.told[-1].cascade if self.told else None
        for cascade in (*self.detector.ended, *([opened] if opened is not None else [])):
            if cascade is known or any(told.cascade is cascade for told in self.told):
                continue
            self.count += 1
            at = f"{self._engine}@{cascade.began:.0f}"
            shrank = self._shrank is not None and t - self._shrank[0] <= SHRANK_SECONDS
            before = self._shrank[1] if shrank and self._shrank is not None else None
            self.told.append(CascadeReport(at, cascade, watched.ledger.block_tokens, (before, watched.ledger.pool)))
        self.detector.ended.clear()
        if opened is not None:
            told = self.told[-1]
            told.below += below
            told.rate = self._pace.prefill_rate() or told.rate
            told.gpus = self._pace.gpus(t) or told.gpus

    def _begin_anew(self, now: _Counts, last: float) -> None:
        """There is a gap: a cascade that was going on may be over, and what is usual may be something else."""
        opened = self.detector.open
        if opened is not None:
            opened.ended, opened.cut = last, True
        self.detector, self._last = Detector(), now

    def _forget_stores(self, t: float) -> None:
        if len(self._stores) > STORES_SECONDS:
            self._stores = {s: stores for s, stores in self._stores.items() if s > t - STORES_SECONDS / 2}

    def _counted(self, t: float, watched: WatchedEngine) -> _Counts:
        ledger = watched.ledger
        tally = ledger.tallies.get(GPU)
        return _Counts(
            t=t,
            stored=tally.stored if tally is not None else 0,
            removed=sum(tally.removed.values()) if tally is not None else 0,
            refaulted=tally.refaulted if tally is not None else 0,
            absent=tally.refaults.total if tally is not None else 0.0,
            below=tally.refaulted_below_tokens if tally is not None else 0,
            cleared=sum(ledger.cleared.values()),
            requests=self._requests,
            ttft=self._ttft,
            late=self._late,
        )


class Cascades:
    """The cascades of a node's engines."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._engines: dict[str, EngineCascades] = {}

    def look(self, engine: str, look: SettledLookup) -> None:
        """A look-up of an engine that is settled."""
        self._of(engine).look(look)

    def request(self, engine: str, record: RequestRecord) -> None:
        """A request of an engine."""
        self._of(engine).request(record, record.end)

    def advance(self, t: float, engines: Mapping[str, WatchedEngine]) -> None:
        """It is `t` now."""
        for name, watched in engines.items():
            self._of(name).advance(t, watched)

    def gone(self, engine: str) -> None:
        """An engine is watched no more."""
        self._engines.pop(engine, None)

    def say(self, t: float, counts: dict[Key, float], gauges: dict[Key, float]) -> None:
        """Add the series of this moment."""
        for name, engine in self._engines.items():
            counts["kvitals_cascades_total", (("engine", name),)] = float(engine.count)
            for family, labels, value in engine.turns.counts():
                counts[family, (("engine", name), *labels)] = value
            for family, labels, value in engine.gauges(t):
                gauges[family, (("engine", name), *labels)] = value

    def report(self) -> dict[str, Any]:
        """What is going on, and all cascades that are remembered, those that began last first (docs/cascade.md)."""
        found = [one for engine in self._engines.values() for one in engine.report()]
        return {
            "engines": [
                {"engine": name, "state": one.state, "stage": one.detector.stage if one.knows else None}
                for name, one in self._engines.items()
            ],
            "cascades": sorted(found, key=lambda one: -float(one["began"])),
        }

    def _of(self, engine: str) -> EngineCascades:
        found = self._engines.get(engine)
        if found is None:
            found = self._engines[engine] = EngineCascades(self._window, engine)
        return found


def _rows(last: _Counts, now: _Counts, rows: int, pace: Pace) -> Iterable[CascadeSecond]:
    """What happened between, spread evenly over so many rows."""
    refaulted = now.refaulted - last.refaulted
    by_records = pace.requests is None and now.requests > last.requests
    for index in range(1, rows + 1):
        yield CascadeSecond(
            t=last.t + (now.t - last.t) * index / rows,
            stored=(now.stored - last.stored) / rows,
            removed=(now.removed - last.removed) / rows,
            refaulted=refaulted / rows,
            absent=(now.absent - last.absent) / refaulted if refaulted else 0.0,
            requests=(now.requests - last.requests) / rows if by_records else pace.requests,
            ttft=(now.ttft - last.ttft) / rows if by_records else pace.ttft,
            late=(now.late - last.late) / rows if by_records else pace.late,
            waiting=pace.waiting,
            running=pace.running,
            output=pace.output,
            cleared=index == 1 and now.cleared > last.cleared,
        )


def _leads(cascade: Cascade) -> dict[str, float]:
    """Seconds by which a warning came before the objective was missed: that of the first stage, and that of the
    evictions. Empty where it was not missed, or before there was anything to warn of."""
    if cascade.alarm is None:
        return {}
    return {"first": cascade.alarm - cascade.warned, "eviction": cascade.alarm - cascade.called}


def _largest(tokens: Mapping[str, float]) -> list[dict[str, Any]]:
    total = sum(tokens.values())
    return [
        {"tenant": tenant, "tokens": round(value, 1), "share": round(value / total, 4)}
        for tenant, value in sorted(tokens.items(), key=lambda item: -item[1])[:8]
        if value > 0
    ]


def _times(value: float | None, factor: float) -> float | None:
    return round(value * factor, 1) if value is not None else None
