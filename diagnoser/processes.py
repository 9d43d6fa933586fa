"""Since when the process of an engine is seen: a window holds nothing of the process before a restart.

A window that reaches back before a restart has the old process's waiting times, cache and load beside those of the new
one: with other settings it would state of the new process what was true of the old one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kvitals.rules.model import Signal
from kvitals.series.promql import Series
from kvitals.series.types import Labels

RESTARTS = "restarts"
"""The signal of an engine's restarts in the slow window."""
WENT_BACK = "process_went_back"
"""The signal of pages that are of several processes in turn: there is no one process to be seen since a moment."""
LENGTHS = (40.0, 20.0, 10.0, 5.0)
"""Seconds of the windows since a restart: few, as each is evaluated for itself. The longest that fits is taken."""
STEP_SECONDS = 1.0
"""Between two moments at which restarts are counted, at least."""


def is_of_process(signal: Signal) -> bool:
    """Whether a restart begins a signal anew: what the fast window shows of one engine."""
    return signal.scope == "engine" and signal.window == "fast" and "$window" in signal.expr


def process_begins(
    restarted: Iterable[Labels], course: Callable[[float], Sequence[Series]], sample_seconds: float
) -> dict[Labels, float]:
    """Engine -> the first moment at which its present process was seen, of those that restarted in sight.

    course: how many restarts the slow window counted at moments that far apart. Seconds since the epoch.
    """
    step = math.ceil(max(STEP_SECONDS, sample_seconds) * 1000) / 1000
    engines = set(restarted)
    begins: dict[Labels, float] = {}
    for series in course(step) if engines else ():
        rises = np.flatnonzero(np.diff(series.values) > 0)
        if rises.size and series.labels in engines:
            begins[series.labels] = float(series.times[rises[-1] + 1])
    return begins


def window_since(seconds: float, fast: float) -> float | None:
    """The length of the window that is judged so many seconds after a process was first seen; 0 where none fits, None
    where the fast window fits."""
    if seconds >= fast:
        return None
    return next((length for length in LENGTHS if length <= seconds), 0.0)
