"""Queues: how many may wait, and when a circuit breaker opens."""

from __future__ import annotations

import math

BREAKER = (0.8, 0.9)
"""Of the queue limit: where a circuit breaker opens."""


def queue_limit(objective: float, prefill_p99: float, front_end: float, admitted: float) -> float:
    """Requests that may wait and still have their first token in time. `admitted`: that leave the queue a second, which
    is what the engine can do; the rate of arrival is no limit, as it grows just when one is needed."""
    return max(0.0, objective - prefill_p99 - front_end) * admitted


def breaker(limit: float) -> tuple[int, int]:
    """Queue lengths between which a circuit breaker should open."""
    low, high = (math.floor(limit * share) for share in BREAKER)
    return low, high
