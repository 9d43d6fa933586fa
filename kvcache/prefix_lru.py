"""What LRU caches of any sizes hit, in one pass over the requests and a few bytes a block.

Ids of blocks are ids of prefixes: a block always follows the same parent. So a request touches its blocks together with
all that are before them, and its chain falls into few *runs* of blocks that one earlier request touched last. Within a
run the stack distances (`kvcache/distances.py`) are consecutive: the first block of a run needs a cache of one block
more than what was touched since that request, the second of two more. A chain of hundreds of blocks is two or three
runs, and all that is kept is the last request of each block and how many blocks each request touched last.

Ids that are no prefixes are noticed, and counted block by block instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from kvitals.kvcache.accesses import Floats, Ints, select_chains
from kvitals.kvcache.distances import stack_distances, weight_below

BATCH = 1 << 20
"""Block references at a time: some 150 bytes each."""
DENSE = 4
"""Ids below this times the references are indexes into an array as they are."""

Narrow = npt.NDArray[np.int32]


class NoPrefixesError(ValueError):
    """A block follows different parents, so that ids are no prefixes."""


@dataclass(frozen=True)
class Runs:
    """Runs of consecutive rows, `first` to before `end` in the order of the replay. Only runs that were touched before.

    row: counted from `first`. length: blocks. above: blocks touched since the run's last touch, before its first
    block."""

    first: int
    end: int
    row: Ints
    length: Ints
    above: Ints

    def depth(self, capacity: int | None) -> Ints:
        """How many blocks of each row an LRU cache of so many blocks hits; None is endless."""
        hits = self.length if capacity is None else np.clip(capacity - self.above, 0, self.length)
        return np.bincount(self.row, hits, self.end - self.first).astype(np.int64)


def dense_codes(block: Ints) -> Narrow:
    """The same ids as numbers from 0 on, without a copy where they are small already."""
    if not len(block):
        return np.zeros(0, dtype=np.int32)
    if block.min() >= 0 and block.max() < min(DENSE * len(block) + 1024, 1 << 31):
        return block.astype(np.int32, copy=False)
    return np.unique(block, return_inverse=True)[1].astype(np.int32)


class PrefixLru:
    """Requests in the order of their replay. Several nodes follow one another, each with a cache of its own."""

    def __init__(self, start: Ints, codes: Narrow, order: Ints | None = None, node_start: Ints | None = None) -> None:
        """order: rows in the order of the replay, None as they are. node_start: for each place in that order the first
        place of its node, None for one node."""
        self._start, self._codes, self._order, self._node_start = start, codes, order, node_start
        self._rows = len(start) - 1

    def runs(self) -> Iterator[Runs]:
        """The runs of all rows in batches. O(n) time; 4 bytes a distinct block and 4 a row beside a batch."""
        batches = self._batches()
        try:
            # A fault shows in any batch: what was handed out before is right, so count the rest by blocks.
            done = 0
            for runs in _prefix_runs(self, batches):
                yield runs
                done = runs.end
        except NoPrefixesError:
            yield from self._by_block(done)

    def _batches(self) -> list[tuple[int, int]]:
        lengths = np.diff(self._start) if self._order is None else np.diff(self._start)[self._order]
        ends = np.cumsum(lengths)
        batches, first = [], 0
        while first < self._rows:
            done = int(ends[first - 1]) if first else 0
            end = max(int(np.searchsorted(ends, done + BATCH, side="right")), first + 1)
            batches.append((first, end))
            first = end
        return batches

    def chains(self, first: int, end: int) -> tuple[Ints, Narrow]:
        """The chains of places first to before end."""
        if self._order is None:
            start = self._start[first : end + 1]
            return start - start[0], self._codes[start[0] : start[-1]]
        start, codes = select_chains(self._start, cast(Ints, self._codes), self._order[first:end])
        return start, codes.astype(np.int32, copy=False)

    def row_of(self, place: Narrow) -> Ints:
        """The row at each place of the order."""
        return place if self._order is None else self._order[place]  # type: ignore[return-value]

    def _by_block(self, done: int) -> Iterator[Runs]:
        """Each block by itself, for rows from `done` on."""
        start, codes = self.chains(0, self._rows)
        ids = codes.astype(np.int64)
        row = np.repeat(np.arange(self._rows), np.diff(start))
        if self._node_start is not None:
            ids = ids + self._node_start[row] * (int(ids.max(initial=0)) + 1)
        distance = stack_distances(start, ids, np.ones(len(ids)))
        seen = np.isfinite(distance) & (row >= done)
        above = distance[seen].astype(np.int64) - 1
        yield Runs(done, self._rows, row[seen] - done, np.ones(len(above), dtype=np.int64), above)


def _prefix_runs(of: PrefixLru, batches: list[tuple[int, int]]) -> Iterator[Runs]:
    """Raises NoPrefixesError."""
    last = np.full(int(of._codes.max(initial=-1)) + 1, -1, dtype=np.int32)  # block -> place of its last touch
    left = np.zeros(of._rows, dtype=np.int32)  # place -> blocks that it touched last
    for first, end in batches:
        start, codes = of.chains(first, end)
        lengths = np.diff(start)
        if not len(codes):
            yield Runs(first, end, *(np.zeros(0, dtype=np.int64) for _ in range(3)))
            continue
        row = np.repeat(np.arange(end - first, dtype=np.int32), lengths)
        before = _last_touches(codes, row + np.int32(first), last)
        if of._node_start is not None:
            before[before < of._node_start[first:end][row]] = -1
        begins = _run_begins(of, start, codes, row, before, first)
        run_row, run_before = row[begins].astype(np.int64), before[begins].astype(np.int64)
        run_length = np.diff(begins, append=len(codes))
        seen = run_before >= 0
        yield Runs(
            first,
            end,
            run_row[seen],
            run_length[seen],
            _touched_since(run_row, run_before, run_length, lengths, left, first)[seen],
        )
        left[first:end] = lengths
        np.subtract.at(left, run_before[seen], run_length[seen].astype(np.int32))


def _last_touches(codes: Narrow, place: Narrow, last: Narrow) -> Narrow:
    """The place at which each reference's block was touched before; `last` is brought up to the end of the batch."""
    before = last[codes]
    # Sorted as one number each: many times faster than an indirect sort.
    keyed = (codes.astype(np.int64) << 32) | np.arange(len(codes))
    keyed.sort()
    index, code = (keyed & 0xFFFFFFFF).astype(np.int32), (keyed >> 32).astype(np.int32)
    same = code[1:] == code[:-1]
    before[index[1:][same]] = place[index[:-1][same]]
    final = np.append(~same, True)
    last[code[final]] = place[index[final]]
    return before


