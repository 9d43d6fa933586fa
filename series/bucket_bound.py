"""The upper bounds of histogram buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kvitals.series.ascii_numbers import ascii_float


def bucket_around(value: float, bounds: Iterable[float]) -> tuple[float, float] | None:
    """The bucket that holds a value in its inside, the upper bound infinite beyond the last; None where the value is a
    bound."""
    least, upper = 0.0, math.inf
    for bound in bounds:
        if math.isclose(bound, value, rel_tol=1e-9):
            return None
        if bound < value:
            least = max(least, bound)
        else:
            upper = min(upper, bound)
    return least, upper


def bucket_bound(le: str) -> float | None:
    """The upper bound that a `le` label states, as strconv.ParseFloat of Go reads it; None where it states none."""
    if le != le.strip():
        return None
    try:
        bound = ascii_float(le)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound
