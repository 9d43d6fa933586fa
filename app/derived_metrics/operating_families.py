"""Where engines stand and what binds them, as families: computed of what the agent saw in the last day.

PromQL can not fit a curve. So steps of each engine are kept in memory, and now and then one engine's curve is fitted
anew: one engine a cycle at most, and each once a minute at most. After a restart the steps come from history.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from kvitals.agent.gauge_writer import GaugeRows
from kvitals.diagnoser.binding import Binding, bindings
from kvitals.diagnoser.change_effect import latest_changes
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.operating_point import DRAWS as FULL_DRAWS
from kvitals.diagnoser.operating_point import OperatingPoint, operating_point
from kvitals.diagnoser.steps import (
    OBJECTIVES,
    Ask,
    Steps,
    gather,
    join_steps,
    objectives,
    row_gap,
    step_of,
    steps_after,
    whole_steps,
)
from kvitals.rules.model import SCOPES
from kvitals.series import slices
from kvitals.series.promql import Expr, PromQLError, QueryLimits, Series, evaluate_range
from kvitals.series.slices import complete
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, SeriesSource
from kvitals.series.window import Window

GROUP = "operating point"
KEPT_SECONDS = 86400.0
BINDING_EVERY, BINDING_SECONDS = 15.0, 60.0
LOOK_SECONDS = 300.0
"""Of rows by which it is known how far they are apart, at a recording's end."""
STEPS_EVERY = 60.0
LATE_SECONDS = 2.0
"""What is not there by then is not waited for."""
DRAWS = 60
MAX_ENGINES = 64
"""Of which steps are kept; of more the agent tells no operating point, `kvitals knee` does."""
PIECE_SECONDS = 1800.0
"""Of history that is read at once: a day of many series takes 300 MB and more."""
_LIMITS = QueryLimits(samples=10_000_000, seconds=60.0)
_PLACE = ("cluster", "pool", "node", "engine")


class Operating:
    """Writes the families of rules/signals/operating_point.yaml."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._rows = GaugeRows(window, GROUP)
        self._steps: dict[Labels, Steps] = {}
        self._changed: dict[Labels, float] = {}  # when an engine first had the configuration that it has
        self._points: dict[Labels, OperatingPoint] = {}
        self._bindings: list[Binding] = []
        self._due: deque[Labels] = deque()
        self._seconds = 0.0  # that a step is long; 0: not known yet
        self._until = 0.0  # the end of the last step
        self._bound_at = self._looked_at = float("-inf")
        self._past: list[Steps] = []  # from history, to be taken in
        self._past_changed: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def cycle(self, at: float) -> None:
        """Take in what is new and say what is known, at seconds since the epoch. Never raises for want of data."""
        complete(self.cycle_steps(at))

    def cycle_steps(self, at: float) -> slices.Steps[None]:
        """The same in steps."""
        row = yield partial(self._computed, at)
        if row is not None:
            self._rows.write(at, row)

    def _computed(self, at: float) -> dict[Labels, float] | None:
        """The row of this moment; None where there is nothing new to say. Writes nothing into the window."""
        again = 0 <= at - self._bound_at < BINDING_EVERY
        if again and not self._due:
            return None
        ask = ask_source(self._window)
        try:
            if not again:
                self._bound_at = at
                gap = row_gap(self._window, at - BINDING_SECONDS, at)
                self._bindings = bindings(ask, at - BINDING_SECONDS, at, gap) if gap else []
                if gap and not 0 <= at - self._looked_at < STEPS_EVERY:
                    self._looked_at = at
                    self._look(ask, at, gap)
            self._fit(ask, at)
        except PromQLError:  # the machine stood still; what was said stays for a while, and the next cycle comes
            return None
        return dict(self._series(at))

    def finish(self, at: float) -> None:
        """A recording ends at `at`: take in every step of it and fit every curve at once, as `kvitals knee` does.

        Raises PromQLError.
        """
        ask, gap = ask_source(self._window), row_gap(self._window, at - LOOK_SECONDS, at)
        if gap is None:
            return
        self._bound_at = self._looked_at = at
        self._bindings = bindings(ask, at - BINDING_SECONDS, at, gap)
        self._look(ask, at, gap, late=0.0)
        while self._due:
            self._fit(ask, at, FULL_DRAWS)
        self._rows.write(at, dict(self._series(at)))

    def take_past(self, past: PastSteps) -> None:
        """Have what history has of the last day taken in with the next look. From any thread."""
        with self._lock:
            self._past, self._past_changed = past.steps, past.changed

    def _look(self, ask: Ask, at: float, gap: float, late: float = LATE_SECONDS) -> None:
        """Add the steps that ended since the last look. late: seconds in which rows may still come."""
        seconds = step_of(gap)
        if seconds != self._seconds:  # rows are another distance apart: steps of both do not go together
            self._seconds, self._until, self._steps = seconds, 0.0, {}
        oldest, last = whole_steps(at - self._window.retention, at - late, seconds)
        start = max(self._until, oldest + 2 * seconds)
        if last <= start:
            return
        for one in gather(ask, start, last, seconds):
            self._add(one, last)
        recent = _changed(ask, max(start - seconds, oldest), last, seconds)
        self._until = last
        with self._lock:
            past, self._past = self._past, []
            earlier, self._past_changed = self._past_changed, {}
        for entity, since in (*earlier.items(), *recent.items()):
            self._changed[entity] = max(since, self._changed.get(entity, since))
        for one in past:
            known = self._steps.get(one.entity)
            if one.step == seconds and (known is not None or len(self._steps) < MAX_ENGINES):
                self._steps[one.entity] = join_steps(one, known, last - KEPT_SECONDS) if known is not None else one
        self._due = deque(self._steps)

    def _add(self, one: Steps, last: float) -> None:
        known = self._steps.get(one.entity)
        if known is not None:
            self._steps[one.entity] = join_steps(known, one, last - KEPT_SECONDS)
        elif len(self._steps) < MAX_ENGINES:
            self._steps[one.entity] = one

    def _fit(self, ask: Ask, at: float, draws: int = DRAWS) -> None:
        """Fit the next engine's curve."""
        if not self._due:
            return
        entity = self._due.popleft()
        steps = self._steps.get(entity)
        if steps is None or at - steps.times[-1] > KEPT_SECONDS:
            self._steps.pop(entity, None)
            self._points.pop(entity, None)
            self._changed.pop(entity, None)
            return
        if entity in self._changed:  # an engine with other settings has another curve
            steps = steps_after(steps, self._changed[entity])
        told = objectives(ask, at).get(entity, {})
        self._points[entity] = operating_point(steps, {k: v for k, v in told.items() if k in OBJECTIVES}, draws)

    def _series(self, at: float) -> Iterator[tuple[Labels, float]]:
        place = self._places(at)
        for one in self._bindings:
            for constraint, share in one.shares.items():
                yield _named("kvitals_binding_share", place, one.entity, constraint=constraint), share
        for entity, point in self._points.items():
            if entity in place:
                for name, more, value in _told(point):
                    yield _named(name, place, entity, **more), value

    def _places(self, at: float) -> dict[Labels, Labels]:
        """The labels of each engine's target, as its other families have them."""
        rows = self._window.newest([Matcher(METRIC_NAME, MatchOp.EQ, ENTITIES)], at - BINDING_SECONDS, at)
        return {labels.keep(SCOPES["engine"]): labels.keep(_PLACE) for row in rows for labels in row.labels}


