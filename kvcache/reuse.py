"""A reuse curve that is kept up as accesses come: hit rate against capacity, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvitals.kvcache.accesses import Accesses, Floats, Ints, concatenate
from kvitals.kvcache.distances import stack_distances
from kvitals.kvcache.sampling import GROUPS, MIN_REFERENCES, STUDENT, Bools, choose_blocks, hash_ids

MAX_BLOCKS = 65_536
"""Blocks remembered by default: 2 MB, and 20 MB for the moment in which a batch is counted."""

_BINS_PER_OCTAVE = 32  # of capacities: 2.2 % apart
_FAR = 2.0**62
MAX_HOT = 512
"""Blocks that are counted exactly in a sample, at most."""

_HOT_HALF_LIFE = 5000  # requests
_HOT_LEAST = 40  # requests
_HOT_SHARE = 0.1
"""Of requests. A block that becomes hot was not held before, which counts as a miss: with a hundredth, the blocks of
each agent's session became hot in turn, and hit rates of agents were 4 points low."""


@dataclass(frozen=True)
class Curve:
    """What LRU caches of these many blocks would have hit, as shares of prompt tokens.

    error: half width of the 95% interval for the chance of sampling; 0 where all blocks are counted.
    attainable: of the largest capacity that is remembered. references: block references that it rests on, with older
    ones fading; rate: the share of blocks looked at.
    """

    capacity: Ints
    token_hit_rate: Floats
    error: Floats
    attainable: float
    references: float
    rate: float

    def at(self, blocks: float) -> tuple[float, float] | None:
        """The hit rate of a cache of this size, and its error: between the two nearest capacities on a line. None below
        the smallest; that of the largest above it."""
        if blocks < self.capacity[0]:
            return None
        rate, error = (float(np.interp(blocks, self.capacity, of)) for of in (self.token_hit_rate, self.error))
        return rate, error


