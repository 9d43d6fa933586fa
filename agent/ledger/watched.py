"""One engine's ledger with what is made of its look-ups."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from zlib import crc32

from kvitals.agent.ledger.blame import Blame
from kvitals.agent.ledger.block_table import Blocks, Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.event import GPU
from kvitals.agent.ledger.facts import EngineFacts
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.ledger.residency import Residency, survey_steps
from kvitals.agent.ledger.reuse_curves import signed_hashes
from kvitals.kvcache.accesses import UNKNOWN, Accesses, Builder
from kvitals.series.slices import Steps

OBSERVED_SECONDS = 900.0

MAX_SETTLED_BLOCKS = 2_000_000
"""Of the chains of look-ups that wait to be taken, 8 bytes each. A look-up beyond has no chain: one block that is
stored behind a long prompt, over and over, makes a chain of the whole prompt each time."""


class WatchedEngine:
    """What is known of one engine."""

    def __init__(self, name: str, target: str, room: Room, owners: Owners, style: Style, references: int) -> None:
        """references: block references of look-ups that are kept for whoever wants to replay them."""
        self.name, self.target = name, target
        self._settled: list[SettledLookup] = []
        self._settled_blocks = 0  # of their chains
        self.ledger = EngineLedger(room, owners, style, self._take)
        self.blame = Blame()
        self.sources: dict[str, int] = {}  # look-ups by how they are known
        self.lookup_tokens = self.hit_tokens = 0
        self.residency = Residency()
        self.token_seconds: dict[str, float] = {}  # by purpose
        self.observed: float | None = None  # share of what the engine looked up, of late
        self.changed = True  # something was said since the last row
        self._references = references
        self._builder: Builder | None = None
        self._builder_tokens = 0  # of a block
        self._counts: deque[tuple[float, int, float]] = deque()  # when, our tokens, the engine's
        self._first: tuple[int, float] | None = None  # the same when we began, or the engine did

    @property
    def fill(self) -> float | None:
        """Blocks with something to be found over all of the device's."""
        live = sum(table.live for (medium, _), table in self.ledger.tables.items() if medium == GPU)
        return min(live / self.ledger.pool, 1.0) if self.ledger.pool else None

    @property
    def lower(self) -> list[Blocks]:
        """The tables of the tiers below the device."""
        return [table for (medium, _), table in self.ledger.tables.items() if medium != GPU]

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        held = 8 * min(self._references, self.lookup_tokens // max(self.ledger.block_tokens, 1))
        return self.ledger.bytes + held

    def take_settled(self) -> list[SettledLookup]:
        """The look-ups that were settled since the last time."""
        looks, self._settled, self._settled_blocks = self._settled, [], 0
        return looks

    def survey(self, t: float, seconds: float, facts: EngineFacts) -> Steps[None]:
        """Look at all blocks; they were as at the last time for so many seconds."""
        ledger = self.ledger
        ledger.set_pool(facts.pool(self.name, t) or ledger.pool)
        for purpose, tokens in self.residency.purposes.items():
            self.token_seconds[purpose] = self.token_seconds.get(purpose, 0.0) + tokens * seconds
        usage = facts.pinned(self.name, t)
        pinned = usage * ledger.pool if usage is not None and ledger.pool else None
        self.residency = yield from survey_steps(ledger.main, self.lower, ledger.block_tokens, pinned, t)
        self._observe(t, facts.looked_up(self.name, t))

    def accesses(self) -> Accesses | None:
        """The latest look-ups, as far as their blocks are known; None where there are none."""
        if self._builder is None:
            return None
        share = self.observed_from_start
        learned = f"from {self.name}'s KV events" + (
            f", {share:.0%} of the tokens that it looked up" if share is not None else ""
        )
        return self._builder.accesses(share, learned)

    @property
    def observed_from_start(self) -> float | None:
        """The share of what the engine looked up since we began."""
        if self._first is None or not self._counts or self._counts[-1][2] <= self._first[1]:
            return None
        return min((self.lookup_tokens - self._first[0]) / (self._counts[-1][2] - self._first[1]), 1.0)

    def _observe(self, t: float, looked_up: float | None) -> None:
        if looked_up is None:
            self.observed = None
            return
        counts = self._counts
        if counts and looked_up < counts[-1][2]:  # it was restarted
            counts.clear()
            self._first = self.lookup_tokens, 0.0
        if self._first is None:
            self._first = self.lookup_tokens, looked_up
        counts.append((t, self.lookup_tokens, looked_up))
        while counts[0][0] < t - OBSERVED_SECONDS:
            counts.popleft()
        asked = looked_up - counts[0][2]
        self.observed = (self.lookup_tokens - counts[0][1]) / asked if asked > 0 else None

    def _take(self, look: SettledLookup) -> None:
        blocks = len(look.chain) if look.chain is not None else 0
        if self._settled_blocks + blocks > MAX_SETTLED_BLOCKS:
            self.ledger.dropped["settled_limit"] = self.ledger.dropped.get("settled_limit", 0) + 1
            self._settled.append(replace(look, chain=None))
        else:
            self._settled_blocks += blocks
            self._settled.append(look)
        self.sources[look.source] = self.sources.get(look.source, 0) + 1
        self.lookup_tokens += look.prompt
        self.hit_tokens += look.hits * look.tokens
        if look.refaults:
            self.blame.wanted(look.party, look.refaults, look.tokens, look.at)
        if look.chain is not None:
            self._keep(look)

    def _keep(self, look: SettledLookup) -> None:
        chain = signed_hashes(look.chain or [])
        if chain is None or not look.tokens:
            return
        if self._builder is None or self._builder_tokens != look.tokens:
            self._builder, self._builder_tokens = Builder(look.tokens, self._references), look.tokens
        party = look.party
        self._builder.add(
            look.at,
            look.prompt,
            chain,
            look.source,
            engine=self.name,
            tenant=party.tenant or None,
            session=crc32(party.session.encode()) if party.session else UNKNOWN,
            output=look.output if look.output is not None else UNKNOWN,
            hit=look.hits,
        )
