"""Ids of requests that were released, by which late parts are recognised.

    released = ReleasedIds(50_000)
    released.add(["request:a", "b7ad6b7169203331"], end, True, ["trace:0af7"])
    released.find("request:a")        # ReleasedRequest(end, True, (hash("trace:0af7"),))
    released.has_trace("trace:0af7")

Two generations of up to `limit` ids each: when one is full, the one before it is forgotten. A request with an id and a
trace takes about 80 bytes in arrays, where a dict of tuples took 260, and the garbage collector does not walk arrays.
Only hashes are kept: two of 64 bits, made with a key that each process draws, are not equal by chance or by intent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

NO_NUMBER = -1
FIRST_SLOTS = 1_024


class ReleasedRequest(NamedTuple):
    """A request that was released."""

    end: float  # seconds since the epoch; -inf: not reported
    outer: bool  # it had an observer around its engine
    traces: tuple[int, ...]  # hashes


class ReleasedIds:
    """The latest ids. For one thread."""

    def __init__(self, limit: int) -> None:
        """limit: ids per generation, 1 or more."""
        self._limit = limit
        self._new = _Generation(limit)
        self._old: _Generation | None = None

    def __len__(self) -> int:
        """Ids that are remembered, traces excluded."""
        return self._new.ids + (self._old.ids if self._old is not None else 0)

    def add(self, ids: Iterable[str], end: float, outer: bool, traces: Sequence[str]) -> None:
        """Remember a request. end: seconds since the epoch, -inf if not reported; outer: it had an observer around its
        engine."""
        self._new.add([*map(hash, ids)], end, outer, tuple(map(hash, traces)))
        if self._new.is_full:
            self.turn()

    def has_trace(self, trace: str) -> bool:
        """Whether a released request was of this trace."""
        return self._number(trace) is not None

    def find(self, id_: str) -> ReleasedRequest | None:
        """The request that had this id, the latest one."""
        place = self._number(id_)
        return place[0].request(place[1]) if place is not None else None

    def turn(self) -> None:
        """Begin a generation, and forget the one before the last."""
        if self._new.ids:
            self._old, self._new = self._new, _Generation(self._limit)
        else:
            self._old = None

    def _number(self, text: str) -> tuple[_Generation, int] | None:
        hashed = hash(text)
        for generation in (self._new, self._old):
            if generation is not None and (number := generation.table.get(hashed)) != NO_NUMBER:
                return generation, number
        return None


class _Generation:
    """Requests by number, and the table of their ids and traces."""

    def __init__(self, limit: int) -> None:
        self.ids = 0
        self.table = _HashTable(2 * limit)  # traces are in it, too
        self._limit = limit
        self._ends = array("d")
        self._outer = bytearray()
        self._traces = array("q")  # the hash of the first one; 0: none
        self._more: dict[int, tuple[int, ...]] = {}  # all hashes of a request with several

    @property
    def is_full(self) -> bool:
        return self.ids >= self._limit or self.table.is_full

    def add(self, ids: Sequence[int], end: float, outer: bool, traces: tuple[int, ...]) -> None:
        number = len(self._ends)
        self._ends.append(end)
        self._outer.append(outer)
        self._traces.append(traces[0] if traces else 0)
        if len(traces) > 1:
            self._more[number] = traces
        for hashed in (*ids, *traces):
            self.table.put(hashed, number)
        self.ids += len(ids)

    def request(self, number: int) -> ReleasedRequest:
        trace = self._traces[number]
        traces = self._more.get(number) or ((trace,) if trace else ())
        return ReleasedRequest(self._ends[number], bool(self._outer[number]), traces)


class _HashTable:
    """Hashes with a number each, by open addressing. Once it is full, what is put there is left out."""

    __slots__ = ("_count", "_hashes", "_mask", "_most", "_numbers")

    def __init__(self, most: int) -> None:
        """most: hashes."""
        self._most = most
        self._count = 0
        self._allocate(FIRST_SLOTS)

    @property
    def is_full(self) -> bool:
        return self._count >= self._most

    def put(self, hashed: int, number: int) -> None:
        place = self._place(hashed)
        if not self._hashes[place]:
            if self.is_full:
                return
            self._count += 1
            self._hashes[place] = hashed or 1
        self._numbers[place] = number
        if 2 * self._count > self._mask:
            self._grow()

    def get(self, hashed: int) -> int:
        """The number; NO_NUMBER if there is none."""
        place = self._place(hashed)
        return self._numbers[place] if self._hashes[place] else NO_NUMBER

    def _place(self, hashed: int) -> int:
        """Where a hash stands, or the free slot where it belongs."""
        hashed, hashes, mask = hashed or 1, self._hashes, self._mask
        place = hashed & mask
        while (there := hashes[place]) and there != hashed:
            place = (place + 1) & mask
        return place

    def _allocate(self, slots: int) -> None:
        self._mask = slots - 1
        self._hashes = np.zeros(slots, np.int64).data  # 0: the slot is free
        self._numbers = np.zeros(slots, np.int32).data

    def _grow(self) -> None:
        """Make it four times as large. All hashes move one slot further at a time, until each has found a free one:
        some milliseconds for 100,000 of them."""
        hashes, numbers = np.asarray(self._hashes), np.asarray(self._numbers)
        taken = np.flatnonzero(hashes)
        hashes, numbers = hashes[taken], numbers[taken]
        self._allocate(4 * (self._mask + 1))
        new_hashes, new_numbers = np.asarray(self._hashes), np.asarray(self._numbers)
        places = hashes & self._mask
        while len(places):
            free = np.flatnonzero(new_hashes[places] == 0)
            first, chosen = np.unique(places[free], return_index=True)
            settled = free[chosen]
            new_hashes[first], new_numbers[first] = hashes[settled], numbers[settled]
            left = np.ones(len(places), dtype=bool)
            left[settled] = False
            places, hashes, numbers = (places[left] + 1) & self._mask, hashes[left], numbers[left]
