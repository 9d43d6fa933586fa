"""Whether the requests before and after a change are alike, from an agent's request records: tenants and lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvitals.agent.exports.requests_api import MAX_ASKED
from kvitals.agent.requests.record import RequestRecord
from kvitals.app.agent_client import AgentClient, AgentError
from kvitals.diagnoser.change_effect import ALIKE

MIN_REQUESTS = 30
"""With records: with fewer on one side, only counters are compared."""
CHANCE = 1.36
"""Times the square root of 1/n + 1/m: a difference that chance exceeds once in 20 (Smirnov 1948)."""
LENGTHS: dict[str, Callable[[RequestRecord], int | None]] = {
    "prompts": lambda record: record.prompt_tokens,
    "answers": lambda record: None if record.aborted else record.output_tokens,
}


@dataclass(frozen=True)
class RequestMix:
    """The requests on both sides of a change. problem: why there are none to compare."""

    before: Sequence[RequestRecord] = ()
    after: Sequence[RequestRecord] = ()
    problem: str = ""

    @property
    def sentence(self) -> str:
        """What was compared, for people."""
        if self.problem or min(len(self.before), len(self.after)) < MIN_REQUESTS:
            why = self.problem or f"{len(self.before)} before, {len(self.after)} after"
            return f"from counters only, because there are too few request records ({why})"
        return f"from {len(self.before)} request records before and {len(self.after)} after: tenants and lengths"

    @property
    def unlike(self) -> str:
        """Why the requests cannot be compared; empty where they can, or where too few are known."""
        if min(len(self.before), len(self.after)) < MIN_REQUESTS:
            return ""
        return _tenants(self.before, self.after) or _lengths(self.before, self.after)


def read_requests(agent: str, engine: str, start: float, end: float) -> tuple[Sequence[RequestRecord], str]:
    """The newest requests of an engine that started between two times, as an agent has them, and why there are none."""
    try:
        listed = AgentClient(agent).requests({"newest": str(MAX_ASKED), "since": f"{start:.3f}"})
    except AgentError as error:
        return (), str(error)
    records = [record for record, _ in listed if not record.engines or engine in record.engines.values()]
    return [one for one in records if start <= one.start <= end], ""


def _tenants(before: Sequence[RequestRecord], after: Sequence[RequestRecord]) -> str:
    """The tenant whose share changed most, where the shares differ by more than chance and more than alike."""
    shares = [_shares(side) for side in (before, after)]
    moved = {name: shares[1].get(name, 0.0) - shares[0].get(name, 0.0) for name in shares[0].keys() | shares[1].keys()}
    apart = sum(map(abs, moved.values())) / 2
    if apart <= ALIKE + _chance(len(before), len(after)):
        return ""
    most = max(sorted(moved), key=lambda name: abs(moved[name]))
    was, now = (100 * side.get(most, 0.0) for side in shares)
    return (
        f"the mix of tenants differs: {most or 'unknown tenants'} sent {was:.0f} % of the requests before, and "
        f"{now:.0f} % now"
    )


def _shares(records: Sequence[RequestRecord]) -> dict[str, float]:
    return {name: count / len(records) for name, count in Counter(one.tenant for one in records).items()}


def _lengths(before: Sequence[RequestRecord], after: Sequence[RequestRecord]) -> str:
    for title, length in LENGTHS.items():
        a, b = ([n for one in side if (n := length(one)) is not None] for side in (before, after))
        if min(len(a), len(b)) >= MIN_REQUESTS and _apart(a, b) > ALIKE + _chance(len(a), len(b)):
            return f"the lengths of {title} differ: half were below {np.median(a):.0f} tokens, now {np.median(b):.0f}"
    return ""


def _apart(a: Sequence[int], b: Sequence[int]) -> float:
    """The largest difference of the two distributions (Kolmogorov and Smirnov)."""
    places = np.unique([*a, *b])
    low, high = (np.searchsorted(np.sort(side), places, side="right") / len(side) for side in (a, b))
    return float(np.abs(low - high).max())


def _chance(n: int, m: int) -> float:
    return CHANCE * math.sqrt(1 / n + 1 / m)
