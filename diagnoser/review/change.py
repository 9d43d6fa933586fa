"""Why tokens per GPU-hour changed: a decomposition whose parts add up to the change.

Tokens per GPU-hour is a product of ratios, G/H = B/H (load) x S/B (batch) x G/S, where H are GPU-hours, B those in
which something ran, S the requests' time in prefill and decode, G the tokens generated. S/G is a sum, of prefill time
per token (seconds per computed token x computed per prompt token x prompt tokens per generated token) and of decode
time per token. A change of a product is shared out by the logarithmic mean Divisia index (LMDI-I; Ang, Energy Policy
2005): it leaves no residual, and does not depend on the order. Between weeks of several pools the change of their
shares of the GPU-hours is one more factor, as is a pool that came or went.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NOISE = 1e-9
"""Of all factors together: less is what is left of rounding."""
FACTORS = {
    "load": "share of GPU time with a running request",
    "batch": "requests at a time while any request ran",
    "hits": "prompt tokens that the cache held",
    "waste": "prompt tokens that were computed again",
    "mix": "prompt tokens per generated token",
    "prefill": "seconds to compute a prompt token",
    "decode": "seconds of decode for a token",
    "busy": "tokens per busy GPU-hour, for engines that report no phases",
    "pools": "how the GPU-hours are split between pools",
}


@dataclass(frozen=True)
class Totals:
    """Of a pool in the hours that are compared. Hours, seconds and tokens; 0 where nobody tells."""

    gpu_hours: float
    busy_hours: float
    output: float
    prompt: float
    computed: float  # prompt tokens that no cache had
    again: float  # of these, those computed before
    prefill: float  # requests' seconds
    decode: float

    @property
    def rate(self) -> float:
        """Tokens generated per GPU-hour."""
        return self.output / self.gpu_hours if self.gpu_hours > 0 else 0.0


def explain_change(before: Sequence[Totals], after: Sequence[Totals]) -> dict[str, float]:
    """The parts of the change of all pools together; the lists are of the same pools, in order."""
    parts = dict.fromkeys(FACTORS, 0.0)
    hours = [sum(one.gpu_hours for one in several) for several in (before, after)]
    if min(hours) <= 0:
        return parts
    for old, new in zip(before, after, strict=True):
        shares = old.gpu_hours / hours[0], new.gpu_hours / hours[1]
        values = shares[0] * old.rate, shares[1] * new.rate
        if min(values) <= 0:  # came, went or did nothing in one of the weeks
            parts["pools"] += values[1] - values[0]
            continue
        weight = log_mean(*values)
        parts["pools"] += weight * math.log(shares[1] / shares[0])
        for name, ratio in _logs(old, new).items():
            parts[name] += weight * ratio
    noise = NOISE * sum(map(abs, parts.values()))
    return {name: value for name, value in parts.items() if abs(value) > noise}


def _logs(old: Totals, new: Totals) -> dict[str, float]:
    """The logarithms of what each factor multiplied the rate by. They add up to the whole's."""
    whole = math.log(new.rate / old.rate)
    if min(old.busy_hours, new.busy_hours) <= 0:
        return {"busy": whole}
    load = _log(old.busy_hours / old.gpu_hours, new.busy_hours / new.gpu_hours)
    spent = old.prefill + old.decode, new.prefill + new.decode
    if min(*spent, old.decode, new.decode) <= 0:
        return {"load": load, "busy": whole - load}
    found = {"load": load, "batch": _log(spent[0] / old.busy_hours, spent[1] / new.busy_hours)}
    per_token = spent[0] / old.output, spent[1] / new.output
    weight = 1 / log_mean(*per_token)
    found["decode"] = -weight * _part(old.decode / old.output, new.decode / new.output)
    left = whole - sum(found.values())
    found["prefill"] = left
    if min(old.prefill, new.prefill, old.computed, new.computed, old.prompt, new.prompt) <= 0:
        return found
    weight *= log_mean(old.prefill / old.output, new.prefill / new.output)
    first = old.computed - old.again, new.computed - new.again
    if min(first) <= 0:
        first = old.computed, new.computed
    found["hits"] = -weight * _log(first[0] / old.prompt, first[1] / new.prompt)
    found["waste"] = -weight * _log(old.computed / first[0], new.computed / first[1])
    found["mix"] = -weight * _log(old.prompt / old.output, new.prompt / new.output)
    found["prefill"] = left - found["hits"] - found["waste"] - found["mix"]
    return found


def log_mean(a: float, b: float) -> float:
    """The logarithmic mean of two positive numbers."""
    return a if math.isclose(a, b, rel_tol=1e-12) else (b - a) / math.log(b / a)


def _part(a: float, b: float) -> float:
    return log_mean(a, b) * math.log(b / a)


def _log(a: float, b: float) -> float:
    return math.log(b / a)
