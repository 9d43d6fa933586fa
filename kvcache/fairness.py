"""Fairness among tenants, from numbers that others have measured.

All indices take one number a tenant, none below zero, and are None where they mean nothing: no tenants, or all zero.
They raise ValueError for a negative or a missing number; leave tenants out of whom nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvitals.kvcache.accesses import Floats, Ints

_LEAST_SECONDS = 0.001
"""An answer of one token has no length; it is spread over this."""


def jain(values: npt.ArrayLike) -> float | None:
    """Jain's index (sum x)^2 / (n sum x^2): 1 where all have the same, 1/n where one has all.

    R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984. It is blunt:
    at 0.95 a tenth of the tenants can still have almost nothing.
    """
    x = _shares(values)
    return None if x is None else float(x.sum() ** 2 / (len(x) * (x * x).sum()))


def gini(values: npt.ArrayLike) -> float | None:
    """Gini's coefficient, sum over all pairs |x_i - x_j| / (2 n^2 mean): 0 where all have the same, (n - 1)/n where
    one has all.

    C. Gini, "Variabilita e mutabilita", 1912; by the sorted form 2 sum(i x_(i)) / (n sum x) - (n + 1)/n.
    """
    x = _shares(values)
    if x is None:
        return None
    n = len(x)
    return float(max(2 * (np.arange(1, n + 1) * np.sort(x)).sum() / (n * x.sum()) - (n + 1) / n, 0.0))


def max_min(values: npt.ArrayLike) -> float | None:
    """The least over the most: 1 where all have the same, 0 where one has nothing.

    The ratio that a max-min fair share (D. Bertsekas, R. Gallager, "Data Networks", 6.5.2) brings to 1 among tenants
    who all want more than they get. One tenant decides it, so look at it beside the others.
    """
    x = _shares(values)
    return None if x is None else float(x.min() / x.max())


def long_tail_share(achieved: npt.ArrayLike, attainable: npt.ArrayLike, below: float = 0.5) -> float | None:
    """The share of tenants who achieve less than `below` of what they could attain, their own infinite cache say.

    Tenants who can attain nothing are left out; None where no other is left. Raises ValueError where the two do not
    have one number a tenant each.
    """
    got, could = _numbers(achieved), _numbers(attainable)
    if len(got) != len(could):
        raise ValueError("achieved and attainable must each have one number per tenant")
    able = could > 0
    return float((got[able] < below * could[able]).mean()) if able.any() else None


@dataclass(frozen=True)
class Service:
    """Requests that were served, one cell each: whose, when they came, were answered from and until (s), their cost."""

    client: Ints
    arrived: Floats
    began: Floats
    ended: Floats
    cost: Floats


def service_difference(service: Service, instants: Sequence[float], window: float) -> Floats:
    """How far clients are from even service, at each instant, in cost per second.

    Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section 5.1: with y_u the service that
    client u got per second within the window centred on the instant, q_u the cost per second of its requests that
    arrived in it, and M the largest y: sum over clients of min(M - y_u, |q_u - y_u|). Who got less because they asked
    for less does not count. A request's cost is spread evenly from `began` to `ended`. `window` is in seconds; clients
    are numbered from 0.
    """
    if not window > 0:
        raise ValueError("the window must be above 0")
    ended = np.maximum(service.ended, service.began + _LEAST_SECONDS)
    clients = int(service.client.max()) + 1 if len(service.client) else 0
    found = []
    for instant in instants:
        low, high = instant - window / 2, instant + window / 2
        inside = np.clip(ended, low, high) - np.clip(service.began, low, high)
        served = np.bincount(service.client, service.cost * inside / (ended - service.began), clients) / window
        here = (service.arrived >= low) & (service.arrived < high)
        asked = np.bincount(service.client[here], service.cost[here], clients) / window
        found.append(float(np.minimum(served.max(initial=0.0) - served, np.abs(asked - served)).sum()))
    return np.array(found)


def _numbers(values: npt.ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all() or (x < 0).any():
        raise ValueError("expected one number per tenant, none missing and none below zero")
    return x


def _shares(values: npt.ArrayLike) -> Floats | None:
    """The numbers over their largest, so that squares stay finite; None where there are none but zeros."""
    x = _numbers(values)
    return x / x.max() if x.any() else None
