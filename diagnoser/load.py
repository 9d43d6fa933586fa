"""How many requests an engine had at a time in each step, and in which steps that was one load and not two."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvitals.diagnoser.steps import STEP_ROWS, Steps
from kvitals.series.types import Floats

AGREES = 1.6
"""A factor: further apart than this, residence is not that of the requests which gauges count, but counted twice, say.
Gauges are off themselves: vLLM's leave out what its server does before and after a batch, 7 to 14 % of N in a sweep of
the lab and a third at one request at a time."""
ENOUGH_REQUESTS = 100.0
STEADY = 0.2
"""How far the load of the steps beside it may be off that of a step."""
CHANCE = 2.0
"""Standard deviations of a step's load by which chance alone may part two."""


def loads(steps: Steps) -> Floats:
    """Requests at a time in each step; NaN where it is not known."""
    return steps.residence if by_residence(steps) else steps.concurrency


def by_residence(steps: Steps) -> bool:
    """Whether load is told by Little's law, as the residence that ended a second.

    That is exact but for requests that lie across a step's ends, so it is closer where requests are short against the
    distance of rows. Gauges are seen once a row: of requests that live for less they are a few draws of what there was.
    """
    mean, gap = residence(steps), littles_gap(steps)
    agree = gap is not None and 1 / AGREES <= 1 + gap <= AGREES
    return agree and mean is not None and mean <= steps.step / STEP_ROWS


def residence(steps: Steps) -> float | None:
    """Mean seconds that requests spent in the engine."""
    known = np.isfinite(steps.residence) & np.isfinite(steps.requests)
    requests = float(steps.requests[known].sum())
    return float(steps.residence[known].sum()) / requests if requests > 0 else None


def littles_gap(steps: Steps) -> float | None:
    """Little, A Proof for the Queuing Formula L = λW, Operations Research 1961: requests in the engine are their rate
    times their mean residence. Both over all steps in which both are known."""
    known = np.isfinite(steps.residence) & np.isfinite(steps.concurrency)
    measured = float(steps.concurrency[known].sum())
    if float(np.nansum(steps.requests[known])) * steps.step < ENOUGH_REQUESTS or measured <= 0:
        return None
    return float(steps.residence[known].sum()) / measured - 1


def steady(load: Floats, steps: Steps) -> npt.NDArray[np.bool_]:
    """In which steps load was like that of the steps before and after it, as far as those are there.

    A step in which load jumped is of two loads: its slow requests are of the larger one, its mean load lies between.
    Off may be a share of the load, or what chance explains: of requests that come independently of each other, and
    stay W seconds of a step of T, the mean load N has a variance of N min(1, 2 W / T).
    """
    mean = residence(steps)
    spread = 1.0 if mean is None else min(1.0, 2 * mean / steps.step)
    if not by_residence(steps):
        spread = max(spread, 1 / STEP_ROWS)  # of as many draws
    off = CHANCE * np.sqrt(np.maximum(load, 0.0) * spread)
    beside = np.diff(steps.times, prepend=-np.inf) < 1.5 * steps.step
    with np.errstate(invalid="ignore"):
        jumped = np.abs(np.diff(load, prepend=np.nan)) > np.maximum(STEADY * np.fmax(load, np.roll(load, 1)), off)
    jumped &= beside
    kept: npt.NDArray[np.bool_] = ~(jumped | np.append(jumped[1:], False))
    return kept
