"""What carries a peak: how many instances and what they cost, how many requests may wait, and prefill against decode
when they are apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kvitals.rules.catalogue import Price

SAFETY_KNOWN, SAFETY_NEW = 1.2, 1.5
"""Times the peak: for traffic that was watched for days, and for traffic that is new or uneven."""


@dataclass(frozen=True)
class Fleet:
    """instances: whole, of `gpus_each` GPUs."""

    instances: int
    gpus_each: int

    @property
    def gpus(self) -> int:
        return self.instances * self.gpus_each


def fleet(peak: float, usable: float, gpus_each: int, safety: float) -> Fleet:
    """Instances that carry `peak` requests a second with `usable` each, at least one. The margin comes before rounding
    up: instances are whole, and are not multiplied by a margin."""
    return Fleet(max(1, math.ceil(peak * safety / usable - 1e-9)), gpus_each)


HOURS_A_YEAR = 8760


def usd_per_million(usd_per_gpu_hour: float, gpus: int, tokens_per_second: float) -> float:
    """USD for a million tokens served. The tokens are those that were served on average: how busy the fleet is lies in
    them, and is not divided by once more."""
    return usd_per_gpu_hour * gpus / (tokens_per_second * 3600) * 1e6


def tokens_per_gpu_hour(tokens_per_second: float, gpus: int) -> float:
    """Tokens served by a GPU in an hour."""
    return tokens_per_second * 3600 / gpus


def typical_price(prices: Sequence[Price]) -> float | None:
    """The median of what is asked for one GPU; None where nobody says."""
    return statistics.median(price.usd_per_hour for price in prices) if prices else None


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


NETWORK = 50e9
"""Bytes/s of one 400 Gb/s link (InfiniBand NDR or RoCE)."""
NVME = 7e9


def prefill_to_decode(prompt: float, output: float, prefill_rate: float, decode_rate: float) -> float:
    """GPUs of prefill for each of decode, by mean lengths and by what one GPU does of each a second, in tokens.

    The rate of requests is in both and falls out.
    """
    return (prompt / prefill_rate) / (output / decode_rate)


def whole_ratio(ratio: float, most: int = 8) -> tuple[int, int]:
    """The nearest ratio of whole numbers up to `most`, or of one to more than that, that does not give prefill less."""
    if ratio > most:
        return math.ceil(ratio * (1 - 1e-9)), 1
    if 0 < ratio < 1 / most:
        return 1, math.floor(1 / ratio * (1 + 1e-9))
    pairs = [(p, d) for p in range(1, most + 1) for d in range(1, most + 1) if p / d >= ratio * (1 - 1e-9)]
    return min(pairs, key=lambda one: (one[0] / one[1], one[0]))


@dataclass(frozen=True)
class Move:
    """KV that is moved rather than computed again, both in seconds."""

    bytes: float
    moving: float
    computing: float

    @property
    def pays(self) -> bool:
        return self.moving < self.computing


def move_or_compute(kv_bytes: float, bandwidth: float, computing: float) -> Move:
    """`bandwidth`: effective, bytes/s. `computing`: seconds that the same tokens take to prefill."""
    return Move(kv_bytes, kv_bytes / bandwidth, computing)
