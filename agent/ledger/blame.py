"""Who paid for whom: tokens that one party wanted again, charged to those whose blocks took their place.

The stores of the step that removed a block pushed it out, each by its blocks. Where these were themselves only stored
again, whoever had pushed them out is charged, unless that is the one who lost the block: two that push each other out
in turn pay for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from kvitals.agent.ledger.block_table import EngineStep
from kvitals.agent.ledger.parties import Party
from kvitals.agent.ledger.top import Top
from kvitals.agent.requests.request_families import OTHER
from kvitals.series.slices import Steps, complete

UNATTRIBUTED = "unattributed"
"""In place of a tenant: the step that removed a block stored nothing."""

TENANTS = 12
"""Tenants with a row and a column of their own."""

WAIT_SECONDS = 120.0
"""How long a charge waits for it to be known whose the removing step's stores were: their requests may still run."""

MAX_CHARGES = 20_000

AT_ONCE = 50
"""Charges that are looked at in one step, in a few milliseconds."""


@dataclass(frozen=True, slots=True)
class _Charge:
    """Blocks that a party wanted again after one step had removed them."""

    due: float
    victim: Party
    step: EngineStep
    tokens: int


class Blame:
    """The matrix of one engine, in tokens. What is counted stays where it was counted."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], float] = {}  # who wanted it again, by whom it was pushed out
        self.early = 0  # charges made for lack of room before all was known
        self._top = Top(TENANTS)
        self._waiting: deque[_Charge] = deque()

    @property
    def total(self) -> float:
        """Tokens in all cells."""
        return sum(self.cells.values())

    @property
    def known(self) -> float | None:
        """The part of them of which both sides are known."""
        named = sum(tokens for (victim, by), tokens in self.cells.items() if victim and by not in ("", UNATTRIBUTED))
        return named / self.total if self.cells else None

    @property
    def error(self) -> float | None:
        """What is under `other`, over all: no cell of a tenant with a name of its own lacks more."""
        other = sum(tokens for pair, tokens in self.cells.items() if OTHER in pair)
        return other / self.total if self.cells else None

    def wanted(self, victim: Party, refaults: Mapping[EngineStep, int], block_tokens: int, t: float) -> None:
        """Blocks were wanted again that these steps had removed."""
        for step, blocks in refaults.items():
            self._waiting.append(_Charge(t + WAIT_SECONDS, victim, step, blocks * block_tokens))
        while len(self._waiting) > MAX_CHARGES:
            self._charge(self._waiting.popleft())
            self.early += 1

    def settle(self, t: float) -> None:
        """Charge what can be charged by now."""
        complete(self.settle_steps(t))

    def settle_steps(self, t: float) -> Steps[None]:
        """The same in steps."""
        for number in range(len(self._waiting)):
            if number % AT_ONCE == 0:
                yield None
            charge = self._waiting.popleft()
            if t >= charge.due or all(one.settled for pair in charge.step.stores for one in pair):
                self._charge(charge)
            else:
                self._waiting.append(charge)

    def review(self, t: float) -> list[str]:
        """Give rows and columns to those who have become heavier. Returns who lost theirs."""
        gone = self._top.review(t)
        if gone:
            self.cells = {pair: tokens for pair, tokens in self.cells.items() if not set(pair) & set(gone)}
        return gone

    def _charge(self, charge: _Charge) -> None:
        victim = self._top.place(charge.victim.tenant, charge.tokens)
        stores = charge.step.stores
        blocks = sum(stores.values())
        if not blocks:
            self._add(victim, UNATTRIBUTED, charge.tokens)
        for (party, origin), stored in stores.items():
            tokens = charge.tokens * stored / blocks
            by = party if origin.tenant == charge.victim.tenant else origin  # nobody pushes himself out by another
            self._add(victim, self._top.place(by.tenant, tokens), tokens)

    def _add(self, victim: str, by: str, tokens: float) -> None:
        self.cells[victim, by] = self.cells.get((victim, by), 0.0) + tokens
