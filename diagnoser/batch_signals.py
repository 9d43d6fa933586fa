"""Signals of many moments at once, for whoever has all rows before the first of these moments is judged.

A query over a stretch of time costs little more than at one moment of it, and judging a recording asks at hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from kvitals.diagnoser.processes import RESTARTS
from kvitals.diagnoser.signals import EvaluationSpan, Signals, SignalValues, with_enough_samples
from kvitals.rules.compiled_signal import CompiledSignal, WindowDurations, with_windows
from kvitals.rules.loader import Knowledge, signal_names
from kvitals.rules.model import SCOPES
from kvitals.series.promql import Expr, Moment, PromQLError, evaluate_range
from kvitals.series.slices import Steps
from kvitals.series.types import Labels, SeriesSource

SHARED_WINDOWS = 32
"""Windows whose compiled signals recordings share, at 0.4 MB each. The first minute of a recording has twelve."""


class Ahead(Signals):
    """Signals that may be evaluated before they are observed; what was not foreseen is evaluated as it comes."""

    def __init__(self, knowledge: Knowledge, families: SeriesSource) -> None:
        super().__init__(knowledge, families)
        self._foreseen: dict[EvaluationSpan, dict[str, SignalValues]] = {}
        self._begins: dict[EvaluationSpan, Mapping[Labels, float]] = {}  # as `begins` is at each
        self._shares = False  # compiled signals, with other recordings

    def foresee(self, spans: Sequence[EvaluationSpan]) -> None:
        """Evaluate the signals of moments to come: as far from one another each, over windows of the same length.

        The families' rows up to the last of them are in. Each is to be observed, in this order, before others are.
        """
        self._foreseen, self._begins, self._shares = {}, {}, True
        if len(spans) < 2 or not _alike(spans):
            return
        (group, first), (_, second) = self._stages
        try:
            courses = {name: self._course(name, spans) for name in first}
        except PromQLError:
            return  # at single moments less is asked at once; what is wrong there too is said there
        for i, span in enumerate(spans):
            self.known = {name: courses[name][i] for name in first}
            if RESTARTS in first:
                self.now = Moment(self.source, span.at)
                self._keep_to_process(self.known, span)
            self._begins[span] = self.begins
            self._remember(group, first, span.at)
        for name in second:
            if not self._reads_its_like(name, spans[0]):
                with suppress(PromQLError):
                    courses[name] = self._course(name, spans)
        self._foreseen = {span: {name: of[i] for name, of in courses.items()} for i, span in enumerate(spans)}

    def observe_steps(self, span: EvaluationSpan) -> Steps[dict[str, SignalValues]]:
        known = self._foreseen.pop(span, None)
        if known is None:
            return (yield from super().observe_steps(span))
        self.known, self.begins = known, self._begins.pop(span)
        compiled = self._compile(span)
        group, names = self._stages[-1]
        self.now = Moment(self.source, span.at)
        for name in names:
            if name not in known:
                known[name] = self._evaluate(name, compiled)
        self._remember(group, names, span.at)
        self.now = Moment(self.source, span.at)
        return known

    def _with_windows(self, windows: WindowDurations) -> Mapping[str, CompiledSignal]:
        return _compiled(_Templates(self._templates), windows) if self._shares else super()._with_windows(windows)

    def _course(self, name: str, spans: Sequence[EvaluationSpan]) -> list[SignalValues]:
        """What is known of a signal at each moment. Raises PromQLError."""
        signal, compiled = self.knowledge.signals[name], self._compile(spans[0])[name]
        scope = SCOPES[signal.scope]
        last = spans[-1].at
        possible = all(any(self.source.may_find(one, last) for one in either) for either in compiled.reads)
        values = self._values(compiled.expr, scope, spans) if possible else [{} for _ in spans]
        if compiled.samples is None:
            return [SignalValues(each) for each in values]
        counts = self._values(compiled.samples, scope, spans)
        return [with_enough_samples(signal, *each) for each in zip(values, counts, strict=True)]

    def _values(self, expr: Expr, scope: tuple[str, ...], spans: Sequence[EvaluationSpan]) -> list[dict[Labels, float]]:
        """An expression's values by entity, at each moment."""
        found: list[dict[Labels, float]] = [{} for _ in spans]
        start, step = spans[0].at, spans[1].at - spans[0].at
        for series in evaluate_range(expr, self.source, start, spans[-1].at, step):
            entity = self.entity(series.labels, scope)
            places = np.rint((series.times - start) / step).astype(int).tolist()
            for place, value in zip(places, series.values.tolist(), strict=True):
                found[place][entity] = value
        return found

    def _reads_its_like(self, name: str, span: EvaluationSpan) -> bool:
        """Whether it is made of signals that are themselves made of signals: of what was remembered a moment before."""
        return any(self._readers.intersection(signal_names(expr)) for expr in self._compile(span)[name].exprs)


class _Templates:
    """Templates of signals as a key: the same objects, which this keeps, are equal."""

    def __init__(self, templates: Mapping[str, CompiledSignal]) -> None:
        self.templates = templates
        self._ids = tuple(id(part) for one in templates.values() for part in (one.signal, one.expr, one.samples))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Templates) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash(self._ids)


@lru_cache(maxsize=SHARED_WINDOWS)
def _compiled(key: _Templates, windows: WindowDurations) -> Mapping[str, CompiledSignal]:
    """Signals for these windows, compiled once for all recordings of a process."""
    return with_windows(key.templates, windows)


def _alike(spans: Sequence[EvaluationSpan]) -> bool:
    """Whether a range query meets all of them: to the millisecond, as PromQL counts."""
    first, second = (round(span.at * 1000) for span in spans[:2])
    due = range(first, first + (second - first) * len(spans), second - first) if second > first else ()
    alike = {(span.fast, span.slow, span.cold) for span in spans}
    return len(alike) == 1 and [round(span.at * 1000) for span in spans] == list(due)
