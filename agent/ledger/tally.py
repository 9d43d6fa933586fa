"""What one medium of one engine took in, let go and wanted again, counted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kvitals.agent.ledger.block_table import EngineStep, Removals, StoreResult
from kvitals.agent.requests.request_families import Histogram

IDLE = (0.1, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120)
REFAULT = (0.1, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120)


class Tally:
    """Counts since the ledger began."""

    def __init__(self) -> None:
        self.stored = self.stored_tokens = 0
        self.removed = {False: 0, True: 0}  # by whether some look-up had found them
        self.removed_tokens = {False: 0, True: 0}
        self.dead_token_seconds = 0.0
        self.refaulted = self.refaulted_tokens = self.refaulted_below_tokens = 0
        self.idle, self.refaults = Histogram(IDLE), Histogram(REFAULT)

    def store(self, said: StoreResult, tokens: int) -> None:
        """Blocks of that many tokens were stored."""
        blocks = said.taken + said.copies
        self.stored += blocks
        self.stored_tokens += blocks * tokens

    def remove(self, removal: Removals, tokens: int) -> None:
        """Blocks were removed."""
        blocks = removal.blocks
        self.removed[removal.used] += blocks
        self.removed_tokens[removal.used] += blocks * tokens
        if not removal.used:
            self.dead_token_seconds += removal.lived * blocks * tokens
        _count(self.idle, removal.idle, blocks)

    def refault(self, removing: Sequence[EngineStep], at: float, tokens: int, below: int) -> None:
        """Blocks came back that these steps had removed; a lower tier had `below` of them."""
        self.refaulted += len(removing)
        self.refaulted_tokens += len(removing) * tokens
        self.refaulted_below_tokens += min(below, len(removing)) * tokens
        for step in removing:
            _count(self.refaults, at - step.at, 1)


def _count(histogram: Histogram, value: float, times: int) -> None:
    histogram.counts[bisect_left(histogram.bounds, value)] += times
    histogram.total += value * times
