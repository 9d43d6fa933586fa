"""What a fleet costs, by the hour and by the token."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from kvitals.rules.catalogue import Price

HOURS_A_YEAR = 8760


def per_million(usd_per_gpu_hour: float, gpus: int, tokens_per_second: float) -> float:
    """USD for a million tokens served. The tokens are those that were served on average: how busy the fleet is lies in
    them, and is not divided by once more."""
    return usd_per_gpu_hour * gpus / (tokens_per_second * 3600) * 1e6


def per_gpu_hour(tokens_per_second: float, gpus: int) -> float:
    """Tokens served by a GPU in an hour."""
    return tokens_per_second * 3600 / gpus


def typical(prices: Sequence[Price]) -> float | None:
    """The median of what is asked for one GPU; None where nobody says."""
    return statistics.median(price.usd_per_hour for price in prices) if prices else None
