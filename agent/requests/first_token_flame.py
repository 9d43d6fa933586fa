"""Where the seconds before first tokens go: stacks of phase, reason and tenant, for a flame graph.

    flame = first_token_flame(records, start, end)
    flame.seconds == sum(stack.seconds for stack in flame.stacks)

The time of a phase is that of `slow_tail.spent`, so the flame, `kvitals trace --slowest` and the `kvitals_tail_*`
families agree. What no phase explains is "unattributed". Queue time is divided among the tenants whose requests ran at
the same engine meanwhile (`occupancy`), by the share of each for all waiting requests of a tenant. Prefill time is
divided by how much of the prompt was cached; which tokens an eviction made the engine compute again is known for an
engine and not for a request, so it is not a frame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from kvitals.agent.requests.columns import Floats, Numbers, RequestColumns, join_blocks, lay_out
from kvitals.agent.requests.observation import PHASES
from kvitals.agent.requests.occupancy import OTHER, UNKNOWN, RunningWork
from kvitals.agent.requests.record import UNATTRIBUTED, RequestRecord
from kvitals.agent.requests.slow_tail import BEFORE_FIRST, IN_WORDS, cache_classes, spent

ROOT = "time to first token"
OF_ENGINE = ("queue", "prefill")
NOT_REPORTED = "in the engine, which reports no phases"
"""Where neither spans nor logs of the engine are read: a tap or gateway alone sees only the whole."""
CACHED_WORDS = {
    "none": "no prompt token cached",
    "part": "part of the prompt cached",
    "most": "most of the prompt cached",
    UNKNOWN: "cached share of the prompt unknown",
}


class FlameStack(msgspec.Struct, frozen=True):
    """Time of some requests: the outermost frame first, which is `ROOT`."""

    frames: tuple[str, ...]
    seconds: float


class FirstTokenFlame(msgspec.Struct, frozen=True, kw_only=True):
    """The time to first token of the requests that ended within a window. Seconds; times since the epoch."""

    start: float
    end: float
    requests: int  # with a time to first token
    without: int  # without one
    seconds: float  # the sum of their times
    stacks: tuple[FlameStack, ...]  # the longest first; they add up to `seconds`


class FlameDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Two flames, as seconds a request: what takes longer in the second one, and what takes less."""

    before: FirstTokenFlame
    after: FirstTokenFlame
    more: tuple[FlameStack, ...]
    less: tuple[FlameStack, ...]


def first_token_flame(records: Sequence[RequestRecord], start: float, end: float) -> FirstTokenFlame:
    """The flame of the requests that ended from `start` to `end`; the others count only as what ran meanwhile.

    Its times are of the first and the last of these requests, where there are any.
    """
    around = join_blocks([lay_out(list(records))])
    ended, totals = around.of("end"), around.of("ttft")
    here = np.flatnonzero((ended >= start) & (ended <= end))
    timed = here[~np.isnan(totals[here])]
    stacks: dict[tuple[str, ...], float] = defaultdict(float)
    for frames, seconds in _stacks(around, timed):
        stacks[ROOT, *frames] += seconds
    ranked = sorted(stacks.items(), key=lambda item: (-item[1], item[0]))
    return FirstTokenFlame(
        start=float(ended[here].min()) if len(here) else start,
        end=float(ended[here].max()) if len(here) else end,
        requests=len(timed),
        without=len(here) - len(timed),
        seconds=float(totals[timed].sum()),
        stacks=tuple(FlameStack(frames, seconds) for frames, seconds in ranked if seconds > 0.0),
    )


def difference(before: FirstTokenFlame, after: FirstTokenFlame) -> FlameDifference:
    """What changed in a request's mean time to first token. Where one has no requests, the other is the change."""
    means: dict[tuple[str, ...], float] = defaultdict(float)
    for flame, sign in ((before, -1.0), (after, 1.0)):
        for stack in flame.stacks:
            means[stack.frames] += sign * stack.seconds / flame.requests
    ranked = [FlameStack(frames, seconds) for frames, seconds in sorted(means.items(), key=lambda item: -abs(item[1]))]
    return FlameDifference(
        before=before,
        after=after,
        more=tuple(stack for stack in ranked if stack.seconds > 0.0),
        less=tuple(FlameStack(stack.frames, -stack.seconds) for stack in ranked if stack.seconds < 0.0),
    )


def _stacks(around: RequestColumns, places: Numbers) -> Iterator[tuple[tuple[str, ...], float]]:
    """Frames below the root with their seconds, of requests at some places; some frames come several times."""
    work = RunningWork(around)
    tenants = [f"tenant {name or UNKNOWN}" for name in around.tenants]
    for tenant in np.unique(around.tenant[places]):
        mine = places[around.tenant[places] == tenant]
        totals = around.of("ttft")[mine]
        taken = spent(around.take(mine), totals, "ttft")
        phases = np.nan_to_num(taken)
        for name in BEFORE_FIRST:
            of_phase = phases[:, PHASES.index(name)]
            title = IN_WORDS.get(name, name)
            for reason, seconds in _reasons(name, around, mine, of_phase, work):
                yield (title, *reason, tenants[tenant]), seconds
        left = totals - phases.sum(axis=1)
        not_reported = np.isnan(taken[:, [PHASES.index(name) for name in OF_ENGINE]]).all(axis=1)
        yield (NOT_REPORTED, tenants[tenant]), float(left[not_reported].sum())
        yield (UNATTRIBUTED, tenants[tenant]), float(left[~not_reported].sum())


def _reasons(
    phase: str, around: RequestColumns, places: Numbers, seconds: Floats, work: RunningWork
) -> Iterable[tuple[tuple[str, ...], float]]:
    """The time of a phase by its reason."""
    whole = float(seconds.sum())
    if phase == "prefill":
        kinds = cache_classes(around.of("cached_tokens")[places], around.of("prompt_tokens")[places])
        return [((CACHED_WORDS[name],), float(seconds[kinds.of == i].sum())) for i, name in enumerate(kinds.names)]
    if phase != "queue" or whole <= 0.0:
        return [((), whole)]
    behind = work.in_front(places[np.argsort(-seconds, kind="stable")])
    if isinstance(behind, str):
        return [(("behind: not known",), whole)]
    return [((_in_front(occupant.tenant),), whole * occupant.share) for occupant in behind.occupants]


def _in_front(tenant: str) -> str:
    return "behind other tenants" if tenant == OTHER else f"behind tenant {tenant}"
