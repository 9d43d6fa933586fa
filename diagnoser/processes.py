"""Since when the process of an engine is seen: a window holds nothing of the process before a restart.

A window that reaches back before a restart has the old process's waiting times, cache and load beside those of the new
one: with other settings it would state of the new process what was true of the old one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES, Signal
from kvitals.series.promql import Expr, Series
from kvitals.series.types import Floats, Labels

RESTARTS = "restarts"
"""The signal of an engine's restarts in the slow window."""
WENT_BACK = "process_went_back"
"""The signal of pages that are of several processes in turn: there is no one process to be seen since a moment."""
LENGTHS = (55.0, 50.0, 45.0, 40.0, 35.0, 30.0, 25.0, 20.0, 15.0, 10.0, 5.0)
"""Seconds of the windows since a restart. The longest that fits is taken: what the new process did in the seconds that
are left out would not count. Each is evaluated for itself: engines that restarted at different times cost more."""
STEP_SECONDS = 1.0
"""Between two moments at which restarts are counted, at least."""

_BY = ", ".join(SCOPES["engine"])
SIGNS: tuple[tuple[str, Callable[[Floats], NDArray[np.bool_]]], ...] = (
    (f"max by ({_BY}) (kvitals_process_start_time_seconds)", lambda change: change != 0),
    (f"sum by ({_BY}) (kvitals_generation_tokens_total)", lambda change: change < 0),
    (f"max by ({_BY}) (kvitals_runtime_uptime_seconds)", lambda change: change < 0),
)
"""By which change of what a new process is known; of an engine, the first of these that it has, as in `restarts`."""


def is_of_process(signal: Signal) -> bool:
    """Whether a restart begins a signal anew: what the fast window shows of one engine."""
    return signal.scope == "engine" and signal.window == "fast" and "$window" in signal.expr


def process_begins(
    restarted: Iterable[Labels], course: Callable[[Expr, float], Sequence[Series]], sample_seconds: float
) -> dict[Labels, float]:
    """Engine -> the first moment at which its present process was seen, of those that restarted in sight.

    course: an expression at moments that far apart. Seconds since the epoch. A count of restarts over a window would
    not rise with a new one if an old one left the window at the same moment.
    """
    step = math.ceil(max(STEP_SECONDS, sample_seconds) * 1000) / 1000
    engines, known = set(restarted), set[Labels]()
    begins: dict[Labels, float] = {}
    for text, is_new in SIGNS if engines else ():
        for series in course(expression(text), step):
            if series.labels in known or series.labels not in engines:
                continue
            known.add(series.labels)
            if (news := np.flatnonzero(is_new(np.diff(series.values)))).size:
                begins[series.labels] = float(series.times[news[-1] + 1])
    return begins


def window_since(seconds: float, fast: float) -> float | None:
    """The length of the window that is judged so many seconds after a process was first seen; 0 where none fits, None
    where the fast window fits."""
    if seconds >= fast:
        return None
    return next((length for length in LENGTHS if length <= seconds), 0.0)
