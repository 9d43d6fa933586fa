"""Values of blocks as an engine might have them: log-normal, and each depends on the one before it."""

import numpy as np

from kvitals.series.types import Floats


def correlated_blocks(seed: int, count: int, correlation: float, spread: float) -> Floats:
    """`count` values around 1. correlation: of the logarithm of each with that of the next. spread: its deviation."""
    draw = np.random.default_rng(seed)
    noise = draw.standard_normal(count + 20)
    level = np.zeros(count + 20)
    for i in range(1, count + 20):
        level[i] = correlation * level[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    return np.asarray(np.exp(spread * level[20:]), dtype=np.float64)
