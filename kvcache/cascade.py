"""The stages of an eviction cascade, from rows that say what a cache and its engine did in each second.

A cascade goes: pressure (a full cache is filled faster than before), eviction of blocks that are wanted again,
computing them anew, queues and later first tokens, less throughput. A full cache that lets go what nobody asks for is
none, nor is one that is warming up. Pure arithmetic: whoever feeds it knows the engine
(agent/ledger/cascade_tracker.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

ROW_SECONDS = 1.0
PRESSURE, EVICTION, PREFILL, LATENCY, THROUGHPUT = 1, 2, 3, 4, 5
STAGES = {
    PRESSURE: "pressure",
    EVICTION: "eviction",
    PREFILL: "re-prefill",
    LATENCY: "latency",
    THROUGHPUT: "throughput",
}

SHORT, LONG, ALARM = 5, 10, 60
"""Rows that are looked at together: of blocks, of latency and throughput, of the objective."""

SUSTAIN = 3
"""Rows for which something has to be so, one after the other."""

HOLD = 20
"""Rows without for it to be over."""

LAG = 5
"""The newest rows that no baseline has: what begins is in them already."""

BASELINE, LEAST = 300, 10
"""Rows of a baseline, and the least of them."""

STEADY = 600
"""After so many rows of pressure alone it is how things are, and the baseline begins anew."""

MIN_STORED, MIN_REFAULTED, MIN_REQUESTS, MIN_ALARM = 32, 4, 5, 20
"""The least blocks and requests that something is said of."""

FULL, RISE, EASED = 0.5, 2.0, 1.5
"""Removed over stored, from which on the cache is full; stored over what is usual, and where that is over."""

WANTED, AGAIN, QUIET = 0.05, 0.10, 0.02
"""Blocks wanted again over blocks stored: where eviction counts, where computing them does, where it is over."""

SLOWER, FEWER, LATE = 2.0, 0.8, 0.01
"""Times the usual first token, and the usual output, from which on these count; and the share of late first tokens."""


@dataclass(frozen=True, slots=True)
class CascadeSecond:
    """One second. Counts are of that second; None is unknown."""

    t: float
    stored: float = 0.0  # blocks
    removed: float = 0.0
    refaulted: float = 0.0  # of the stored, those that were held before
    absent: float = 0.0  # seconds for which those had been gone, on average
    requests: float | None = None  # that got their first token
    ttft: float | None = None  # seconds until then, of all of them together
    late: float | None = None  # of them, those beyond the objective
    waiting: float | None = None  # now
    running: float | None = None
    output: float | None = None  # tokens generated
    cleared: bool = False  # all blocks are gone: a restart, or a reset


@dataclass(frozen=True, slots=True)
class Onset:
    """When a stage began, and when that could be said. before: its condition held already before the stage that it
    follows, so that the cascade is not all there is to it."""

    began: float
    said: float
    before: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was usual before; None is unknown. Blocks and tokens a second, seconds, requests."""

    stored: float | None = None
    ttft: float | None = None
    waiting: float | None = None
    running: float | None = None
    output: float | None = None


@dataclass
class Cascade:
    """One cascade. Its stages are in the order of their times."""

    stages: dict[int, Onset]
    baseline: Baseline
    refaulted: float = 0.0  # blocks
    ended: float | None = None
    cut: bool = False  # it ended since all blocks were gone
    alarm: float | None = None  # since when the latency objective was missed
    alarmed_before: bool = False  # it was missed before the first stage began
    peak: float = 0.0  # the highest share of blocks wanted again

    @property
    def began(self) -> float:
        """When the first of its stages did."""
        return min(onset.began for onset in self.stages.values())

    @property
    def warned(self) -> float:
        """When its first stage could be said."""
        return min(onset.said for onset in self.stages.values())

    @property
    def called(self) -> float:
        """When it could be said that wanted blocks are evicted."""
        return self.stages[EVICTION].said

    @property
    def stage(self) -> int:
        """The last stage that it came to."""
        return max(self.stages)


