"""How many messages a second are taken: a cap on all of them, and a share of it for each sender.

Each of N active senders gets an (N + 1)th of the cap, so that no sender takes the shares of the others, and one is left
for the next that comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

PER_SECOND, BURST = 20.0, 200.0
"""Messages of all senders, and at once. One sender that is alone gets half of it."""
ACTIVE_SECONDS = 10.0
"""For so long after a message a sender counts as active."""
MAX_SENDERS = 256
"""Senders whose share is remembered, the latest."""


@dataclass
class _Bucket:
    left: float
    at: float


class SenderShares:
    """The messages that senders may send now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds that never go back."""
        self._clock = clock
        self._all = _Bucket(BURST, clock())
        self._senders: OrderedDict[str, _Bucket] = OrderedDict()  # the latest last

    def take(self, sender: str) -> bool:
        """Whether a message of this sender is taken now; where it is, it counts."""
        now = self._clock()
        own = self._senders.setdefault(sender, _Bucket(BURST, now))
        self._senders.move_to_end(sender)
        while len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)
        share = 1 / (1 + self._active(now, own))
        _refill(self._all, now, 1.0)
        _refill(own, now, share)
        if own.left < 1 or self._all.left < 1:
            return False
        own.left -= 1
        self._all.left -= 1
        return True

    def _active(self, now: float, own: _Bucket) -> int:
        """Active senders, the one that sends now among them."""
        count = 1
        for bucket in reversed(self._senders.values()):
            if now - bucket.at > ACTIVE_SECONDS:
                break
            count += bucket is not own
        return count


def _refill(bucket: _Bucket, now: float, share: float) -> None:
    bucket.left = min(BURST * share, bucket.left + (now - bucket.at) * PER_SECOND * share)
    bucket.at = now
