"""LRU caches estimated from some of the blocks, and intervals for what chance may have done.

A block is in the sample by its hash, so that all references to it are in or none, and for every engine alike (SHARDS:
C. Waldspurger et al., FAST 2015). The *hottest* blocks, those in at least one request in a hundred, are always in: a
system prompt that is in or out by chance would spoil the rest. Each block has a weight in the cache: 1 for a hot one,
1/rate for any other.

What an endless cache hits is counted for all blocks, and the sample gives the share of it that a smaller cache hits (a
ratio estimate), so that its curve ends where the exact one does.

Only LRU is sampled. A request touches all of its blocks, tails before heads, so that a block of a chain is evicted
after all behind it, and a sampled block hits whatever blocks beside it are not in the sample. Under FIFO and priority a
head can leave before its tail; under LFU the counts of a cache that is small or full of hot blocks depend on each
eviction; routing by prefix compares whole chains. Their replays are exact or refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvitals.kvcache.accesses import Accesses, Floats, Ints
from kvitals.kvcache.distances import stack_distances

Bools = npt.NDArray[np.bool_]

HOT_SHARE = 0.01
MAX_HOT = 4096

MIN_REFERENCES = 1000
"""Fewer sampled references make no estimate: the standard error of a share could be over 1.6 points."""
MIN_ROOM = 64
"""Sampled blocks for which a cache must have room: a smaller one holds a few blocks by chance."""

GROUPS = 8
"""Independent parts of a sample. Each estimates on its own; how far they are apart gives the interval."""
STUDENT = 3.0
"""Standard errors in the half width. Student's t for GROUPS - 1 degrees of freedom has 2.4 at 95%; hits of groups are
skewed, and with 2.4 the measured coverage (`make bench BENCH=whatif`) was 85% for the largest caches."""

_CHUNK = 1 << 22


class SampleError(ValueError):
    """A sample that has no answer; the message states what has."""


@dataclass(frozen=True)
class ReferenceStream:
    """Block references, one cell each but for `start`. tokens: of the prompt in the block. hot: in every sample. group:
    of its block, by hash, below GROUPS."""

    start: Ints
    block: Ints
    tokens: Floats
    hot: Bools
    group: Ints
    rate: float

    @property
    def row(self) -> Ints:
        """The access of each reference."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @property
    def weight(self) -> Floats:
        """Blocks of the cache that each reference's block stands for."""
        return np.where(self.hot, 1.0, 1 / self.rate)


@dataclass(frozen=True)
class SampledHits:
    """Tokens and blocks that a cache hits, and the half width of the 95% interval of the tokens."""

    tokens: float
    blocks: float
    error: float


def sample_references(accesses: Accesses, codes: npt.NDArray[np.int32], rate: float, seed: int) -> ReferenceStream:
    """References to the hottest blocks and to a share of the others. codes: as of `prefix_lru.dense_codes`. Raises
    SampleError for a sample that is too small."""
    check_rate(rate)
    count = np.bincount(codes)
    least = max(HOT_SHARE * len(accesses), np.sort(count)[-MAX_HOT:][0], 2)
    hot = count >= least
    kept, hashes = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.uint64)]
    for at in range(0, len(codes), _CHUNK):
        hashed = hash_ids(accesses.block[at : at + _CHUNK], seed)
        chosen = np.flatnonzero(hot[codes[at : at + _CHUNK]] | choose_blocks(hashed, rate))
        kept.append(chosen + at)
        hashes.append(hashed[chosen])
    keep, hashed = np.concatenate(kept), np.concatenate(hashes)
    is_hot = hot[codes[keep]]
    seen = int((~is_hot).sum())
    if seen < MIN_REFERENCES:
        enough = len(codes) - count[hot].sum() > MIN_REFERENCES
        advice = f"sample {min(1.0, rate * MIN_REFERENCES / max(seen, 1)):.2g} or more" if enough else "use all blocks"
        raise SampleError(f"{seen:,} block references in a sample of {rate:g} are too few: {advice}")
    row = np.searchsorted(accesses.start, keep, side="right") - 1
    before = (keep - accesses.start[row]) * accesses.block_size
    return ReferenceStream(
        start=np.searchsorted(keep, accesses.start),
        block=codes[keep].astype(np.int64),
        tokens=np.clip(accesses.tokens[row] - before, 0, accesses.block_size).astype(np.float64),
        hot=is_hot,
        group=(hashed % GROUPS).astype(np.int64),
        rate=rate,
    )