def _run_begins(of: PrefixLru, start: Ints, codes: Narrow, row: Narrow, before: Narrow, first: int) -> Ints:
    """Where runs begin. Raises NoPrefixesError if a block was touched before at another depth or behind another one."""
    same_row = row[1:] == row[:-1]
    if (same_row & (before[1:] > before[:-1])).any() or (before >= row + first).any():
        raise NoPrefixesError
    begins = np.flatnonzero(np.concatenate(([True], ~same_row | (before[1:] != before[:-1]))))
    seen = np.flatnonzero(before >= 0)
    depth = seen - start[row[seen]]
    then = of.row_of(before[seen])
    there = of._start[then] + depth
    if (there >= of._start[then + 1]).any() or (of._codes[there] != codes[seen]).any():
        raise NoPrefixesError
    inner = depth > 0
    if (of._codes[there[inner] - 1] != codes[seen[inner] - 1]).any():
        raise NoPrefixesError
    return begins


def _touched_since(row: Ints, before: Ints, length: Ints, lengths: Ints, left: Narrow, first: int) -> Ints:
    """For each run, the blocks touched since the place `before` and until its own row, which is not counted."""
    held = np.concatenate(([0], np.cumsum(left[:first], dtype=np.int64)))
    old = np.minimum(before + 1, first)
    touched = held[-1] - held[old]  # blocks of earlier batches, as they were left
    new = np.concatenate(([0], np.cumsum(lengths)))
    touched += new[row] - new[np.minimum(np.maximum(before + 1 - first, 0), row)]  # blocks of this batch
    # Runs that moved from a place behind `before` to a later row, and so are counted twice.
    moved = np.where(before >= 0, length, 0).astype(np.float64)
    until = np.searchsorted(row, row, side="left")
    so_far: Floats = np.concatenate(([0.0], np.cumsum(moved)))
    earlier = weight_below(before, moved, until, before + 1)
    return np.asarray(touched - (so_far[until] - earlier).astype(np.int64))
