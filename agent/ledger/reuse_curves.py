"""Reuse curves of a node's engines, of all of them together and of the tenants with most traffic, kept up.

Curves want look-ups in the order of their times, and these become known in the order in which requests end. So they
wait here until those before them are known, or a while.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial

import msgspec

from kvitals.agent.ledger.engine import SettledLookup
from kvitals.kvcache.accesses import Accesses, Builder
from kvitals.kvcache.reuse import Curve, ReuseCurve
from kvitals.series.slices import Steps, complete

POOLED = ("node", "")

CAPACITIES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Of which the hit ratio is told, in pools."""

MAX_BLOCKS = 8_192
"""Blocks that a curve remembers: it takes a quarter of a megabyte, and 2 MB for the moment in which it counts."""

HALF_LIFE = 3_600.0
MAX_WAITING = 262_144
"""Block references that wait for their turn, at most: 2 MB."""

FEED_SECONDS = 15.0
MAX_FEED = 150_000
"""Block references that are taken each time, at most, a tenth of a second's work or two; others are left out."""

Name = tuple[str, str]
"""engine, tenant or node, and which."""


class _Turn(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A look-up that waits."""

    at: float
    prompt: int
    chain: array[int]
    engine: str
    tenant: str


class Reuse:
    """Feed look-ups as they are settled; ask for the curves."""

    def __init__(self, most: int) -> None:
        """most: curves. With as many as there can be engines and tenants that have one, and one more, all have."""
        self.left_out = 0  # block references that were too many
        self.other_size = 0  # and those of blocks of another size than the first ones had
        self._most = most
        self._curves: dict[Name, ReuseCurve] = {}
        self._turns: list[_Turn] = []
        self._waits = 0  # block references
        self._fed = float("-inf")
        self._until = float("-inf")  # what is before this time was taken
        self._tokens = 0  # of a block

    def add(self, look: SettledLookup, engine: str, tenant: str) -> None:
        """A look-up of an engine. tenant: under which name it is counted."""
        if look.chain is None or not look.tokens:
            return
        if self._tokens and look.tokens != self._tokens:
            self.other_size += len(look.chain)
            return
        self._tokens = look.tokens
        if self._waits + len(look.chain) > MAX_WAITING:
            self.left_out += len(look.chain)
            return
        chain = signed_hashes(look.chain)
        if chain is not None:
            self._waits += len(chain)
            self._turns.append(_Turn(look.at, look.prompt, chain, engine, tenant))

    def advance(self, t: float, patience: float, pools: dict[str, int], tenants: Iterable[str]) -> None:
        """Take the look-ups that are older than `patience` seconds, where it is time. pools: blocks of each engine;
        tenants: who have a curve."""
        complete(self.advance_steps(t, patience, pools, tenants))

    def advance_steps(self, t: float, patience: float, pools: dict[str, int], tenants: Iterable[str]) -> Steps[None]:
        """The same in steps."""
        if 0 <= t - self._fed < FEED_SECONDS:
            return
        self._fed = t
        yield from self._take(t - patience, pools, frozenset(tenants))

    def flush(self, pools: dict[str, int], tenants: Iterable[str]) -> None:
        """Take all: nothing more is to come."""
        complete(self._take(float("inf"), pools, frozenset(tenants)))

    def curve(self, name: Name) -> Curve | None:
        """A curve as of what was taken; None where that is too little."""
        found = self._curves.get(name)
        return found.curve() if found is not None else None

    def gone(self, name: Name) -> None:
        """An engine is watched no more, or a tenant has no series of its own any more."""
        self._curves.pop(name, None)

    @property
    def names(self) -> list[Name]:
        """The curves that there are."""
        return list(self._curves)

    def _take(self, until: float, pools: dict[str, int], tenants: frozenset[str]) -> Steps[None]:
        self._turns.sort(key=lambda turn: turn.at)
        due = [turn for turn in self._turns if turn.at <= until]
        self._turns = self._turns[len(due) :]
        self._waits -= sum(len(turn.chain) for turn in due)
        if not pools:
            return
        total, kept = 0, []
        for turn in due:
            if turn.at < self._until or total + len(turn.chain) > MAX_FEED:
                self.left_out += len(turn.chain)  # its turn is over, or it is too much at a time
                continue
            total += len(turn.chain)
            kept.append(turn)
        if kept:
            self._until = kept[-1].at
        for name, rows in self._sorted(kept, tenants, len(pools) > 1).items():
            curve = self._of(name, pools, tenants)
            if curve is not None:
                yield partial(self._feed, curve, rows)  # a tenth of a second where there are most: in a thread

    def _feed(self, curve: ReuseCurve, turns: list[_Turn]) -> None:
        curve.feed(self._accesses(turns))

    def _sorted(self, turns: list[_Turn], tenants: frozenset[str], several: bool) -> dict[Name, list[_Turn]]:
        """The look-ups of each curve. several: there is more than one engine."""
        found: dict[Name, list[_Turn]] = {}
        for turn in turns:
            found.setdefault(("engine", turn.engine), []).append(turn)
            if several:
                found.setdefault(POOLED, []).append(turn)
            if turn.tenant in tenants:
                found.setdefault(("tenant", turn.tenant), []).append(turn)
        return found

    def _of(self, name: Name, pools: dict[str, int], tenants: frozenset[str]) -> ReuseCurve | None:
        """A curve; None where there are too many, or where the engine's pool is not known. Where there are too many
        those of tenants who are no longer among those that have one make room."""
        found = self._curves.get(name)
        if found is None and len(self._curves) >= self._most:
            for kind, which in [one for one in self._curves if one[0] == "tenant" and one[1] not in tenants]:
                self.gone((kind, which))
        if found is None and len(self._curves) < self._most:
            pool = pools.get(name[1], 0) if name[0] == "engine" else max(pools.values())
            pool = sum(pools.values()) if name == POOLED else pool
            if pool:
                largest = int(CAPACITIES[-1] * pool)
                found = self._curves[name] = ReuseCurve(largest, min(largest, MAX_BLOCKS) + 1_024, half_life=HALF_LIFE)
        return found

    def _accesses(self, turns: list[_Turn]) -> Accesses:
        builder = Builder(self._tokens, 8 * (MAX_FEED + 8))
        for turn in turns:
            builder.add(turn.at, turn.prompt, turn.chain, "inferred", engine=turn.engine)
        return builder.accesses()


def signed_hashes(chain: list[int]) -> array[int] | None:
    """Hashes as signed numbers of 64 bits; None where one has more."""
    try:
        unsigned = array("Q", chain)
    except (OverflowError, TypeError):
        return None
    found = array("q")
    found.frombytes(unsigned.tobytes())
    return found
