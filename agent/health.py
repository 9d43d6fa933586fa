"""Whether the agent does its work: cycles that complete, and not only a server that answers."""

from __future__ import annotations

import time
from collections.abc import Callable

MISSED_CYCLES = 3
SLACK_SECONDS = 5.0
"""Beyond the missed cycles, for a machine that is busy."""


class Health:
    """What `/-/healthy` and systemd's watchdog ask."""

    def __init__(self, interval: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`interval`: seconds between two cycles. `clock` is never set back."""
        self._interval = interval
        self._clock = clock
        self._completed = clock()
        self._ended = False

    def completed(self) -> None:
        """A cycle completed."""
        self._completed = self._clock()

    def ended(self) -> None:
        """No further cycle is to come."""
        self._ended = True

    @property
    def problem(self) -> str:
        """Why the agent is not healthy; empty where it is."""
        if self._ended:
            return "cycles have ended; the process stops"
        since, allowed = self._clock() - self._completed, MISSED_CYCLES * self._interval() + SLACK_SECONDS
        if since > allowed:
            return f"no cycle has completed for {since:.0f} s, {allowed:.0f} s are allowed"
        return ""
