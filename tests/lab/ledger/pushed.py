"""Who pushed out what the light tenants wanted again, by the order of events and the driver's knowledge of whose each
block is.

vLLM tells the blocks that a request pushes out just before those that it stores. What it stores of blocks that had been
pushed out themselves is charged to whoever did that, however long the chain: a share of each store is its own tenant's,
the rest is of those behind the blocks that it only had to store again.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvitals.agent.ledger.event import GPU, BlockEventBatch, BlocksRemoved, BlocksStored

from .recorded import Row

NOBODY = ""
"""Removed in a step in which nothing was stored afterwards: a block for decoding was needed."""

Shares = dict[str, float]
"""Tenant -> share, 1 together."""


class Pushed:
    """Follows one engine's events. `lost[victim][by]` are blocks of prompts that were wanted again."""

    def __init__(self, tenant_of: dict[int, str]) -> None:
        self.lost: dict[str, Shares] = {}
        self._tenant_of = tenant_of
        self._gone: dict[int, Shares] = {}  # block that is not there -> who is behind that
        self._live: dict[int, int] = {}

    def feed(self, batch: BlockEventBatch, decoded: frozenset[int]) -> None:
        """The events of one step. decoded: blocks that only answers filled."""
        pending: list[int] = []
        for event in batch.events:
            if isinstance(event, BlocksRemoved) and event.medium == GPU:
                for block in event.hashes:
                    self._live[block] = self._live.get(block, 1) - 1
                    if not self._live[block]:
                        pending.append(block)
            elif isinstance(event, BlocksStored) and event.medium == GPU:
                causes = self._store(event, decoded)
                self._gone.update(dict.fromkeys(pending, causes))
                pending = []
        nobody = {NOBODY: 1.0}
        self._gone.update(dict.fromkeys(pending, nobody))

    def _store(self, event: BlocksStored, decoded: frozenset[int]) -> Shares:
        """Who is behind a store's blocks."""
        causes: Shares = {}
        for block in event.hashes:
            self._live[block] = self._live.get(block, 0) + 1
            tenant = self._tenant_of.get(block, NOBODY)
            behind = self._gone.pop(block, None)
            if behind is not None and block not in decoded:
                lost = self.lost.setdefault(tenant, {})
                for by, share in behind.items():
                    lost[by] = lost.get(by, 0.0) + share
            for by, share in (behind or {tenant: 1.0}).items():
                causes[by] = causes.get(by, 0.0) + share / len(event.hashes)
        return causes


def pushed(batches: Sequence[BlockEventBatch], requests: Sequence[Row]) -> dict[str, Shares]:
    """Blocks of prompts that each tenant had to compute again, by who is behind that."""
    prompts = {block for row in requests for block in row["blocks"]}
    decoded = frozenset(block for row in requests for block in row["decoded_blocks"] if block not in prompts)
    tenant_of = {block: row["tenant"] for row in requests for block in (*row["blocks"], *row["decoded_blocks"])}
    found = Pushed(tenant_of)
    for batch in batches:
        found.feed(batch, decoded)
    return found.lost
