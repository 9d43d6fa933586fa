"""Whether the agent does its work: cycles that complete with a verdict, and not only a server that answers."""

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
        self._completed = self._judged = clock()
        self._ended = False

    def completed(self) -> None:
        """A cycle completed."""
        self._completed = self._clock()

    def judged(self) -> None:
        """A cycle came to a verdict."""
        self._judged = self._clock()

    def ended(self) -> None:
        """No further cycle is to come."""
        self._ended = True

    @property
    def halt(self) -> str:
        """Why cycles do not complete, which a new process may mend; empty where they do."""
        if self._ended:
            return "cycles have ended; the process stops"
        return self._late("no cycle has completed", self._completed)

    @property
    def problem(self) -> str:
        """Why the agent is not healthy; empty where it is."""
        late = self._late("no verdict", self._judged)
        return self.halt or (f"{late}; see the log for the reason" if late else "")

    def _late(self, what: str, last: float) -> str:
        since, allowed = self._clock() - last, MISSED_CYCLES * self._interval() + SLACK_SECONDS
        return f"{what} for {since:.0f} s ({allowed:.0f} s are allowed)" if since > allowed else ""
