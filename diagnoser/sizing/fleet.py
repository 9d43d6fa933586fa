"""How many instances carry a peak."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    """Instances that carry `peak` requests a second with `usable` each. The margin comes before rounding up: instances
    are whole, and are not multiplied by a margin."""
    return Fleet(math.ceil(peak * safety / usable - 1e-9), gpus_each)