@dataclass
class _Run:
    """For how many rows something has been so."""

    since: float = 0.0
    rows: int = 0

    def feed(self, holds: bool, t: float) -> None:
        if not holds:
            self.rows = 0
            return
        if not self.rows:
            self.since = t
        self.rows += 1

    @property
    def is_sustained(self) -> bool:
        return self.rows >= SUSTAIN


@dataclass(frozen=True, slots=True)
class _Now:
    """The newest rows together; None where there is too little to say."""

    stored: float  # blocks a second
    full: bool  # what comes in pushes something out
    share: float | None  # wanted again, of the stored
    absent: float
    ttft: float | None
    waiting: float | None
    running: float | None
    output: float | None
    asked: float | None  # requests that run or wait, just now
    late: bool | None  # the objective is missed


@dataclass
class Detector:
    """Feed it rows, one each `ROW_SECONDS`. `open` is the cascade that goes on, `ended` takes those that are over."""

    open: Cascade | None = None
    ended: list[Cascade] = field(default_factory=list)
    pressure: Onset | None = None
    is_cold: bool = True  # nothing was pushed out yet since the cache was empty
    _rows: deque[CascadeSecond] = field(default_factory=lambda: deque(maxlen=ALARM))
    _usual: deque[_Now] = field(default_factory=lambda: deque(maxlen=BASELINE + LAG))
    _baseline: Baseline = field(default_factory=Baseline)
    _runs: dict[int, _Run] = field(default_factory=lambda: {stage: _Run() for stage in STAGES})
    _eased: _Run = field(default_factory=_Run)
    _quiet: _Run = field(default_factory=_Run)
    _pressed: int = 0  # rows of pressure
    _alarm: float | None = None

    @property
    def stage(self) -> int:
        """0 to 5: the last stage that was come to, until it is over."""
        if self.open is not None:
            return self.open.stage
        return PRESSURE if self.pressure is not None else 0

    @property
    def baseline(self) -> Baseline:
        """What is taken for usual now."""
        return self._baseline

    def feed(self, row: CascadeSecond) -> None:
        """The next row."""
        if row.cleared:
            self._clear(row.t)
        self._rows.append(row)
        now = _together(self._rows)
        self.is_cold = self.is_cold and row.removed == 0
        if self.open is None and self.pressure is None:
            self._baseline = _usual(self._usual)
        for stage, holds in self._conditions(now).items():
            self._runs[stage].feed(holds, row.t)
        if now.late is not None:
            self._alarm = (self._alarm or row.t) if now.late else None
        self._press(now, row.t)
        self._advance(now, row)
        if self.open is None and self.pressure is None and (now.stored or row.requests):
            self._usual.append(now)

    def _conditions(self, now: _Now) -> dict[int, bool]:
        base, share = self._baseline, now.share or 0.0
        queue = now.waiting is not None and base.waiting is not None and now.waiting >= 1.0 + SLOWER * base.waiting
        slow = now.ttft is not None and base.ttft is not None and now.ttft >= SLOWER * base.ttft
        fewer = now.output is not None and base.output is not None and now.output <= FEWER * base.output
        return {
            PRESSURE: now.full and base.stored is not None and now.stored >= RISE * base.stored,
            EVICTION: share >= WANTED,
            PREFILL: share >= AGAIN,
            LATENCY: queue or slow or bool(now.late),
            THROUGHPUT: fewer and _is_asked(now, base),
        }

    def _press(self, now: _Now, t: float) -> None:
        run, base = self._runs[PRESSURE], self._baseline
        if self.pressure is None:
            if run.is_sustained:
                self.pressure = Onset(run.since, t)
                self._pressed, self._eased = 0, _Run()
            return
        self._pressed += 1
        self._eased.feed(not now.full or now.stored < EASED * (base.stored or 0.0), t)
        steady = self._pressed >= STEADY and self.open is None
        if self._eased.rows >= HOLD or steady:
            self.pressure = None
        if steady:
            self._usual.clear()

    def _advance(self, now: _Now, row: CascadeSecond) -> None:
        cascade = self.open
        if cascade is None:
            cascade = self._begin(now, row.t)
            if cascade is None:
                return
        else:
            cascade.refaulted += row.refaulted
        if PRESSURE not in cascade.stages and self.pressure is not None and row.t < cascade.called + HOLD * ROW_SECONDS:
            began = min(self.pressure.began, cascade.stages[EVICTION].began)  # it shows a little later than it is
            cascade.stages = {PRESSURE: Onset(began, self.pressure.said), **cascade.stages}
        cascade.peak = max(cascade.peak, now.share or 0.0)
        for stage in (PREFILL, LATENCY, THROUGHPUT):
            run, earlier = self._runs[stage], cascade.stages.get(stage - 1)
            if stage not in cascade.stages and earlier is not None and run.is_sustained:
                cascade.stages[stage] = Onset(max(run.since, earlier.began), row.t, run.since < earlier.began)
        if cascade.alarm is None and self._alarm is not None and not cascade.alarmed_before:
            cascade.alarm = self._alarm
        self._quiet.feed((now.share or 0.0) < QUIET, row.t)
        if self._quiet.rows >= HOLD:
            self._end(self._quiet.since)

    def _begin(self, now: _Now, t: float) -> Cascade | None:
        run = self._runs[EVICTION]
        if not run.is_sustained:
            return None
        began = run.since - now.absent  # when those blocks were let go
        stages = {}
        if self.pressure is not None:
            stages[PRESSURE] = self.pressure
            began = max(began, self.pressure.began)
        stages[EVICTION] = Onset(began, t)
        cascade = self.open = Cascade(stages, self._baseline)
        cascade.alarmed_before = self._alarm is not None and self._alarm < cascade.began
        cascade.refaulted = sum(row.refaulted for row in self._rows if row.t > run.since - SHORT * ROW_SECONDS)
        self._quiet = _Run()
        return cascade

    def _end(self, t: float, cut: bool = False) -> None:
        if self.open is not None:
            self.open.ended, self.open.cut = t, cut
            self.ended.append(self.open)
            self.open = None

    def _clear(self, t: float) -> None:
        """The cache is empty: what comes now is a warm-up."""
        self._end(t, cut=True)
        self.pressure, self.is_cold = None, True
        self._rows.clear()
        for run in self._runs.values():
            run.rows = 0


