"""The signals of a case, evaluated for all of its moments in one go, which takes a fraction of one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvitals.diagnoser.signals import EvaluationSpan, Signals, SignalValues, with_enough_samples
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import SCOPES
from kvitals.series.promql import Expr, Moment, evaluate_range
from kvitals.series.promql.check import type_of
from kvitals.series.slices import Steps
from kvitals.series.types import Labels, SeriesSource


class PlayedSignals(Signals):
    """As `Signals`, at `spans` that are `interval` seconds apart. Rules are judged on them one after the other."""

    def __init__(
        self, knowledge: Knowledge, source: SeriesSource, spans: Sequence[EvaluationSpan], interval: float
    ) -> None:
        super().__init__(knowledge, source)
        self._spans, self._interval = spans, interval
        self.moments: list[dict[str, SignalValues]] = [{} for _ in spans]
        self._next = 0
        compiled = self._compile(spans[0])
        for group, names in self._stages:
            for name in names:
                of = compiled[name]
                possible = all(any(self.source.has(metric) for metric in either) for either in of.needs)
                signal = knowledge.signals[name]
                scope = SCOPES[signal.scope]
                values = self._course(of.expr if possible else None, scope)
                counts = None if of.samples is None else self._course(of.samples, scope)
                for i, known in enumerate(self.moments):
                    known[name] = with_enough_samples(signal, values[i], counts[i] if counts is not None else None)
            for span, known in zip(spans, self.moments, strict=True):
                self.known = known
                self._remember(group, names, span.at)

    def observe_steps(self, span: EvaluationSpan) -> Steps[dict[str, SignalValues]]:
        yield None
        assert span == self._spans[self._next]
        self.known = self.moments[self._next]
        self._next += 1
        self.now = Moment(self.source, span.at)
        return self.known

    def _course(self, expr: Expr | None, scope: Sequence[str]) -> list[dict[Labels, float]]:
        """The values by entity at each moment. A scalar has no entity."""
        found: list[dict[Labels, float]] = [{} for _ in self._spans]
        if expr is None or type_of(expr) == "scalar":
            return found
        start, end = self._spans[0].at, self._spans[-1].at
        for series in evaluate_range(expr, self.source, start, end, self._interval):
            steps = np.rint((series.times - start) / self._interval).astype(int).tolist()
            for step, value in zip(steps, series.values.tolist(), strict=True):
                found[step][series.labels.keep(scope)] = value
        return found