def check_rate(rate: float) -> None:
    """Raises SampleError."""
    if not 0 < rate <= 1:
        raise SampleError(f"a sample of {rate:g}; write a share above 0 and up to 1")


def check_room(blocks: int, rate: float) -> None:
    """Raises SampleError for a cache with room for too few sampled blocks."""
    if blocks * rate < MIN_ROOM:
        raise SampleError(
            f"a cache of {blocks:,} blocks holds {blocks * rate:.0f} blocks of a sample of {rate:g}: sample "
            f"{min(1.0, np.ceil(100 * MIN_ROOM / blocks) / 100):g} or more"
        )


def divide_by_node(stream: ReferenceStream, node: Ints) -> ReferenceStream:
    """The same references, those of each node together and with ids of their own, as `node` has it for each
    access."""
    order = np.argsort(node, kind="stable")
    row = stream.row
    keep = np.argsort(node[row], kind="stable")
    blocks, code = np.unique(stream.block, return_inverse=True)
    return ReferenceStream(
        start=np.concatenate(([0], np.cumsum(np.diff(stream.start)[order]))),
        block=(code + node[row] * len(blocks))[keep],
        tokens=stream.tokens[keep],
        hot=stream.hot[keep],
        group=stream.group[keep],
        rate=stream.rate,
    )


class SampledLru:
    """LRU caches of several sizes, estimated from a sample."""

    def __init__(self, sample: ReferenceStream, sizes: tuple[int, ...], tokens: float, blocks: float) -> None:
        """tokens, blocks: what endless caches hit, of all references. Raises SampleError."""
        for size in sizes:
            check_room(size, sample.rate)
        self._sizes = sizes
        self._all = _Part(sample, np.ones(len(sample.block), dtype=bool), 1, sizes)
        self._tokens, self._blocks = tokens, blocks
        self._groups = [_Part(sample, sample.hot | (sample.group == g), GROUPS, sizes) for g in range(GROUPS)]

    def hits(self, size: int) -> SampledHits:
        """What a cache of one of the sizes hits."""
        at = self._sizes.index(size)
        value = self._all.estimate(at, self._tokens, 0)
        parts = np.array([group.estimate(at, self._tokens, 0) for group in self._groups])
        # The spread of the groups is the chance; that they are off the whole in common is the bias of small samples.
        error = np.hypot(STUDENT * parts.std(ddof=1) / np.sqrt(GROUPS), parts.mean() - value)
        return SampledHits(value, self._all.estimate(at, self._blocks, 1), float(error))


class _Part:
    """A part of a sample, in which a cold block stands for `times` as many blocks."""

    def __init__(self, sample: ReferenceStream, keep: Bools, times: int, sizes: tuple[int, ...]) -> None:
        start = np.concatenate(([0], np.cumsum(keep)))[sample.start]
        hot, weight = sample.hot[keep], sample.weight[keep]
        weight[~hot] *= times
        distance = stack_distances(start, sample.block[keep], weight)
        able = np.isfinite(distance)
        self._sums = []  # of tokens and of blocks: hot, cold; each attainable and for each size
        for worth in (sample.tokens[keep], np.ones(len(hot))):
            hits = [able, *(distance <= size for size in sizes)]
            self._sums.append([(float(worth[hit & hot].sum()), float(worth[hit & ~hot].sum())) for hit in hits])

    def estimate(self, at: int, attainable: float, of: int) -> float:
        """Hits of the size at this place; of: 0 for tokens, 1 for blocks."""
        (hot_able, cold_able), (hot, cold) = self._sums[of][0], self._sums[of][1 + at]
        left = max(attainable - hot_able, 0.0)
        return hot + (left * cold / cold_able if cold_able else 0.0)


def choose_blocks(hashes: npt.NDArray[np.uint64], rate: float) -> Bools:
    """Which blocks are in a sample of this share, by their hashes."""
    return hashes < np.uint64(rate * 2**64) if rate < 1 else np.ones(len(hashes), dtype=bool)


def hash_ids(block: Ints, seed: int) -> npt.NDArray[np.uint64]:
    """A hash of each id (splitmix64)."""
    x = block.astype(np.int64).astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
