"""Which tenants have series of their own: those with most of what is counted, all others together are `other`."""

from __future__ import annotations

from kvitals.agent.requests.request_families import OTHER

MAX_CANDIDATES = 500
"""Tenants without a place whose weight is counted, about."""

EPOCH_SECONDS = 300.0
CLEARLY = 2.0
"""How many times as heavy a newcomer has to be as the lightest that has a place."""


class Top:
    """Gives places. Who has one keeps it until another was clearly heavier of late. The weights of the others are
    counted as Misra and Gries do: who comes often stays, however many come once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[str, float] = {}  # tenant -> weight of late
        self._candidates: dict[str, float] = {}
        self._epoch: float | None = None

    def place(self, tenant: str, weight: float) -> str:
        """Under which name a tenant is counted, now that this much more is. The unknown one has its empty name."""
        if not tenant:
            return ""
        if tenant in self._places or len(self._places) < self._limit:
            self._places[tenant] = self._places.get(tenant, 0.0) + weight
            return tenant
        if tenant not in self._candidates and len(self._candidates) >= MAX_CANDIDATES:
            least = min(weight, *self._candidates.values())
            self._candidates = {name: had - least for name, had in self._candidates.items() if had > least}
            weight -= least
        if weight > 0:
            self._candidates[tenant] = self._candidates.get(tenant, 0.0) + weight
        return OTHER

    def label(self, tenant: str) -> str:
        """Under which name a tenant is counted."""
        return tenant if not tenant or tenant in self._places else OTHER

    def review(self, t: float) -> list[str]:
        """Now and then, give places to those who have become heavier. Returns who lost theirs."""
        if self._epoch is None:
            self._epoch = t
        if 0 <= t - self._epoch < EPOCH_SECONDS:
            return []
        self._epoch, gone = t, []
        for newcomer in sorted(self._candidates, key=self._candidates.__getitem__, reverse=True):
            lightest = min(self._places, key=self._places.__getitem__)
            if self._candidates[newcomer] <= CLEARLY * self._places[lightest]:
                break
            del self._places[lightest]
            gone.append(lightest)
            self._places[newcomer] = self._candidates.pop(newcomer)
        self._places = {name: weight / 2.0 for name, weight in self._places.items()}
        self._candidates = {name: weight / 2.0 for name, weight in self._candidates.items() if weight > 1.0}
        return gone
