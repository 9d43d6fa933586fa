"""Two engines, or two moments of recordings, signal by signal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.live import Collector
from kvitals.app.sources.recording import Moments, judge_recording, span_of
from kvitals.diagnoser.text import plain, render
from kvitals.rules.finding import Triage
from kvitals.rules.model import Signal

OBJECTIVES = ("ttft_p99_seconds", "itl_p99_seconds")
"""Signals that come first, whatever their difference."""


@dataclass(frozen=True)
class ComparedSource:
    name: str
    document: Triage
    values: Mapping[str, float]  # signal -> value, of the one entity of its scope or the mean over several
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
    """One signal of both sides, rendered with its unit. how: how B differs from A, in words."""

    signal: str
    title: str
    scope: str
    a: str
    b: str
    how: str
    window: str


def compare_recording(path: Path, setup: Setup, at: float | None, name: str = "") -> ComparedSource:
    """A recording at one moment; None: its end. Raises CaptureError, RecordingError."""
    first, _ = span_of(path)
    judged = judge_recording(path, setup, Moments(at))
    return _compared(name or str(path), judged.document, judged.pipeline, judged.document.window.end - first)


async def compare_live(url: str, setup: Setup, seconds: float) -> ComparedSource:
    """A live engine, observed for so many seconds. Raises NoEngineError."""
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
    first = list(dict.fromkeys([*OBJECTIVES, *measured]))
    ranked = {row[0]: row for row in differences(a.values, b.values, everything)}
    ranked |= {row[0]: row for row in differences(a.values, b.values, True) if row[0] in OBJECTIVES}
    rows: list[ComparedSignal] = []
    for name, one, other in [ranked[key] for key in dict.fromkeys([*first, *ranked]) if key in ranked]:
        signal = signals[name]
        texts = render(one, signal.unit), render(other, signal.unit)
        if everything or texts[0] != texts[1]:
            how = "" if signal.unit == "bool" else change(one, other)
            windows = dict.fromkeys(side.window(signal) for side in sides)
            rows.append(ComparedSignal(name, plain(name), signal.scope, *texts, how, " / ".join(windows)))
    return rows


def differences(
    a: Mapping[str, float], b: Mapping[str, float], everything: bool
) -> list[tuple[str, float | None, float | None]]:
    """Signals that differ by a tenth or more (or all), largest ratio first, those on one side only last."""
    both = [n for n in a if n in b and (everything or _distance(a[n], b[n]) >= math.log(1.1))]
    both.sort(key=lambda n: -_distance(a[n], b[n]))
    return [(n, a.get(n), b.get(n)) for n in [*both, *sorted(a.keys() ^ b.keys())]]


def _distance(a: float, b: float) -> float:
    if a == b:
        return 0.0
    return abs(math.log(b / a)) if _have_ratio(a, b) else math.inf


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
        return "zero in B" if _is_zero(b) else "zero in A"
    if not _have_ratio(a, b):
        return "of the other sign" if a * b < 0 else ""
    times = max(b / a, a / b)
    told = f"{times:.1f}" if times < 100 else f"{times:,.0f}"
    return f"{told} times A" if b / a >= 1 else f"A / {told}"


def _compared(name: str, document: Triage, pipeline: Pipeline, seen: float) -> ComparedSource:
    assert pipeline.span is not None
    return ComparedSource(name, document, _values(pipeline), seen, pipeline.span.slow)


def _values(pipeline: Pipeline) -> dict[str, float]:
    """Each signal's mean over the entities that have it."""
    known = pipeline.judge.signals.known
    return {n: sum(k.values.values()) / len(k.values) for n, k in known.items() if k.values}
