"""Two engines, or two moments of recordings, signal by signal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.live import Collector, is_agent
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.diagnoser.entities import entity_titles
from kvitals.diagnoser.text import plain, render
from kvitals.rules.finding import Triage
from kvitals.rules.model import Signal
from kvitals.series.types import Labels

OBJECTIVES = ("ttft_p99_seconds", "itl_p99_seconds")
"""Signals that come first, whatever their difference."""

LEAST = math.log(1.1)
"""A difference of a tenth, which a row needs."""

ABOUT = 1.05
"""Two values that are closer are called about the same."""


Values = Mapping[str, Mapping[str, float]]
"""Signal -> entity -> value. An entity is called by its engine, or what else it is."""

KIND = ""
"""The one entity of a signal, whose name does not matter: the row names the kind of thing instead."""


@dataclass(frozen=True)
class ComparedSource:
    name: str
    document: Triage
    values: Values
    seen: float  # seconds that were observed up to the moment of the verdict
    slow: float  # seconds of the slow window, at most

    def window(self, signal: Signal) -> str:
        """The time that a signal is calculated over, as far as it was observed; empty where it has no window."""
        if "$window" not in signal.expr:
            return ""
        longest = self.document.window.seconds if signal.window == "fast" else self.slow
        return render(min(longest, self.seen), "seconds")


@dataclass(frozen=True)
class ComparedSignal:
    """One signal of one entity on both sides, rendered with its unit. how: how B differs from A, in words."""

    signal: str
    title: str
    of: str
    a: str
    b: str
    how: str
    window: str


@dataclass(frozen=True)
class SignalPair:
    """What a signal of an entity is on both sides; None where it is unknown."""

    signal: str
    of: str
    a: float | None
    b: float | None

    @property
    def distance(self) -> float:
        """How far they are apart: the logarithm of their ratio; infinite where there is none."""
        if self.a is None or self.b is None or self.a == self.b:
            return 0.0
        return abs(math.log(self.b / self.a)) if _have_ratio(self.a, self.b) else math.inf


def compare_recording(path: Path, setup: Setup, moments: Moments, name: str = "") -> ComparedSource:
    """A recording at one moment, or over a window. Raises CaptureError, RecordingError."""
    first, _ = span_of(path)
    judged = judge_recording(path, setup, moments)
    return _compared(name or str(path), judged.document, judged.pipeline, judged.document.window.end - first)


async def compare_live(url: str, setup: Setup, seconds: float) -> ComparedSource:
    """A live engine, observed for so many seconds. Raises NoEngineError, and UsageError for an agent."""
    if await is_agent(url):
        raise UsageError(f"{url} is a kvitals agent, but compare reads engines and recordings: name the engines")
    async with Collector(setup, [url]) as collector:
        async for _ in collector.collect(seconds):
            pass
        return _compared(url, collector.document(), collector.pipeline, seconds)


def compared_signals(
    a: ComparedSource, b: ComparedSource, signals: Mapping[str, Signal], everything: bool = False
) -> list[ComparedSignal]:
    """Objectives, the signals that the causes of either side name, then the largest differences."""
    sides = (a, b)
    measured = [one.signal for side in sides for cause in side.document.leading_causes for one in cause.measures]
    first = {name: place for place, name in enumerate(dict.fromkeys([*OBJECTIVES, *measured]))}
    pairs = [
        one
        for one in differences(a.values, b.values)
        if everything or one.signal in OBJECTIVES or one.distance >= LEAST or None in (one.a, one.b)
    ]
    pairs.sort(key=lambda one: first.get(one.signal, len(first)))
    rows: list[ComparedSignal] = []
    for one in pairs:
        signal = signals[one.signal]
        texts = render(one.a, signal.unit), render(one.b, signal.unit)
        if everything or texts[0] != texts[1]:
            how = "" if signal.unit == "bool" else change(one.a, one.b)
            windows = " / ".join(dict.fromkeys(side.window(signal) for side in sides))
            rows.append(ComparedSignal(one.signal, plain(one.signal), one.of or signal.scope, *texts, how, windows))
    return rows


def differences(a: Values, b: Values) -> list[SignalPair]:
    """Each signal of each entity of either side, largest ratio first, those on one side only last.

    Entities of the same name are the same. Where a signal has one entity on each side, these are compared whatever
    their names are: two engines. Others that have no name in common are compared by their means, and named so.
    """
    pairs = [pair for name in sorted(a.keys() | b.keys()) for pair in _paired(name, a.get(name, {}), b.get(name, {}))]
    pairs.sort(key=lambda one: (None in (one.a, one.b), -one.distance))
    return pairs


def _paired(name: str, a: Mapping[str, float], b: Mapping[str, float]) -> Iterator[SignalPair]:
    if max(len(a), len(b)) == 1:
        yield SignalPair(name, KIND, next(iter(a.values()), None), next(iter(b.values()), None))
    elif a and b and not a.keys() & b.keys():
        sides = [sum(values.values()) / len(values) for values in (a, b)]
        yield SignalPair(name, f"mean of {len(a)} and {len(b)}", sides[0], sides[1])
    else:
        for entity in sorted(a.keys() | b.keys()):
            yield SignalPair(name, entity, a.get(entity), b.get(entity))


def _is_zero(value: float) -> bool:
    """A difference of equal numbers is what rounding leaves of it."""
    return abs(value) < 1e-12


def _have_ratio(a: float, b: float) -> bool:
    return a * b > 0 and math.isfinite(a) and math.isfinite(b) and not _is_zero(a) and not _is_zero(b)


def change(a: float | None, b: float | None) -> str:
    """How the second value differs from the first, in words; empty where that says nothing."""
    if a is None or b is None:
        return "known in B only" if a is None else "known in A only"
    if _is_zero(a) != _is_zero(b):
        return "zero" if _is_zero(b) else "not zero"
    if not _have_ratio(a, b):
        return "of the other sign" if a * b < 0 else ""
    times = max(b / a, a / b)
    if times < ABOUT:
        return "about A"
    told = f"{times:.1f}" if times < 100 else f"{times:,.0f}"
    return f"{told} times A" if b / a >= 1 else f"A / {told}"


def _compared(name: str, document: Triage, pipeline: Pipeline, seen: float) -> ComparedSource:
    assert pipeline.span is not None
    return ComparedSource(name, document, _values(pipeline, pipeline.setup.knowledge.signals), seen, pipeline.span.slow)


def _values(pipeline: Pipeline, signals: Mapping[str, Signal]) -> Values:
    known = pipeline.judge.signals.known
    return {name: _named(signals[name].scope, known[name].values) for name in known if known[name].values}


def _named(scope: str, values: Mapping[Labels, float]) -> dict[str, float]:
    titles = entity_titles(scope, values)
    return {titles[labels]: value for labels, value in values.items()}