class ReuseCurve:
    """Feed accesses in order of time, and ask for the curve up to `largest` blocks whenever it is wanted.

    All blocks are looked at where `largest` is within `max_blocks`, otherwise a share of them by their hash and the
    hottest exactly, as in `kvitals.kvcache.sampling`. The last `max_blocks` of them are remembered in order of touch.
    With `half_life`, in seconds, older accesses count for less.

    Memory is bounded by `max_blocks`, whatever comes in.
    """

    def __init__(
        self, largest: int, max_blocks: int = MAX_BLOCKS, seed: int = 0, half_life: float | None = None
    ) -> None:
        if largest < 1 or max_blocks < 2 * MAX_HOT or (half_life is not None and half_life <= 0):
            raise ValueError(f"largest must be 1 or more, max_blocks {2 * MAX_HOT} or more, half_life above zero")
        self.largest = largest
        self.rate = 1.0 if largest <= max_blocks else (max_blocks - MAX_HOT) / largest
        self._max_blocks = max_blocks
        self._seed = seed
        self._half_life = half_life
        self._waiting: list[Accesses] = []
        self._waits = 0
        self._time: float | None = None
        self._held: Ints = np.zeros(0, dtype=np.int64)  # blocks by last touch, the latest last
        self._hot = _Hot()
        bins = int(np.ceil(np.log2(largest) * _BINS_PER_OCTAVE)) + 1
        self._references = 0.0
        self._tokens = 0.0  # of all prompts, in blocks or not
        self._cold_tokens = 0.0  # of all blocks but the hottest
        # Of the sample and then of each of its groups: tokens that are not hot, and hits by the capacity from which on.
        parts = 1 if self.rate == 1 else 1 + GROUPS
        self._sampled = np.zeros(parts)
        self._hits = np.zeros((parts, bins))
        self._hot_hits = np.zeros((parts, bins))

    def feed(self, accesses: Accesses) -> None:
        """Accesses later than those before. Most calls only keep them for a batch."""
        rows = np.arange(len(accesses))
        parts = accesses.start[1:] // self._max_blocks  # so that one large feed is several batches
        for part in np.unique(parts):
            self._waiting.append(accesses.take(rows[parts == part]))
            self._waits += self._waiting[-1].references
            if self._waits >= self._max_blocks // 2:
                self._work_off()

    def curve(self) -> Curve | None:
        """The curve as of what was fed, None as long as that is too little to tell."""
        self._work_off()
        if self._references * self.rate < MIN_REFERENCES or not self._tokens:
            return None
        edges = np.arange(self._hits.shape[1]) / _BINS_PER_OCTAVE
        cold = self._cold_tokens / np.maximum(self._sampled, 1e-9)[:, None]
        parts = np.cumsum(self._hot_hits, axis=1) + np.cumsum(self._hits, axis=1) * cold
        hits, error = parts[0], np.zeros(parts.shape[1])
        if self.rate < 1:
            chance = STUDENT * parts[1:].std(axis=0, ddof=1) / np.sqrt(GROUPS)
            error = np.hypot(chance, parts[1:].mean(axis=0) - hits)
        capacity, last = np.unique(np.floor(2**edges + 1e-9).astype(np.int64), return_index=True)
        rate, error = hits[last] / self._tokens, error[last] / self._tokens
        return Curve(capacity, rate, error, float(rate[-1]), self._references, self.rate)

    def _work_off(self) -> None:
        if self._waiting:
            batch, self._waiting, self._waits = concatenate(self._waiting), [], 0
            self._fade(float(batch.time[-1]))
            self._count(batch)

    def _fade(self, now: float) -> None:
        if self._half_life is not None and self._time is not None:
            left = 0.5 ** (max(now - self._time, 0.0) / self._half_life)
            self._references *= left
            self._tokens *= left
            self._cold_tokens *= left
            for sums in (self._sampled, self._hits, self._hot_hits):
                sums *= left
        self._time = now

    def _count(self, batch: Accesses) -> None:
        hashes = hash_ids(batch.block, self._seed)
        hot = self._hot.among(batch.block, len(batch)) if self.rate < 1 else np.ones(len(hashes), dtype=bool)
        tokens = _block_tokens(batch)
        self._references += batch.references
        self._tokens += float(batch.tokens.sum())
        self._cold_tokens += float(tokens[~hot].sum())
        keep = np.flatnonzero(hot | choose_blocks(hashes, self.rate))
        start, block = np.searchsorted(keep, batch.start), batch.block[keep].astype(np.int64)
        self._add(0, start, block, tokens[keep], hot[keep], 1.0)
        if self.rate < 1:
            group = hashes[keep] % GROUPS
            for part in range(GROUPS):
                mine = hot[keep] | (group == part)
                own = np.concatenate(([0], np.cumsum(mine)))[start]
                self._add(1 + part, own, block[mine], tokens[keep][mine], hot[keep][mine], GROUPS)
        self._hold(start, block)

    def _add(self, part: int, start: Ints, block: Ints, tokens: Floats, hot: Bools, times: float) -> None:
        """Counts references to all sampled blocks or to those of a group, each of which stands for `times` as many."""
        held = self._held
        if part:
            held = held[self._hot.has(held) | (hash_ids(held, self._seed) % GROUPS == part - 1)]
        bin_ = self._bins(start, block, held, times)
        within = bin_ < self._hits.shape[1]
        self._sampled[part] += tokens[~hot].sum()
        np.add.at(self._hits[part], bin_[within & ~hot], tokens[within & ~hot])
        np.add.at(self._hot_hits[part], bin_[within & hot], tokens[within & hot])

    def _bins(self, start: Ints, block: Ints, held: Ints, times: float) -> Ints:
        """From which capacity on each reference hits."""
        # What is held is as if one request had touched it, from the longest ago on.
        starts = np.concatenate(([0], start + len(held)))
        blocks = np.concatenate((held[::-1], block))
        weight = np.ones(len(blocks)) if self.rate == 1 else np.where(self._hot.has(blocks), 1.0, times / self.rate)
        distance = stack_distances(starts, blocks, weight)[len(held) :]
        return np.ceil(np.log2(np.minimum(distance, _FAR)) * _BINS_PER_OCTAVE - 1e-9).astype(np.int64)

    def _hold(self, start: Ints, block: Ints) -> None:
        """Remember the blocks touched last."""
        row = np.repeat(np.arange(len(start) - 1), np.diff(start))
        touched = np.empty(len(block), dtype=np.int64)
        touched[start[row] + start[row + 1] - 1 - np.arange(len(block))] = block
        latest, from_end = np.unique(np.concatenate((self._held, touched))[::-1], return_index=True)
        self._held = latest[np.argsort(-from_end)][-self._max_blocks :]


def _block_tokens(accesses: Accesses) -> Floats:
    """The tokens of the prompt in each block."""
    row = np.repeat(np.arange(len(accesses)), accesses.lengths)
    before = (np.arange(accesses.references) - accesses.start[row]) * accesses.block_size
    return np.clip(accesses.tokens[row] - before, 0, accesses.block_size).astype(np.float64)


class _Hot:
    """Blocks in at least one request in ten, of late; at most MAX_HOT: beginnings that many sessions share."""

    def __init__(self) -> None:
        self._candidate: Ints = np.zeros(0, dtype=np.int64)
        self._requests: Floats = np.zeros(0)  # that had each candidate, fading
        self._all = 0.0
        self._block: Ints = np.zeros(0, dtype=np.int64)

    def among(self, block: Ints, requests: int) -> Bools:
        """Counts the references of so many more requests, and says which of them are to hot blocks."""
        left = 0.5 ** (requests / _HOT_HALF_LIFE)
        self._all = self._all * left + requests
        seen, count = np.unique(block, return_counts=True)
        merged, place = np.unique(np.concatenate((self._candidate, seen)), return_inverse=True)
        total = np.bincount(place, np.concatenate((self._requests * left, count))).astype(np.float64)
        most = np.argsort(-total, kind="stable")[: 4 * MAX_HOT]
        self._candidate, self._requests = merged[most], total[most]
        hot = self._requests[:MAX_HOT] >= max(_HOT_SHARE * self._all, _HOT_LEAST)
        self._block = self._candidate[:MAX_HOT][hot]
        return self.has(block)

    def has(self, block: Ints) -> Bools:
        return np.isin(block, self._block)
