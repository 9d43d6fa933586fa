"""What each tenant of a node has of its engines' caches, and how even that is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.residency import SHARED
from kvitals.agent.ledger.top import Top
from kvitals.agent.requests.request_families import OTHER
from kvitals.kvcache import fairness
from kvitals.series.slices import Steps, complete

SAMPLE = 1_024
"""Blocks of a tenant whose first sight is remembered. A share of the blocks is left out where there are more."""

BLOCKS_AT_ONCE = 1_024
"""Blocks of a chain between which others have their turn: some milliseconds at worst. A chain may have all
of the ledger's."""

WINDOW_SECONDS = 900.0
KEEP_SECONDS = 60.0
"""How often the tenants' sums are kept, so that those of the window can be told."""

NOT_ONE = ("", OTHER, SHARED)
"""Names of sums that are not one tenant's."""

MIN_TOKENS = 1_000
"""Attainable tokens in the window below which a tenant is left out of what compares tenants."""


class FirstSeen:
    """Blocks of a tenant that were looked up before: what an infinite cache would still hold of them.

    It keeps those whose hash ends in some number of zero bits, each standing for as many as that makes it rare. With
    1,024 of them the share of blocks seen before is off by 1.5 points (one standard error) at most.
    """

    def __init__(self, limit: int = SAMPLE) -> None:
        self._limit = limit
        self._bits = 0
        self._seen: set[int] = set()

    def add(self, chain: list[int], hits: int, most: int) -> int:
        """The same as `add_steps`, at one go."""
        return complete(self.add_steps(chain, hits, most))

    def add_steps(self, chain: list[int], hits: int, most: int) -> Steps[int]:
        """How many of the first `most` of these blocks an infinite cache would find, about; from now on it has all.

        The first `hits` were found now, whoever stored them, so it would find these too: what is attainable is never
        less than what was found. Of few blocks the rest may be far off, also above `most`; the sum over many is not.
        """
        bits, seen = self._bits, self._seen
        mask, known = (1 << bits) - 1, 0
        for first in range(hits, min(most, len(chain)), BLOCKS_AT_ONCE):
            part = chain[first : min(first + BLOCKS_AT_ONCE, most)]
            known += sum(block in seen for block in part if not block & mask)
            yield None
        for first in range(0, len(chain), BLOCKS_AT_ONCE):
            self._see(chain[first : first + BLOCKS_AT_ONCE])
            yield None
        return hits + (known << bits)

    def _see(self, blocks: list[int]) -> None:
        """Remember few blocks: senders choose how many zero bits their hashes have, and each round goes through all."""
        mask = (1 << self._bits) - 1
        self._seen.update(block for block in blocks if not block & mask)
        while len(self._seen) > self._limit:
            self._bits += 1
            mask = (1 << self._bits) - 1
            self._seen = {block for block in self._seen if not block & mask}


@dataclass
class TenantSums:
    """Tokens of one tenant since its sums began."""

    lookup: float = 0.0
    hits: float = 0.0
    attainable: float = 0.0
    refaulted: float = 0.0
    resident: float = 0.0  # now
    token_seconds: float = 0.0
    seen: FirstSeen = field(default_factory=FirstSeen)


class LedgerTenants:
    """Sums by tenant, of those who have a place and of all others together."""

    def __init__(self, limit: int) -> None:
        self.sums: dict[str, TenantSums] = {}
        self._top = Top(limit)
        self._kept: deque[tuple[float, dict[str, tuple[float, float]]]] = deque()

    def add(self, look: SettledLookup) -> str:
        """A look-up. Returns under which name its tenant is counted."""
        return complete(self.add_steps(look))

    def add_steps(self, look: SettledLookup) -> Steps[str]:
        """The same in steps."""
        name = self._top.place(look.party.tenant, look.blocks * look.tokens)
        if look.chain is None:
            return name
        sums = self._of(name)
        sums.lookup += look.prompt
        sums.hits += look.hits * look.tokens
        sums.refaulted += sum(look.refaults.values()) * look.tokens
        if name not in ("", OTHER):
            lookable = max(look.prompt - 1, 0) // look.tokens  # the last token is always computed
            blocks = yield from sums.seen.add_steps(look.chain, look.hits, lookable)
            sums.attainable += blocks * look.tokens
        return name

    def reside(self, resident: dict[str, int], seconds: float) -> None:
        """What the tenants hold now, and for how long they held what was told the last time."""
        for sums in self.sums.values():
            sums.token_seconds += sums.resident * seconds
            sums.resident = 0.0
        for tenant, tokens in resident.items():
            self._of(tenant if tenant == SHARED else self._top.label(tenant)).resident += tokens

    def review(self, t: float) -> list[str]:
        """Give places to those who have become heavier. Returns who lost theirs."""
        gone = self._top.review(t)
        for name in gone:
            self.sums.pop(name, None)
        return gone

    def fairness(self, t: float) -> dict[str, float]:
        """Each index over the tenants' hits by attainable hits in the window; none where too few can be compared."""
        now = {name: (sums.hits, sums.attainable) for name, sums in self.sums.items() if name not in NOT_ONE}
        if not self._kept or not 0 <= t - self._kept[-1][0] < KEEP_SECONDS:
            self._kept.append((t, now))
            while self._kept[0][0] < t - WINDOW_SECONDS - KEEP_SECONDS or self._kept[0][0] > t:
                self._kept.popleft()
        then = self._kept[0][1]
        hits, could = [], []
        for name, (hit, attainable) in now.items():
            before = then.get(name, (0.0, 0.0))
            if attainable - before[1] >= MIN_TOKENS:
                hits.append(max(hit - before[0], 0.0))
                could.append(attainable - before[1])
        if len(hits) < 2:
            return {}
        shares = [min(hit / attainable, 1.0) for hit, attainable in zip(hits, could, strict=True)]
        found = {
            "jain": fairness.jain(shares),
            "gini": fairness.gini(shares),
            "max_min": fairness.max_min(shares),
            "long_tail": fairness.long_tail_share(hits, could),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _of(self, name: str) -> TenantSums:
        found = self.sums.get(name)
        if found is None:
            found = self.sums[name] = TenantSums()
        return found