@dataclass(frozen=True)
class PastSteps:
    """What history has of the last day. changed: when an engine first had the configuration that it has."""

    steps: list[Steps]
    changed: dict[Labels, float]


def past_steps(history: SeriesSource, until: float, gap: float) -> PastSteps:
    """Read the last day from history, which takes seconds. gap: seconds between its rows. Raises HistoryError,
    PromQLError."""
    seconds = step_of(gap)
    last = float(np.floor(until / seconds) * seconds)
    found: dict[Labels, Steps] = {}
    changed: dict[Labels, float] = {}
    ask, piece = ask_source(history), max(PIECE_SECONDS // seconds, 1) * seconds
    start, end = whole_steps(last - KEPT_SECONDS, last, seconds)
    for begin in np.arange(start, end, piece):
        upto = min(begin + piece, end)
        for one in gather(ask, begin, upto, seconds):
            if (known := found.get(one.entity)) is not None:
                found[one.entity] = join_steps(known, one, start)
            elif len(found) < MAX_ENGINES:
                found[one.entity] = one
        changed |= _changed(ask, max(begin - seconds, start), upto, seconds)
    return PastSteps(list(found.values()), changed)


def _changed(ask: Ask, start: float, end: float, gap: float) -> dict[Labels, float]:
    """When each engine's configuration changed last, of engines where it did."""
    return {entity: change.first for entity, change in latest_changes(ask, start, end, gap).items()}


def ask_source(source: SeriesSource) -> Ask:
    """Questions that are answered from a source in memory or on disk."""

    def ask(expr: Expr, start: float, end: float, step: float) -> list[Series]:
        return evaluate_range(expr, source, start, end, step, limits=_LIMITS)

    return ask


def _named(name: str, place: Mapping[Labels, Labels], entity: Labels, **more: str) -> Labels:
    return place.get(entity, entity).with_(**{METRIC_NAME: name, **more})


def _told(point: OperatingPoint) -> Iterator[tuple[str, dict[str, str], float]]:
    """What is known of an operating point, as families. What is not known has none."""
    if point.knee is not None:
        yield "kvitals_knee_concurrency", {}, point.knee.concurrency.value
        yield "kvitals_knee_error_ratio", {}, point.knee.concurrency.error
        if point.unit == "tokens":
            yield "kvitals_knee_most_tokens_per_second", {}, point.knee.most
    if point.headroom is not None:
        yield "kvitals_knee_headroom_ratio", {}, point.headroom
    for limit in point.limits:
        slo = {"slo": limit.objective}
        if limit.concurrency is not None:
            yield "kvitals_c_max", slo, limit.concurrency.value
        for name, value in (
            ("kvitals_c_max_held", limit.holds_to),
            ("kvitals_usable_rate_per_second", limit.requests),
            ("kvitals_usable_tokens_per_second", limit.tokens),
        ):
            if value is not None:
                yield name, slo, value
    if point.littles_gap is not None:
        yield "kvitals_littles_gap_ratio", {}, point.littles_gap
    if point.burst is not None:
        yield "kvitals_burst_ratio", {}, point.burst
