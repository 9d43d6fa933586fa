"""What ingesting the pages of each target costs, and which targets are scraped less often for it.

    shares = IngestShares()
    shares.scraped(target)
    shares.ingested(target, seconds)     # CPU time of one page
    shares.is_due(target, interval)      # whether the target may be scraped again

A target whose pages take more than `SHARE` of the interval in CPU time, twice in a row, is scraped as often as its
share allows: the page of a new engine, or one whose layout changed, may cost more once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvitals.series.slices import Steps, Work

SHARE = 0.1
"""Of the interval, in CPU time, for the pages of one target."""

MAX_PAUSE_SECONDS = 60.0
"""A target is scraped at least this often."""

OVER_SHARE = "over_share"


class Meter:
    """CPU time of steps: of the loop's thread while it works on them, and of the threads that do their pure work."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def steps(self, steps: Steps[Any]) -> Steps[Any]:
        """The same steps, measured. Raises what they raise."""
        result: Any = None
        error: Exception | None = None
        while True:
            began = time.thread_time()
            try:
                work = steps.send(result) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self.seconds += time.thread_time() - began
                result = error = None  # an exception keeps this frame: see kvitals.series.slices
            try:
                result = yield None if work is None else self._measured(work)
            except Exception as raised:
                error = raised

    def _measured(self, work: Work) -> Work:
        def measured() -> Any:
            began = time.thread_time()
            try:
                return work()
            finally:
                self.seconds += time.thread_time() - began

        return measured


@dataclass
class _Cost:
    """CPU seconds of a target's last page and of the one before, and when it was scraped last (monotonic)."""

    last: float = 0.0
    before: float = 0.0
    scraped: float = float("-inf")

    @property
    def steady(self) -> float:
        return min(self.last, self.before)


class IngestShares:
    """The costs of all targets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._costs: dict[str, _Cost] = {}

    def is_over(self, target: str, interval: float) -> bool:
        """Whether a target's pages take more than its share. interval: seconds between two cycles."""
        cost = self._costs.get(target)
        return cost is not None and cost.steady > SHARE * interval

    def is_due(self, target: str, interval: float) -> bool:
        """Whether a target may be scraped now."""
        if not self.is_over(target, interval):
            return True
        cost = self._costs[target]
        return self._clock() - cost.scraped >= min(cost.steady / SHARE, MAX_PAUSE_SECONDS)

    def scraped(self, target: str) -> None:
        """A scrape of a target begins."""
        self._costs.setdefault(target, _Cost()).scraped = self._clock()

    def ingested(self, target: str, seconds: float) -> None:
        """A page of a target took `seconds` of CPU time."""
        cost = self._costs.setdefault(target, _Cost())
        cost.last, cost.before = seconds, cost.last

    def forget(self, target: str) -> None:
        """A target is watched no more."""
        self._costs.pop(target, None)
