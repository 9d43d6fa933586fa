"""How much of what an engine's cache holds the ledger can know."""

from __future__ import annotations


class Confidence:
    """1 for a cache that was seen from when it was empty on, without a hole. After a hole it begins at 0 and is the
    share of the pool that was stored anew since: what was there before has then been seen again or is gone."""

    def __init__(self) -> None:
        self._whole = True
        self._anew = 0  # blocks stored since the hole

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self._whole

    def hole(self) -> None:
        """Something was not seen."""
        self._whole, self._anew = False, 0

    def fresh(self) -> None:
        """The cache is empty, or all of it is known."""
        self._whole = True

    def stored(self, blocks: int) -> None:
        """Blocks were stored that were not there."""
        self._anew += blocks

    def share(self, pool: int | None) -> float | None:
        """From 0 to 1; None where a hole was and nobody says how many blocks the pool has."""
        if self._whole:
            return 1.0
        return min(1.0, self._anew / pool) if pool else None
