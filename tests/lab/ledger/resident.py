"""What was resident when each request was scheduled, by the events of its engine and the chain of its prompt.

Only a test can know this: it needs each prompt's blocks. A request was scheduled just before the store that holds its
first *own* block, which is the first that no request before it has. Where that store goes on behind another of the same
request (a prompt that took several steps), it was scheduled before the first of these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from kvitals.agent.ledger.event import GPU, BlockEventBatch, BlocksRemoved, BlocksStored

from .recorded import Row

CHUNK_STEPS = 4
"""Steps with events within which the next chunk of a prompt comes."""

CLOCKS_S = 0.005
"""By which an engine's time and its client's may differ here, where both are on one machine."""


@dataclass(frozen=True)
class Scheduled:
    """When a request was looked up, and how many of its leading blocks were there that it may use.

    low and high are the same, unless it stored no block of its own: then its moment is known to some steps only.
    """

    at: float
    low: int
    high: int
    seen: bool  # by a store of its own


@dataclass(frozen=True)
class _Store:
    number: int  # of the event
    batch: int
    at: float
    event: BlocksStored


class Residency:
    """Which blocks were on the device before each event. Events are numbered in order."""

    def __init__(self, batches: Sequence[BlockEventBatch]) -> None:
        self.stores: list[_Store] = []
        self.begins: list[tuple[float, int]] = []  # of each batch: when, and the number of its first event
        self._changes: dict[int, tuple[list[int], list[int]]] = {}  # block -> numbers of events, copies after each
        number = 0
        for place, batch in enumerate(batches):
            self.begins.append((batch.at, number))
            for event in batch.events:
                if isinstance(event, BlocksStored) and event.medium == GPU:
                    self.stores.append(_Store(number, place, batch.at, event))
                    self._change(event.hashes, number, 1)
                elif isinstance(event, BlocksRemoved) and event.medium == GPU:
                    self._change(event.hashes, number, -1)
                elif not isinstance(event, BlocksStored | BlocksRemoved):
                    self._change([one for one in self._changes if self._copies(one, number)], number, 0)
                number += 1

    def leading(self, chain: Sequence[int], number: int) -> int:
        """How many of a chain's first blocks were there before the event of this number."""
        return next((i for i, block in enumerate(chain) if not self._copies(block, number)), len(chain))

    def _copies(self, block: int, number: int) -> int:
        numbers, copies = self._changes.get(block, ([], []))
        place = bisect_left(numbers, number)
        return copies[place - 1] if place else 0

    def _change(self, blocks: Sequence[int], number: int, by: int) -> None:
        for block in blocks:
            numbers, copies = self._changes.setdefault(block, ([], []))
            numbers.append(number)
            copies.append(max((copies[-1] if copies else 0) + by, 0) if by else 0)


def scheduled(
    batches: Sequence[BlockEventBatch], requests: Sequence[Row], block: int, *, by_store: bool = True
) -> dict[str, Scheduled]:
    """The look-up of each request that ended well, by its id. block: tokens of one. The last token of a prompt is
    always computed, so the block that ends with it is never found. by_store: the engine stores at the look-up; without,
    a request was looked up at some time between when it was sent and its own store."""
    residency = Residency(batches)
    own = own_blocks(requests)
    owned = set(own.values())
    stores: dict[int, list[_Store]] = {}  # own block -> its stores
    behind: dict[int, list[_Store]] = {}  # block -> the stores that end with it
    for store in residency.stores:
        behind.setdefault(store.event.hashes[-1], []).append(store)
        for one in owned.intersection(store.event.hashes):
            stores.setdefault(one, []).append(store)
    done = [row for row in requests if row["ok"]]
    its = {row["id"]: _its_own(stores.get(own.get(row["id"], 0), ()), row) for row in done}
    taken = {store.number for store in its.values() if store is not None}
    found = {}
    for row in done:
        chain = row["blocks"][: max(row["prompt_tokens"] - 1, 0) // block]
        mine = its.get(row["id"])
        if mine is not None and by_store:
            first = _first(mine, row, behind, taken)
            held = residency.leading(chain, first.number)
            found[row["id"]] = Scheduled(first.at, held, held, seen=True)
        else:
            held_then = [residency.leading(chain, number) for number in _moments(residency, row, mine)]
            found[row["id"]] = Scheduled(row["sent"], min(held_then), max(held_then), seen=False)
    return found


def own_blocks(requests: Sequence[Row]) -> dict[str, int]:
    """The first block of each request that none before it has, where it has one."""
    seen: set[int] = set()
    own: dict[str, int] = {}
    for row in requests:
        fresh = next((block for block in row["blocks"] if block not in seen), None)
        if fresh is not None:
            own[row["id"]] = fresh
        seen.update(row["blocks"])
        seen.update(row["decoded_blocks"])
    return own


def _its_own(stores: Sequence[_Store], row: Row) -> _Store | None:
    """The store of a request that holds its own block."""
    return next((one for one in stores if one.at >= row["sent"] - CLOCKS_S), None)


def _first(store: _Store, row: Row, behind: dict[int, list[_Store]], taken: set[int]) -> _Store:
    """The first store of the request that made this one. taken: those that are other requests'."""
    chain = set(row["blocks"])
    while store.event.parent is not None:
        before = [
            one
            for one in behind.get(store.event.parent, ())
            if 0 < store.batch - one.batch <= CHUNK_STEPS
            and one.at >= row["sent"] - CLOCKS_S
            and chain.issuperset(one.event.hashes)
            and one.number not in taken
        ]
        if not before:
            break
        store = before[-1]
    return store


def _moments(residency: Residency, row: Row, own: _Store | None) -> list[int]:
    """The numbers of events before which a request may have been looked up: when it was sent, to its own store, or else
    to its first token."""
    first = bisect_left(residency.begins, (row["sent"] - CLOCKS_S, 0))
    last = bisect_left(residency.begins, ((row["first"] or row["ended"]) + CLOCKS_S, 0))
    begins = [number for _, number in residency.begins]
    end = begins[-1] + 1_000_000 if begins else 0  # behind everything
    found = [*begins[first:last], begins[last] if last < len(begins) else end]
    return found if own is None else [*(number for number in found if number < own.number), own.number]
