"""The scaling-signal audit of a running agent: once an hour, over the last day of its history, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from kvitals.agent.gauge_writer import GaugeRows
from kvitals.app.derived_metrics.operating_families import ask_source
from kvitals.diagnoser.scaling_lead import Audit, Ready, audits, starts
from kvitals.diagnoser.steps import Ask, objectives, pools, step_of
from kvitals.series.types import METRIC_NAME, Labels, SeriesSource
from kvitals.series.window import Window

GROUP = "scaling audit"
EVERY_SECONDS, ROW_SECONDS = 3600.0, 60.0
SEEN_SECONDS = 86400.0
TTFT = "ttft_p99"


class Auditing:
    """Writes the families of rules/signals/scaling_audit.yaml."""

    def __init__(self, window: Window, audit: Callable[[float], dict[Labels, float] | None]) -> None:
        """audit: the families of an audit of the day before a moment, as `audited_day` has them; None where it came to
        nothing. It blocks, and is called in a thread."""
        self._find = audit
        self._rows = GaugeRows(window, GROUP)
        self._began = self._written = float("-inf")
        self._found: dict[Labels, float] = {}
        self._thread: threading.Thread | None = None

    def cycle(self, now: float) -> None:
        """Begin an audit where one is due, and say what the last one found."""
        idle = self._thread is None or not self._thread.is_alive()
        if idle and not 0 <= now - self._began < EVERY_SECONDS:
            self._began = now
            self._thread = threading.Thread(target=self._audit, args=(now,), daemon=True)
            self._thread.start()
        if not 0 <= now - self._written < ROW_SECONDS:
            self._written = now
            self._rows.write(now, self._found)

    def _audit(self, now: float) -> None:
        found = self._find(now)
        if found is not None:  # else what the last one found stays; the next hour comes
            self._found = found


def audited_day(history: SeriesSource, now: float, gap: float, general: float) -> dict[Labels, float]:
    """What an audit of the day before `now` found, as families. gap: seconds between rows of history. general:
    objective of first tokens where none is told, seconds. Raises HistoryError, PromQLError."""
    step = step_of(gap)
    end = float(np.floor(now / step) * step)
    return dict(audit_families(ask_source(history), end - SEEN_SECONDS, end, step, general))


def audit_families(ask: Ask, start: float, end: float, step: float, general: float) -> Iterator[tuple[Labels, float]]:
    """What an audit found, as families."""
    pool_of = pools(ask, end)
    for one in audits(ask, start, end, step, pool_objectives(objectives(ask, end), pool_of), general):
        yield from _leads(one)
    latest = {one.entity: one for one in starts(ask, start, end)}
    for entity, ready in latest.items():
        yield from _ready(Labels({**entity, **pool_of.get(entity, {})}), ready)


def pool_objectives(told: dict[Labels, dict[str, float]], pool_of: dict[Labels, Labels]) -> dict[Labels, float]:
    """The tightest objective of first tokens of the engines of each pool."""
    found: dict[Labels, float] = {}
    for engine, of in told.items():
        pool = pool_of.get(engine, engine.keep(("cluster",)))
        if TTFT in of:
            found[pool] = min(of[TTFT], found.get(pool, of[TTFT]))
    return found


def _leads(audit: Audit) -> Iterator[tuple[Labels, float]]:
    for lead in audit.leads:
        values = {
            "kvitals_scaling_lead_seconds": lead.median,
            "kvitals_scaling_caught_ratio": lead.caught / len(audit.misses),
            "kvitals_scaling_false_alarms_per_hour": lead.false_alarms,
        }
        for name, value in values.items():
            yield audit.entity.with_(**{METRIC_NAME: name, "signal": lead.signal}), value


def _ready(place: Labels, ready: Ready) -> Iterator[tuple[Labels, float]]:
    phases = {"load": ready.load}
    if ready.first_token is not None:
        phases |= {"first_token": ready.first_token, "total": ready.load + ready.first_token}
    for phase, seconds in phases.items():
        yield place.with_(**{METRIC_NAME: "kvitals_ready_seconds", "phase": phase}), seconds
