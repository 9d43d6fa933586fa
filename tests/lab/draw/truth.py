"""What clients saw of a play, as harm; and what the arms of an incident say its causes are. Nothing here does I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ..load import CUT, LEFT, Sample
from ..scenario import Slo
from .arms import CODES

ALLOWED = 0.01
"""An objective for the 99th percentile allows one in a hundred to be late; of failures the same is allowed."""
BREACHED, LEAST_LATE = 2.0, 3
RESTORES = 0.5
State = Literal["in order", "marginal", "breached"]


class Harm(msgspec.Struct, frozen=True):
    """Late first tokens, late gaps and failed requests, each of how many."""

    requests: int
    late: int
    gaps: int
    late_gaps: int
    failed: int

    @property
    def value(self) -> float:
        """How many times over the worst of them is what is allowed; 1 and less is in order."""
        return max(self._of(self.late, self.requests), self._of(self.late_gaps, self.gaps), self._failures)

    @property
    def _failures(self) -> float:
        return self._of(self.failed, self.requests)

    @staticmethod
    def _of(bad: int, all_: int) -> float:
        return bad / all_ / ALLOWED if all_ else 0.0

    @property
    def state(self) -> State:
        """Breached only where there are events enough to say so."""
        if self.value <= 1:
            return "in order"
        enough = max(self.late, self.late_gaps, self.failed) >= LEAST_LATE
        return "breached" if self.value > BREACHED and enough else "marginal"


def harm(samples: Iterable[Sample], ended: float, slo: Slo, since: float = 0.0) -> Harm:
    """Of the requests that were sent from `since` until the load `ended`, both as `Sample.sent` counts. A request
    without a first token is late once the objective has passed, and is left out before."""
    requests = late = gaps = late_gaps = failed = 0
    for sample in (one for one in samples if one.sent >= since):
        if sample.ttft is None and sample.status in (CUT, LEFT) and ended - sample.sent <= slo.ttft_p99:
            continue
        requests += 1
        failed += sample.status not in ("ok", CUT, LEFT)
        late += sample.ttft is None or sample.ttft > slo.ttft_p99
        gaps += len(sample.itl)
        late_gaps += sum(gap > slo.itl_p99 for gap in sample.itl)
    return Harm(requests, late, gaps, late_gaps, failed)


def restored(before: Harm, after: Harm) -> float:
    """The share of the harm that is gone, in logarithms: 1 where what is left is in order. Negative: it is worse."""
    worst, left = max(before.value, 1.0), max(after.value, 1.0)
    return 1.0 - math.log(left) / math.log(worst) if worst > 1 else 0.0


class Arm(msgspec.Struct, frozen=True):
    """A play with one thing changed."""

    name: str
    kind: Literal["fault", "limit", "calm", "lever"]
    harm: Harm

    @property
    def codes(self) -> tuple[str, ...]:
        """The causes that it is evidence for."""
        return CODES.get(self.name, ())


class Truth(msgspec.Struct, frozen=True):
    """state: of the incident as drawn; void where it was not in order even without any fault. codes: of which the first
    cause must be one. also: further causes that are no mistakes."""

    state: Literal["in order", "marginal", "breached", "void"]
    codes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    restored: Mapping[str, float] = {}


def truth_of(drawn: Harm, arms: Sequence[Arm]) -> Truth:
    """The causes of an incident, by what its arms restored."""
    if drawn.state != "breached":
        return Truth(drawn.state, also=_codes(arms))
    if _calm(arms) is None or _calm(arms) == "breached":
        return Truth("void")
    effects = {arm.name: round(restored(drawn, arm.harm), 3) for arm in arms}
    tried = [arm for arm in arms if arm.kind in ("fault", "limit")]
    enough = [arm for arm in tried if effects[arm.name] >= RESTORES]
    # Where no single one does, each of the faults keeps the objective broken.
    causes = enough or [arm for arm in tried if arm.kind == "fault"]
    return Truth("breached", _codes(causes), _codes(arms), effects)


def _calm(arms: Sequence[Arm]) -> State | None:
    """How it was without any fault; None where that was not played. Of a single fault it is the arm without it."""
    faults = [arm for arm in arms if arm.kind == "fault"]
    return next((arm.harm.state for arm in arms if arm.kind == "calm" or (len(faults) == 1 and arm in faults)), None)


def _codes(arms: Iterable[Arm]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(code for arm in arms for code in arm.codes))
