"""What a prefix cache of so many blocks holds, under different orders of eviction, replayed block by block.

A request is looked up first: a block hits only if all before it in its chain hit. Then all of its blocks are touched,
from the last to the first, one at a time: one that is there is touched, one that is not is inserted, and inserting into
a full cache evicts one first. The kernels are plain Python on ordered dictionaries, which evict in constant time:
millions of block references a second (`make bench-whatif`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Literal, Protocol

Policy = Literal["lru", "lfu", "fifo", "priority"]
POLICIES: tuple[Policy, ...] = ("lru", "lfu", "fifo", "priority")


class Cache(Protocol):
    """One node's cache of blocks."""

    def __contains__(self, block: int) -> bool: ...

    def leading(self, chain: Sequence[int]) -> int:
        """How many of the chain's blocks hit, from the root on. Changes nothing."""

    def touch(self, chain: Sequence[int], time: float, session: int) -> None:
        """Touch or insert all of them; session: -1 if unknown."""


class _Holding:
    """Blocks that are held, each with what is remembered of it."""

    _held: Mapping[int, object]

    def __contains__(self, block: int) -> bool:
        return block in self._held

    def leading(self, chain: Sequence[int]) -> int:
        held = self._held
        for hits, block in enumerate(chain):
            if block not in held:
                return hits
        return len(chain)


class _InOrder(_Holding):
    """Blocks in the order in which they leave."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()


class Lru(_InOrder):
    """Evicts the block touched longest ago."""

    def touch(self, chain: Sequence[int], time: float, session: int) -> None:
        held, capacity = self._held, self._capacity
        again, evict = held.move_to_end, held.popitem
        for block in reversed(chain):
            if block in held:
                again(block)
            else:
                if len(held) >= capacity:
                    evict(last=False)
                held[block] = None


class Fifo(_InOrder):
    """Evicts the block inserted longest ago."""

    def touch(self, chain: Sequence[int], time: float, session: int) -> None:
        held, capacity = self._held, self._capacity
        for block in reversed(chain):
            if block not in held:
                if len(held) >= capacity:
                    held.popitem(last=False)
                held[block] = None


class Lfu(_Holding):
    """Evicts the block with the fewest touches since it was inserted, of those the one touched longest ago."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: dict[int, int] = {}
        self._with: dict[int, OrderedDict[int, None]] = {1: OrderedDict()}  # touches -> blocks, longest ago first
        self._fewest = 1

    def touch(self, chain: Sequence[int], time: float, session: int) -> None:
        touches, having, capacity = self._held, self._with, self._capacity
        for block in reversed(chain):
            count = touches.get(block, 0)
            if count:
                del having[count][block]
            elif len(touches) >= capacity:
                self._evict()
            touches[block] = count + 1
            if count + 1 in having:
                having[count + 1][block] = None
            else:
                having[count + 1] = OrderedDict.fromkeys((block,))
            if not count:
                self._fewest = 1

    def _evict(self) -> None:
        while not self._with[self._fewest]:
            self._fewest += 1
        block, _ = self._with[self._fewest].popitem(last=False)
        del self._held[block]


class Priority(_Holding):
    """LRU, but blocks of active sessions leave last.

    A block belongs to the session that touched it last. A session is active as long as its requests follow one another
    within `horizon` seconds, and so long after the latest; what it had before a longer pause is no longer its own. As
    long as there is a block without an active session, the one of those touched longest ago is evicted, otherwise the
    one touched longest ago of all.
    """

    def __init__(self, capacity: int, horizon: float) -> None:
        self._capacity = capacity
        self._horizon = horizon
        self._held: dict[int, int] = {}  # block -> number of its last touch
        self._order = array("q")  # touch -> block; it is stale where it is not its block's last
        self._active: OrderedDict[int, float] = OrderedDict()  # session -> time of its latest request, oldest first
        self._touches: dict[int, list[range]] = {}  # of an active session's requests
        self._first = 0  # touches before that are stale, or of no active session
        # Touches of no active session: in order as they come, since who is retired first was touched first, and a heap
        # of those that are not.
        self._idle: deque[int] = deque()
        self._astray: list[int] = []

    def touch(self, chain: Sequence[int], time: float, session: int) -> None:
        self._retire(time - self._horizon)
        held, capacity, begin = self._held, self._capacity, len(self._order)
        self._order.extend(reversed(chain))
        if session >= 0:
            self._active[session] = time
            self._active.move_to_end(session)
            self._touches.setdefault(session, []).append(range(begin, len(self._order)))
        for touch, block in enumerate(reversed(chain), begin):
            if block not in held and len(held) >= capacity:
                self._evict()
            held[block] = touch
            if session < 0:
                self._let_go(touch)

    def _retire(self, before: float) -> None:
        """Sessions whose latest request was before that are active no more."""
        active, order, held = self._active, self._order, self._held
        while active and next(iter(active.values())) < before:
            session, _ = active.popitem(last=False)
            for touches in self._touches.pop(session):
                for touch in touches:
                    if held.get(order[touch]) == touch:
                        self._let_go(touch)

    def _let_go(self, touch: int) -> None:
        """What was touched then is of no active session."""
        if not self._idle or touch > self._idle[-1]:
            self._idle.append(touch)
        else:
            heappush(self._astray, touch)

    def _evict(self) -> None:
        idle, astray, order, held = self._idle, self._astray, self._order, self._held
        while idle or astray:
            touch = heappop(astray) if astray and not (idle and idle[0] < astray[0]) else idle.popleft()
            if held.get(order[touch]) == touch:
                del held[order[touch]]
                return
        while held.get(order[self._first]) != self._first:
            self._first += 1
        del held[order[self._first]]


def cache(policy: Policy, capacity: int, horizon: float) -> Cache:
    """An empty cache of `capacity` blocks. `horizon`, in seconds, is for priority alone."""
    if capacity < 1:
        raise ValueError("a cache has at least one block")
    if policy == "priority":
        return Priority(capacity, horizon)
    kernels: dict[Policy, Callable[[int], Cache]] = {"lru": Lru, "lfu": Lfu, "fifo": Fifo}
    return kernels[policy](capacity)
