"""The upper bounds of histogram buckets."""

from __future__ import annotations

import math

from kvitals.series.ascii_numbers import ascii_float


def bucket_bound(le: str) -> float | None:
    """The upper bound that a `le` label states, as strconv.ParseFloat of Go reads it; None where it states none."""
    if le != le.strip():
        return None
    try:
        bound = ascii_float(le)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound
