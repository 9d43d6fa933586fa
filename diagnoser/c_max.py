"""The load at which too many requests are late: where the share of them that miss an objective passes what it allows.

A p99 objective allows one in a hundred. That share is a count over a count, exact where the objective is the bound of a
bucket, and shares of steps put together are the share of all of their requests; a mean of p99s is no p99 of anything,
and one bad step moves it by as much as its slowest requests were slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvitals.diagnoser.steps import Counts
from kvitals.series.types import Floats

Ints = npt.NDArray[np.intp]

MIN_OBSERVATIONS = 100
"""A hundredth of fewer is less than one request."""
ALIKE = 1.1
"""Steps whose loads are no further apart are put together as far as there are enough observations."""


@dataclass(frozen=True)
class Crossing:
    """below: the largest load at which the share held, above: the next one, at which it did not. at: between them."""

    below: float
    above: float
    at: float


def in_time(of: Counts, seconds: float) -> Floats:
    """Observations of each row that took `seconds` and less: linear inside of a bucket, none of the last one."""
    place = int(of.bounds.searchsorted(seconds * (1 - 1e-9)))
    lower = float(of.bounds[place - 1]) if place else 0.0
    before = of.counts[:, place - 1] if place else np.zeros(len(of.counts))
    if math.isinf(of.bounds[place]):
        return before
    inside: Floats = before + (of.counts[:, place] - before) * (seconds - lower) / (float(of.bounds[place]) - lower)
    return inside


def alike(load: Floats, observations: Floats) -> tuple[Ints, int]:
    """The group of each step, from the least load on, and how many groups: each has enough observations; what is left
    joins the last one."""
    order = np.argsort(load, kind="stable")
    rest = observations.sum()
    number = np.zeros(len(load), np.intp)
    current, inside, first = 0, 0.0, math.nan
    for place in order.tolist():
        if inside >= MIN_OBSERVATIONS and rest >= MIN_OBSERVATIONS and load[place] > first * ALIKE:
            current, inside = current + 1, 0.0
        if inside == 0:
            first = float(load[place])
        number[place] = current
        inside += observations[place]
        rest -= observations[place]
    return number, current + 1 if inside >= MIN_OBSERVATIONS else 0


def isotonic_fit(values: Floats, weights: Floats) -> Floats:
    """The closest values that nowhere fall: isotonic regression by pooling adjacent violators (Ayer et al., Annals of
    Mathematical Statistics 1955). A NaN is as the one before it."""
    blocks: list[list[float]] = []  # value, weight, how many
    for value, weight in zip(values.tolist(), np.maximum(weights, 1e-9).tolist(), strict=True):
        if math.isnan(value):
            value, weight = blocks[-1][0] if blocks else 0.0, 1e-9
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            last = blocks.pop()
            one = blocks[-1]
            total = one[1] + last[1]
            one[0], one[1], one[2] = (one[0] * one[1] + last[0] * last[1]) / total, total, one[2] + last[2]
    return np.repeat([b[0] for b in blocks], [int(b[2]) for b in blocks]).astype(np.float64)


def crossing(load: Floats, late: Floats, total: Floats, allowed: float) -> Crossing | None:
    """Where the share that is late, made to rise with load, first passes what is allowed; None where it does not, or
    is beyond it from the first. load: of groups, from the least on. late, total: observations of each.

    Between two groups log odds are taken as linear in load. A share grows by orders of magnitude from one load to the
    next; a straight line through the shares themselves would meet a hundredth at the lower load.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share = isotonic_fit(late / total, total)
    over = np.flatnonzero(share > allowed)
    if not len(over) or over[0] == 0:
        return None
    i = int(over[0])
    below, above = float(load[i - 1]), float(load[i])
    low, high = (_log_odds(share[j], float(total[share == share[j]].sum())) for j in (i - 1, i))
    goal = math.log(allowed / (1 - allowed))
    part = (goal - low) / (high - low) if low < goal < high else float(low < goal)
    return Crossing(below, above, below + part * (above - below))


def _log_odds(share: float, total: float) -> float:
    """With half an observation on either side, as of none in a hundred it is not known that it is never."""
    late = share * total
    return math.log((late + 0.5) / (total - late + 0.5))
