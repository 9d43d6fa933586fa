"""Which values of a raw metric can be true, by what the metric is."""

from __future__ import annotations

from typing import NamedTuple

from kvitals.rules.engine_map import Metric

MAX_VALUE = 1e30
"""No count, time or size is larger; what is computed from two such values is still a number."""

MAX_SHARE = 1.05
"""Shares that are read while they change may be a little above 1."""

ROUNDING = 1e-6
"""A sum of numbers that are not whole may be as much below 0."""


REASONS = {
    "not_a_number": "NaN",
    "out_of_range": "NaN, infinite or above 1e30",
    "negative": "below 0",
    "above_one": "a share above 1",
    "bucket_order": "buckets out of order",
    "duplicate": "twice on the page",
}
"""Why the values of a metric are not used, in words."""


class ValueBounds(NamedTuple):
    """The smallest and the largest raw value that can be true."""

    lowest: float
    highest: float


ANY_VALUE = ValueBounds(-MAX_VALUE, MAX_VALUE)


def value_bounds(metric: Metric, part: str, scale: float) -> ValueBounds:
    """The bounds of a metric. part: of a histogram, or empty. scale: ours = raw * scale.

    The `_sum` of a histogram may be below 0: vLLM adds a wrong time when a KV transfer fails, and the increases of such
    a sum are right.
    """
    if part == "_sum" or metric.family.endswith("_celsius"):
        return ANY_VALUE
    if metric.is_share and not part:
        return ValueBounds(-ROUNDING, MAX_SHARE / scale if scale > 0 else MAX_VALUE)
    return ValueBounds(-ROUNDING, MAX_VALUE)
