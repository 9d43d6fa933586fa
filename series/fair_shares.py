"""A budget that many holders share: each has a part that nobody takes from it, the rest goes to whoever comes first.

    shares = FairShares(100, holders=4)
    shares.take("a", 30)        # True: 22 of its own part, 8 of the rest
    shares.give("a", 5)

Amounts have any unit, bytes mostly. A holder that needs no more than its own part is never refused for the others.
"""

from __future__ import annotations

OWN = 0.9
"""Of the budget, what is divided into parts of the same size."""


class FairShares:
    """What each holder has. total: None is without a limit."""

    def __init__(self, total: int | None = None, holders: int = 1) -> None:
        self.held: dict[str, int] = {}
        self.refused = 0
        """Requests that were refused."""
        self.divide(total, holders)

    def divide(self, total: int | None, holders: int) -> None:
        """Share `total` among so many. What they have already stays theirs, even beyond it."""
        self.total = total
        self._own = int(OWN * (total or 0)) // max(holders, 1)
        self._rest = (total or 0) - self._own * max(holders, 1)
        self._lent = sum(max(held - self._own, 0) for held in self.held.values())

    @property
    def overdrawn(self) -> list[str]:
        """Holders beyond their own part, where more was lent than there is; the largest first."""
        if self.total is None or self._lent <= self._rest:
            return []
        return sorted((h for h, held in self.held.items() if held > self._own), key=lambda h: -self.held[h])

    def room(self, holder: str) -> float:
        """How much more a holder gets now."""
        if self.total is None:
            return float("inf")
        return max(self._own - self.held.get(holder, 0), 0) + max(self._rest - self._lent, 0)

    def take(self, holder: str, amount: int, spare: int = 0) -> bool:
        """Whether a holder gets so much more. spare: must be left for the holder's other needs."""
        held = self.held.get(holder, 0)
        beyond = max(held + amount - self._own, 0) - max(held - self._own, 0)
        if amount + spare > self.room(holder):
            self.refused += 1
            return False
        self.held[holder] = held + amount
        self._lent += beyond
        return True

    def give(self, holder: str, amount: int | None = None) -> None:
        """A holder gives so much back; None: all of it."""
        held = self.held.get(holder, 0)
        left = 0 if amount is None else max(held - amount, 0)
        self._lent -= max(held - self._own, 0) - max(left - self._own, 0)
        if left:
            self.held[holder] = left
        else:
            self.held.pop(holder, None)


def fair_level(sizes: list[int], total: int) -> float:
    """The largest size that everybody may have so that all fit into `total`: who needs less leaves more to the others.
    Infinity where all fit."""
    left = float(total)
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        share = left / (len(ordered) - number)
        if size > share:
            return max(share, 0.0)
        left -= size
    return float("inf")
