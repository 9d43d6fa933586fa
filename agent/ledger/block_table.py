"""What one medium of one engine holds, and what it held: a tree of runs of blocks.

A block's hash stands for its content and all that is before it, so what lies before it never changes: the tree only
grows, and what comes and goes is whether a block is *live*. Blocks that were stored together and lie behind each other
are one `BlockRun`. Engines remove the end of a prefix before its beginning, so of a run the first `live` blocks exist
and the others are *ghosts*: removed, and remembered with the step that removed them so that they are known again. A
removal in the middle splits the run.

Hashes come from anybody, so they may contradict each other: depths tell, and a chain that does not add up is unknown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvitals.agent.ledger.parties import Party
from kvitals.series.slices import Steps, complete

UNKNOWN = -1
"""The depth of blocks of which it is not known what lies before them."""

MAX_CHAIN_RUNS = 4_096
"""Runs that a chain is followed through. A longer one is unknown."""

MAX_KNOWN = 300_000
"""Blocks that the ledgers of a node know together, ghosts included: about 50 MB."""

MAX_RUNS = 75_000
"""Runs that they know together, about 30 MB. Most have tens of blocks; an engine whose blocks all lie behind different
ones could make one of each block, and whoever walks all runs would walk four times as many."""

MAX_RUN = 4_096
"""Blocks of a run, beyond which what is stored behind it begins another: a run is copied when it grows."""

FORGOTTEN_AT_ONCE = 256
"""Runs that are forgotten in one step."""

RUN_BYTES, BLOCK_BYTES, GHOST_BYTES = 400, 110, 8
"""What a run takes, each of its blocks, and each that is a ghost in addition. Measured: docs/measured.md."""


class Room:
    """How many blocks and runs more the ledgers of a node may know."""

    __slots__ = ("left", "runs", "walked")

    def __init__(self, limit: int = MAX_KNOWN, runs: int = MAX_RUNS) -> None:
        self.left = limit
        self.runs = runs  # below 0 where runs were split meanwhile
        self.walked = 0
        """What events have cost so far besides their own blocks: runs and blocks that chains were followed through, and
        blocks of runs that were split."""


MOVED_AT_ONCE = 128
"""Blocks of a run that is split, which are moved in about the time in which one run of a chain is followed."""

MAX_ORIGINS = 8
"""Of what a step pushed out: those with most blocks, for whom the others count."""


MAX_PAIRS = 256
"""Of who stored and whose origin it was, in one step; what others stored is of nobody who is known. Whoever is charged
for the step is charged by each of them."""

_NOBODY = Party()
_NOBODY.settle()
_OTHERS = (_NOBODY, _NOBODY)


class EngineStep:
    """One step of an engine: whose blocks it stored. Ghosts remember the step that removed them.

    Who stores again what was pushed out asks for nothing new: such blocks have whoever pushed them out as their
    origin, and all others the one that stored them.
    """

    __slots__ = ("_shares", "at", "stores")

    def __init__(self, at: float) -> None:
        self.at = at
        self._shares: list[tuple[Party, float]] | None = None
        self.stores: dict[tuple[Party, Party], float] = {}  # who stored them, their origin -> blocks

    def store(self, party: Party, blocks: float) -> None:
        """A party stored blocks that were not there before."""
        self._add(party, party, blocks)

    def store_again(self, party: Party, removed: EngineStep, blocks: int) -> None:
        """A party stored blocks again that an earlier step had removed."""
        shares = removed._shares
        if shares is None:
            shares = removed._origins()
            if removed is not self:  # else it is not over
                removed._shares = shares
        for origin, share in shares:
            self._add(party, origin, blocks * share)
        if not shares:
            self.store(party, blocks)

    def _origins(self) -> list[tuple[Party, float]]:
        """The origins of what was stored and their shares of it."""
        origins: dict[Party, float] = {}
        for (_, origin), stored in self.stores.items():
            origins[origin] = origins.get(origin, 0.0) + stored
        most = sorted(origins.items(), key=lambda entry: -entry[1])[:MAX_ORIGINS]
        of_all = sum(stored for _, stored in most)
        return [(origin, stored / of_all) for origin, stored in most]

    def _add(self, party: Party, origin: Party, blocks: float) -> None:
        pair = (party, origin)
        if pair not in self.stores and len(self.stores) >= MAX_PAIRS:
            pair = _OTHERS
        self.stores[pair] = self.stores.get(pair, 0.0) + blocks


class BlockRun:
    """Blocks behind each other, of which the first `live` are there.

    The garbage collector walks every list of every run, and leaves a tuple of numbers alone. (A structure that it does
    not know at all is no way out: to free a long chain of them overflows the stack.)
    """

    __slots__ = ("depth", "gone", "hashes", "how", "last", "leaf", "live", "parent", "stored", "tenant", "uses")

    def __init__(self, hashes: tuple[int, ...], parent: BlockRun | None, depth: int, at: float) -> None:
        self.hashes = hashes
        self.parent = parent  # the run that ends where this one begins; None at the root, or where it is unknown
        self.depth = depth  # blocks before it
        self.live = len(hashes)
        self.gone: Sequence[EngineStep] = ()  # of the ghosts, of the last block first; a list where there are some
        self.stored = at
        self.last = at  # when it was stored or found last
        self.uses = 0  # look-ups that found it
        self.leaf = True  # nothing is known to lie behind it
        self.tenant: str | None = None  # None: nobody's yet; "": of two or more
        self.how = ""  # how the tenant is known

    @property
    def end(self) -> int:
        """Blocks from the root to its end; UNKNOWN where that is not known."""
        return self.depth + len(self.hashes) if self.depth >= 0 else UNKNOWN


class Removals:
    """What a call of `remove` removed: blocks of one run at a time."""

    __slots__ = ("blocks", "idle", "lived", "used")

    def __init__(self, run: BlockRun, at: float) -> None:
        self.blocks = 0
        self.idle = at - run.last
        self.lived = at - run.stored
        self.used = run.uses > 0


class StoreResult:
    """What a call of `store` did."""

    __slots__ = ("base", "copies", "depth", "refaults", "run", "taken")

    def __init__(self, base: BlockRun | None, depth: int) -> None:
        self.base = base  # the run that ends where the stored blocks begin; None at the root, and where that is unknown
        self.depth = depth  # blocks before the stored ones; UNKNOWN where that is not known
        self.run = base  # the run that ends where the stored ones end; None where there was no room for them
        self.taken = 0  # blocks that are live now and were not
        self.copies = 0  # blocks that were live already
        self.refaults: list[EngineStep] = []  # for each block that was a ghost, the step that had removed it


class Blocks:
    """The runs of one medium and group. All counts are of blocks."""

    def __init__(self, room: Room) -> None:
        self.runs: dict[BlockRun, None] = {}  # as a set that keeps its order, so that one recording gives one document
        self.live = 0  # copies included
        self.ghosts = 0
        self.ghost_limit = MAX_KNOWN
        self.doubt = float("-inf")  # runs that were last heard of before this time may be gone without our knowing
        self.dropped: dict[str, int] = {}  # reason -> blocks
        self._room = room
        self._of: dict[int, BlockRun] = {}
        self._copies: dict[int, int] = {}  # hash -> copies beyond the first
        self._oldest: OrderedDict[BlockRun, None] = (
            OrderedDict()
        )  # runs that have ghosts, in the order of their first one

    def __len__(self) -> int:
        return len(self._of)

    @property
    def copies(self) -> int:
        """Live blocks beside another with the same content."""
        return sum(self._copies.values())

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        return RUN_BYTES * len(self.runs) + BLOCK_BYTES * len(self._of) + GHOST_BYTES * self.ghosts

    def holds(self, blocks: Sequence[int]) -> bool:
        """Whether all of these blocks, which lie behind each other, are there for certain."""
        i = 0
        while i < len(blocks):
            run = self._of.get(blocks[i])
            if run is None or run.last < self.doubt:
                return False
            k = run.hashes.index(blocks[i])
            n = min(run.live - k, len(blocks) - i)
            if n <= 0 or run.hashes[k : k + n] != tuple(blocks[i : i + n]):
                return False
            i += n
        return True

    def ending(self, block: int) -> BlockRun | None:
        """The run that ends with a block, which is split for it; None for a block that is not known."""
        run = self._of.get(block)
        if run is not None and run.hashes[-1] != block:
            return self._split(run, run.hashes.index(block) + 1)
        return run

    def chain(self, run: BlockRun | None, blocks: int | None = None) -> list[int] | None:
        """The hashes from the root to the end of a run, or the first `blocks` of them; None where they are unknown."""
        parts: list[tuple[int, ...]] = []
        while run is not None:
            parent = run.parent
            if run.depth != (parent.end if parent is not None else 0) or len(parts) >= MAX_CHAIN_RUNS:
                return None
            parts.append(run.hashes)
            run = parent
        found: list[int] = []
        for part in reversed(parts):
            found += part
        self._room.walked += len(parts) + len(found)
        return found if blocks is None else found[:blocks]

    def path(self, run: BlockRun | None) -> list[BlockRun]:
        """The runs from this one to the root, as far as they are known."""
        found: list[BlockRun] = []
        while run is not None and len(found) < MAX_CHAIN_RUNS:
            found.append(run)
            parent = run.parent
            if parent is not None and run.depth != parent.end:
                break
            run = parent
        self._room.walked += len(found)
        return found

    def store(self, hashes: tuple[int, ...], parent: int | None, at: float, extend: bool) -> StoreResult:
        """These blocks are there now, behind `parent`. extend: they are of the request that stored what is before."""
        if len(hashes) > 1 and len(set(hashes)) < len(hashes):
            self._drop("contradiction", len(hashes))
            return StoreResult(None, UNKNOWN)
        base = self.ending(parent) if parent is not None else None
        if parent is not None and base is None:
            self._drop("unknown_parent", 1)
        said = StoreResult(base, base.end if base is not None else 0 if parent is None else UNKNOWN)
        if self._of.keys().isdisjoint(hashes):
            self._take(said, hashes, said.depth, at, extend)
        else:
            self._merge(said, hashes, at)
        self.live += said.taken + said.copies
        return said

    def remove(self, hashes: Sequence[int], step: EngineStep) -> list[Removals]:
        """A copy of each of these blocks is there no more. The last of a prefix is best told first."""
        of, copies, at = self._of, self._copies, step.at
        said: list[Removals] = []
        last: BlockRun | None = None
        removal: Removals | None = None
        unknown = 0
        for block in hashes:
            run = of.get(block)
            if run is None:
                unknown += 1
                continue
            if copies and block in copies:
                self._remove_copy(block)
                continue
            live = run.live - 1
            if live < 0 or run.hashes[live] != block:
                split = self._open(run, block)
                if split is None:
                    unknown += 1
                    continue
                run, live = split, split.live - 1
            gone = run.gone if isinstance(run.gone, list) else []
            if not gone:
                self._oldest[run], run.gone = None, gone
            run.live = live
            gone.append(step)
            if run is not last or removal is None:
                last, removal = run, Removals(run, at)
                said.append(removal)
            removal.blocks += 1
        if unknown:
            self._drop("unknown_removal", unknown)
        removed = sum(removal.blocks for removal in said)
        self.live -= removed
        self.ghosts += removed
        if self.ghosts > self.ghost_limit:
            self._trim(self.ghosts - self.ghost_limit)
        return said

    def clear(self) -> int:
        """Forget everything. Returns how many blocks were live."""
        live = self.live
        self._room.left += len(self._of)
        self._room.runs += len(self.runs)
        self.runs.clear()
        self._of.clear()
        self._copies.clear()
        self._oldest.clear()
        self.live = self.ghosts = 0
        return live

    def purge(self, before: float) -> int:
        """Forget the runs that were last heard of before a time. Returns how many live blocks that were."""
        return complete(self.purge_steps(before))

    def purge_steps(self, before: float) -> Steps[int]:
        """The same in steps."""
        lost = 0
        for number, run in enumerate([run for run in self.runs if run.last < before], 1):
            was_live = run.live
            self.ghosts -= len(run.gone)
            was_live += self._forget(run, 0)
            self.live -= was_live
            lost += was_live
            if number % FORGOTTEN_AT_ONCE == 0:
                yield None
        return lost

    def _take(self, said: StoreResult, hashes: Sequence[int], depth: int, at: float, extend: bool) -> None:
        """New blocks behind the run that `said` has."""
        if not self._make_room(len(hashes)):
            self._drop("live_limit", len(hashes))
            said.run = None
            return
        run = said.run
        if extend and run is not None and run.leaf and run.live == len(run.hashes) < MAX_RUN:
            run.hashes += tuple(hashes)
            run.live += len(hashes)
            run.last = at
        elif self._has_room_for_a_run():
            run = self._begin(tuple(hashes), run, depth, at)
        else:
            self._room.left += len(hashes)
            self._drop("run_limit", len(hashes))
            said.run = None
            return
        if len(hashes) == 1:
            self._of[hashes[0]] = run
        else:
            self._of.update(dict.fromkeys(hashes, run))
        said.run = run
        said.taken += len(hashes)

    def _begin(self, hashes: tuple[int, ...], parent: BlockRun | None, depth: int, at: float) -> BlockRun:
        run = BlockRun(hashes, parent, depth, at)
        if parent is not None:
            parent.leaf = False
        self._add(run)
        return run

    def _add(self, run: BlockRun) -> None:
        self.runs[run] = None
        self._room.runs -= 1

    def _merge(self, said: StoreResult, hashes: tuple[int, ...], at: float) -> None:
        """Blocks of which some are known: those that are live have a copy more, ghosts come back."""
        i, depth = 0, said.depth
        while i < len(hashes):
            run = self._of.get(hashes[i])
            if run is None:
                j = i + 1
                while j < len(hashes) and hashes[j] not in self._of:
                    j += 1
                self._take(said, hashes[i:j], depth, at, False)
            else:
                j = self._again(said, run, hashes, i, at)
            if said.run is None:
                return
            i, depth = j, said.run.end

    def _again(self, said: StoreResult, run: BlockRun, hashes: tuple[int, ...], i: int, at: float) -> int:
        """The blocks from the i-th on that are of a known run. Returns where they end."""
        known = run.hashes
        k = known.index(hashes[i])
        n = 1
        while k + n < len(known) and i + n < len(hashes) and known[k + n] == hashes[i + n]:
            n += 1
        if k + n < len(known):
            run = self._split(run, k + n)
        if k > run.live or (k and run.last < self.doubt):
            self._split(run, k)  # what is before is gone and what follows is there, or one is in doubt and one is not
            k, n = 0, len(run.hashes)
        before = said.run
        if k == 0 and before is not None and before.end >= 0 and run.depth in (UNKNOWN, before.end):
            # Its parent had been forgotten, or what lies before that one is known only now.
            run.parent, run.depth, before.leaf = before, before.end, False
        self._revive(said, run, k, k + n, at)
        said.run = run
        return i + n

    def _revive(self, said: StoreResult, run: BlockRun, start: int, end: int, at: float) -> None:
        """The blocks of a run from `start` to `end` are stored again; those before are live."""
        held = max(0, min(run.live, end) - start)
        if held and run.last >= self.doubt:
            for block in run.hashes[start : start + held]:
                self._copies[block] = self._copies.get(block, 0) + 1
            said.copies += held
        back = end - start - held
        if back:
            if not run.live:  # whoever had it has it no more
                run.stored, run.uses, run.tenant, run.how = at, 0, None, ""
            said.refaults += reversed(run.gone[-back:])
            run.gone = [*run.gone[:-back]] or ()
            if not run.gone:
                del self._oldest[run]
            run.live += back
            said.taken += back
            self.ghosts -= back
        run.last = at

    def _split(self, run: BlockRun, at: int) -> BlockRun:
        """Split a run before its block number `at`. What follows keeps its identity, since others lie behind it.
        Returns the part before."""
        head = BlockRun(run.hashes[:at], run.parent, run.depth, run.stored)
        head.last, head.uses, head.leaf = run.last, run.uses, False
        head.tenant, head.how = run.tenant, run.how
        ghosts = len(run.hashes) - max(run.live, at)  # that stay with what follows
        head.live = min(run.live, at)
        head.gone, run.gone = [*run.gone[ghosts:]] or (), [*run.gone[:ghosts]] or ()
        run.live = max(0, run.live - at)
        run.hashes = run.hashes[at:]
        run.parent, run.depth = head, head.end
        self._of.update(dict.fromkeys(head.hashes, head))
        self._add(head)
        if head.gone:
            self._oldest[head] = None
            if not run.gone:
                del self._oldest[run]
        return head

    def _open(self, run: BlockRun, block: int) -> BlockRun | None:
        """Split a run behind a live block within it. None where the block is a ghost already."""
        k = run.hashes.index(block)
        self._room.walked += len(run.hashes) // MOVED_AT_ONCE
        if k >= run.live:
            return None
        if not self._has_room_for_a_run():
            self._drop("run_limit", len(run.hashes))
            self.ghosts -= len(run.gone)
            self.live -= run.live
            self.live -= self._forget(run, 0)
            return None
        return self._split(run, k + 1)

    def _remove_copy(self, block: int) -> None:
        self.live -= 1
        left = self._copies[block] - 1
        if left:
            self._copies[block] = left
        else:
            del self._copies[block]

    def _make_room(self, blocks: int) -> bool:
        if self._room.left < blocks:
            self._trim(max(blocks - self._room.left, self.ghosts // 64))
        if self._room.left < blocks:
            return False
        self._room.left -= blocks
        return True

    def _has_room_for_a_run(self) -> bool:
        """Whether there may be one run more; the oldest ghosts are forgotten for it."""
        if self._room.runs <= 0 and self.ghosts:
            self._trim(max(self.ghosts // 64, 1))
        return self._room.runs > 0

    def _trim(self, blocks: int) -> None:
        """Forget that many ghosts or some more, the oldest first."""
        left = max(self.ghosts - blocks, 0)
        before = self.ghosts
        while self.ghosts > left:
            run, _ = self._oldest.popitem(last=False)
            self.ghosts -= len(run.gone)
            self._forget(run, run.live)
        self._drop("ghost_limit", before - self.ghosts)

    def _forget(self, run: BlockRun, start: int) -> int:
        """Forget a run's blocks from one on. Returns how many copies they had."""
        copies = 0
        for block in run.hashes[start:]:
            del self._of[block]
            copies += self._copies.pop(block, 0) if self._copies else 0
        self._room.left += len(run.hashes) - start
        run.hashes, run.gone = run.hashes[:start], ()
        run.live = min(run.live, start)
        self._oldest.pop(run, None)
        if not run.hashes and run in self.runs:
            del self.runs[run]
            self._room.runs += 1
        return copies

    def _drop(self, reason: str, blocks: int) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + blocks