def _is_asked(now: _Now, base: Baseline) -> bool:
    """Whether no less is asked of the engine than usual."""
    if now.asked is None or base.running is None:
        return False
    return now.asked >= base.running + (base.waiting or 0.0)


def _together(rows: deque[CascadeSecond]) -> _Now:
    recent = list(rows)
    short, long = recent[-SHORT:], recent[-LONG:]
    stored, removed = sum(row.stored for row in short), sum(row.removed for row in short)
    refaulted = sum(row.refaulted for row in short)
    requests, ttft = _sum(row.requests for row in long), _sum(row.ttft for row in long)
    asked, late = _sum(row.requests for row in recent), _sum(row.late for row in recent)
    many = stored >= MIN_STORED
    return _Now(
        stored=stored / len(short) / ROW_SECONDS,
        full=many and removed >= FULL * stored,
        share=(refaulted / stored if refaulted >= MIN_REFAULTED else 0.0) if many else None,
        absent=sum(row.absent * row.refaulted for row in short) / refaulted if refaulted else 0.0,
        ttft=ttft / requests if ttft is not None and requests is not None and requests >= MIN_REQUESTS else None,
        waiting=_mean(row.waiting for row in long),
        running=_mean(row.running for row in long),
        output=_rate(long),
        asked=_mean(row.running + (row.waiting or 0.0) for row in short if row.running is not None),
        late=late > LATE * asked if late is not None and asked is not None and asked >= MIN_ALARM else None,
    )


def _usual(rows: deque[_Now]) -> Baseline:
    usual = list(rows)[:-LAG]

    def middle(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if len(known) >= LEAST else None

    return Baseline(
        stored=middle(row.stored for row in usual),
        ttft=middle(row.ttft for row in usual),
        waiting=middle(row.waiting for row in usual),
        running=middle(row.running for row in usual),
        output=middle(row.output for row in usual),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rate(rows: list[CascadeSecond]) -> float | None:
    tokens = _sum(row.output for row in rows)
    return tokens / len(rows) / ROW_SECONDS if tokens is not None else None
