"""What a change did, decided from blocks of time before and after it as they come in.

Signals are those of a lever (`change_effect.watched_signals`); their blocks are tested by `rank_evidence`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from kvitals.diagnoser.change_effect import ALIKE, MOVED, NOTICEABLE, REACHED, THROUGHPUT, watched_signals
from kvitals.diagnoser.rank_evidence import (
    MIN_BEFORE,
    RatioInterval,
    block_factor,
    block_means,
    drift_interval,
    ratio_interval,
)
from kvitals.diagnoser.text import render
from kvitals.rules.finding import Entity, PredictedValue
from kvitals.rules.model import Lever, Quantity, Signal

VERSION = "1.0"
ALPHA = 0.05
"""Probability that any interval of a proof is wrong at any time, all signals together."""
LEFT_OUT: tuple[Quantity, ...] = ("errors",)
"""Quantities that are zero most of the time and have no ratio: they are guard rails."""

ProofVerdict = Literal["worked", "in part", "no effect", "worse", "undecided"]
SignalVerdict = Literal["better", "worse", "same", "open"]
EndState = Literal["kept", "rolled back", "rollback failed", "not applied"]


class ProofEffect(Struct, frozen=True, kw_only=True):
    """One signal before and after. change: by what part of itself it changed, low and high: the ends of its interval,
    which holds at any time; None where nothing is excluded on that side yet."""

    metric: str
    title: str
    unit: str
    decides: bool  # for the answer; else it is shown beside
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    predicted: PredictedValue | None
    verdict: SignalVerdict
    not_worse: bool  # by more than a quarter
    blocks: tuple[int, int]  # before and after, as they were tested
    text: str  # rendered: "970 ms → 12 ms"
    note: str = ""  # why it has no interval


class Proof(Struct, frozen=True, kw_only=True):
    """A change that was tried, and what it did."""

    version: str
    entity: Entity
    url: str
    peers: list[str]
    finding: str  # the code whose lever was pulled; empty: none was named
    levers: list[str]
    changed: list[str]  # "slots 2 → 16"
    begun: float  # seconds since the epoch
    applied: float | None
    measured: float | None  # since when the changed engine was compared
    decided: float | None
    ended: float
    verdict: ProofVerdict
    conclusion: str
    state: EndState
    guard_rail: str  # the one that broke; empty: none did
    guard_rails: list[str]
    load: str
    block_seconds: float
    confidence: float
    effects: list[ProofEffect]
    apply: str
    rollback: str


@dataclass(frozen=True)
class TestedSignal:
    """A signal whose blocks are compared. better: the direction that is an improvement."""

    name: str
    title: str
    signal: Signal
    decides: bool
    predicted: PredictedValue | None = None


@dataclass
class SignalTrial:
    """The blocks of one signal, and the interval that is left of its ratio so far. alpha: of this signal alone."""

    tested: TestedSignal
    alpha: float
    before: list[float]
    factor: int | None = None
    interval: RatioInterval | None = None
    after: list[float] | None = None

    def end_before(self) -> None:
        """No more blocks before the change: how many make one value is decided by these alone."""
        self.factor = block_factor(self.before)

    @property
    def ready(self) -> bool:
        """Whether the blocks before are enough, and hardly depend on one another."""
        return len(self.before) >= MIN_BEFORE and block_factor(self.before) is not None

    def read(self, after: Sequence[float]) -> None:
        """Test again with all blocks after the change so far."""
        self.after = list(after)
        if self.factor is not None:
            means = block_means(self.after, self.factor)
            found = ratio_interval(block_means(self.before, self.factor), means, self.alpha)
            self.interval = found.meet(self.interval) if found is not None else self.interval
        else:
            lower = self.tested.signal.better == "lower"
            self.interval = drift_interval(self.before, self.after, self.alpha, lower_is_better=lower)

    def effect(self, before: float | None, after: float | None) -> ProofEffect:
        """What is known now. before, after: the signal over the whole time on each side."""
        tested, interval = self.tested, self.interval
        unit = tested.signal.unit
        return ProofEffect(
            metric=tested.name,
            title=tested.title,
            unit=unit,
            decides=tested.decides,
            before=before,
            after=after,
            change=None if interval is None else interval.ratio - 1,
            low=None if interval is None else interval.low - 1,
            high=None if interval is None or math.isinf(interval.high) else interval.high - 1,
            predicted=tested.predicted,
            verdict=_verdict(interval, tested.signal),
            not_worse=_not_worse(interval, tested.signal),
            blocks=self._blocks,
            text=f"{render(before, unit)} → {render(after, unit)}",
            note=self._note,
        )

    @property
    def _blocks(self) -> tuple[int, int]:
        factor = self.factor or 1
        return len(self.before) // factor, len(self.after or ()) // factor

    @property
    def _note(self) -> str:
        if len(self.before) < MIN_BEFORE:
            return "reported in too few blocks before the change"
        if self.factor is None and self.interval is not None:
            return "it got worse before the change, and each block after it is better than the best one before"
        if self.factor is None:
            return "it drifted before the change, or its blocks are too short"
        return "" if self.interval is not None else "zero before the change, or not reported after it"


def signals_to_test(
    levers: Sequence[Lever], predicted: Sequence[PredictedValue], known: Mapping[str, Signal]
) -> list[TestedSignal]:
    """The signals of a change: predicted ones, then those that its levers move, which decide; then what else may move.

    Without a lever all decide.
    """
    left_out = {MOVED[name][0] for name in LEFT_OUT}
    titles = {one.metric: (one.title, one) for one in predicted if one.metric in known}
    found = {name: TestedSignal(name, title, known[name], True, one) for name, (title, one) in titles.items()}
    for name, title in watched_signals(levers):
        found.setdefault(name, TestedSignal(name, title, known[name], True))
    for name, title in watched_signals(()):
        found.setdefault(name, TestedSignal(name, title, known[name], False))
    return [one for one in found.values() if one.name not in left_out and one.signal.better != "neither"]


def decide(effects: Sequence[ProofEffect], unlike: str, last: bool) -> tuple[ProofVerdict, str] | None:
    """The answer and its reason; None while more blocks may change it.

    unlike: why the load cannot be compared, empty where it can. last: there is no more time.
    """
    if unlike:
        return ("undecided", f"the load is not comparable: {unlike}") if last else None
    deciding = [one for one in effects if one.decides]
    if verdict := _settled(deciding):
        return verdict, ""
    if not last:
        return None
    unclear = [one for one in deciding if one.verdict == "open"]
    if not deciding or len(unclear) == len(deciding):
        return "undecided", _why_open(unclear)
    return "undecided", f"more time is needed for a verdict on {' and '.join(one.title for one in unclear)}"


def _settled(deciding: Sequence[ProofEffect]) -> ProofVerdict | None:
    verdicts = {one.verdict for one in deciding}
    if "worse" in verdicts:
        fewer = any(one.metric == THROUGHPUT and one.verdict == "worse" for one in deciding)
        return "in part" if "better" in verdicts and not fewer else "worse"
    if "better" in verdicts and all(one.not_worse for one in deciding):
        promised = [one for one in deciding if one.predicted is not None]
        if promised and not all(_reached(one) for one in promised):
            return "in part"
        return "worked"
    return "no effect" if verdicts == {"same"} else None


def _why_open(unclear: Sequence[ProofEffect]) -> str:
    """Of signals that were measured on both sides, if there is one: more time decides those."""
    measured = [one.title for one in unclear if not one.note]
    if measured:
        return f"the blocks vary too much for a verdict on {' and '.join(measured)}; give more time with --for"
    notes = list(dict.fromkeys(one.note for one in unclear))
    if notes:
        return "; ".join(f"{' and '.join(o.title for o in unclear if o.note == note)}: {note}" for note in notes)
    return "no signal has values"


def _reached(effect: ProofEffect) -> bool:
    told = effect.predicted
    if told is None or effect.after is None or effect.before is None or told.to == told.from_:
        return True
    return (effect.after - effect.before) / (told.to - told.from_) >= REACHED


def _verdict(interval: RatioInterval | None, signal: Signal) -> SignalVerdict:
    if interval is None:
        return "open"
    fell, rose = interval.high < 1 - NOTICEABLE, interval.low > 1 + NOTICEABLE
    if fell or rose:
        return "better" if fell == (signal.better == "lower") else "worse"
    return "same" if interval.low > 1 / (1 + ALIKE) and interval.high < 1 + ALIKE else "open"


def _not_worse(interval: RatioInterval | None, signal: Signal) -> bool:
    if interval is None:
        return False
    return interval.high < 1 + ALIKE if signal.better == "lower" else interval.low > 1 / (1 + ALIKE)


def conclusion(verdict: ProofVerdict, reason: str, effects: Sequence[ProofEffect]) -> str:
    """One sentence, or two, that can be read aloud."""
    moved = {
        word: [f"{one.title} {one.text}" for one in effects if one.verdict == word and (one.decides or word == "worse")]
        for word in ("better", "worse")
    }
    better, worse = ("; ".join(moved[word]) for word in ("better", "worse"))
    cost = f" At the cost of {worse}." if worse else ""
    if verdict == "worked":
        return f"The change worked: {better}.{cost}"
    if verdict == "in part":
        return f"The change worked in part: {better or 'less than half of the prediction'}.{cost}"
    if verdict == "no effect":
        return "The change has no effect: every signal stayed within 25 %."
    if verdict == "worse":
        return f"The change made it worse: {reason or worse}."
    return f"Undecided: {reason}."
