"""Some of the blocks for all of them: what is looked at, what each stands for, and how far off the result may be.

A block is in the sample by its hash, so that all references to it are in or none, and for every engine alike (SHARDS:
C. Waldspurger et al., FAST 2015). That respects prefixes: a request touches heads after tails, so that a block of a
chain is evicted only when all behind it are, and whether it hits can be told without the others. The *hottest* blocks,
those in at least one request in a hundred, are always in and stand for themselves: a system prompt that is in or out by
chance would spoil the rest. The others stand for 1/rate blocks.

What an endless cache would hit is counted for all blocks, which is cheap, and the sample tells only which share of that
a smaller cache hits (a ratio estimate), so that its curve ends where the exact one does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvitals.kvcache.accesses import Accesses, Floats, Ints
from kvitals.kvcache.distances import seen_before

Bools = npt.NDArray[np.bool_]

HOT_SHARE = 0.01
MAX_HOT = 4096

MIN_REFERENCES = 1000
"""Fewer sampled references make no estimate: the standard error of a share could be over 1.6 points."""

GROUPS = 32
"""Of blocks by hash, to see how much chance there is in a result."""


class SampleError(ValueError):
    """A sample that tells nothing; the message says how large one would."""


@dataclass(frozen=True)
class ReferenceStream:
    """The block references to replay, one cell each but for `start`, and what they stand for.

    weight: blocks of the cache. tokens, blocks: of all references, as those before them in the chain do count when this
    one hits. hot: stands for itself alone. group: of its block, by hash, to see how much chance there is in the result.
    """

    start: Ints
    block: Ints
    weight: Floats
    tokens: Floats
    blocks: Floats
    hot: Bools
    group: Ints
    rate: float

    @property
    def row(self) -> Ints:
        """The access of each reference."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))


@dataclass(frozen=True)
class SampledSum:
    """A sum over all references, and how far off it may be (twice its standard error; 0 where all were counted)."""

    value: float
    error: float


def whole(accesses: Accesses) -> ReferenceStream:
    """All references."""
    row = np.repeat(np.arange(len(accesses)), accesses.lengths)
    before = (np.arange(accesses.references) - accesses.start[row]) * accesses.block_size
    tokens = np.clip(accesses.tokens[row] - before, 0, accesses.block_size).astype(np.float64)
    ones = np.ones(accesses.references)
    nothing = np.zeros(accesses.references, dtype=np.int64)
    return ReferenceStream(accesses.start, accesses.block, ones, tokens, ones, nothing == 0, nothing, 1.0)


def sample_references(stream: ReferenceStream, rate: float, seed: int) -> ReferenceStream:
    """References to the hottest blocks and to a share of the others. Raises SampleError for one that is too small."""
    if not 0 < rate <= 1:
        raise SampleError(f"a sample of {rate:g}; write a share above 0 and up to 1")
    if rate == 1:
        return stream
    hashes = hash_ids(stream.block, seed)
    _, code, count = np.unique(stream.block, return_inverse=True, return_counts=True)
    least = max(HOT_SHARE * (len(stream.start) - 1), np.sort(count)[-MAX_HOT:][0], 2)
    hot = (count >= least)[code]
    by_chance = choose_blocks(hashes, rate) & ~hot
    seen = int(by_chance.sum())
    if seen < MIN_REFERENCES:
        enough = (~hot).sum() > MIN_REFERENCES
        advice = f"sample {min(1.0, rate * MIN_REFERENCES / max(seen, 1)):.2g} or more" if enough else "look at all"
        raise SampleError(f"{seen:,} block references in a sample of {rate:g} tell too little: {advice}")
    keep = np.flatnonzero(hot | by_chance)
    weight = np.where(hot, 1.0, 1 / rate)[keep]
    return ReferenceStream(
        start=np.searchsorted(keep, stream.start),
        block=stream.block[keep],
        weight=weight,
        tokens=stream.tokens[keep] * weight,
        blocks=weight,
        hot=hot[keep],
        group=(hashes[keep] % GROUPS).astype(np.int64),
        rate=rate,
    )


def divide_by_node(stream: ReferenceStream, node: Ints) -> ReferenceStream:
    """The same references, those of each node together and with ids of their own, as `node` has it for each access."""
    order = np.argsort(node, kind="stable")
    row = stream.row
    keep = np.argsort(node[row], kind="stable")
    blocks, code = np.unique(stream.block, return_inverse=True)
    return ReferenceStream(
        start=np.concatenate(([0], np.cumsum(np.diff(stream.start)[order]))),
        block=(code + node[row] * len(blocks))[keep],
        weight=stream.weight[keep],
        tokens=stream.tokens[keep],
        blocks=stream.blocks[keep],
        hot=stream.hot[keep],
        group=stream.group[keep],
        rate=stream.rate,
    )


class Estimator:
    """What hits add up to over all references, from a sample of them; `whole` and `sample` are of the same accesses."""

    def __init__(self, whole: ReferenceStream, sample: ReferenceStream) -> None:
        self._sample = sample
        self._all = seen_before(whole.start, whole.block)
        self.attainable = self._all if sample is whole else seen_before(sample.start, sample.block)
        self._tokens = float(whole.tokens[self._all].sum())
        self._blocks = float(self._all.sum())

    def token_hits(self, hit: Bools) -> SampledSum:
        """Tokens; `hit` has a cell for each sampled reference."""
        return self._estimate(hit, self._sample.tokens, self._tokens)

    def block_hits(self, hit: Bools) -> SampledSum:
        """Blocks."""
        return self._estimate(hit, self._sample.blocks, self._blocks)

    def _estimate(self, hit: Bools, size: Floats, attainable: float) -> SampledSum:
        hot = float(size[hit & self._sample.hot].sum())
        if self._sample.rate == 1:
            return SampledSum(hot, 0.0)
        cold = ~self._sample.hot
        left = max(attainable - float(size[self.attainable & self._sample.hot].sum()), 0.0)
        hits = _by_group(self._sample, size, hit & cold)
        able = _by_group(self._sample, size, self.attainable & cold)
        if not able.sum():
            return SampledSum(hot, left)
        return SampledSum(hot + left * float(hits.sum() / able.sum()), left * float(jackknife(hits[:, None], able)[0]))


def jackknife(part: Floats, of: Floats) -> Floats:
    """Two standard errors of sum(part) / sum(of), from groups that are alike but for chance: rows of `part`.

    By leaving out each group in turn (M. Quenouille, Biometrika 43, 1956).
    """
    without = (part.sum(axis=0) - part) / np.maximum(of.sum() - of, 1e-9)[:, None]
    groups = len(of)
    return np.asarray(2 * np.sqrt((groups - 1) / groups * ((without - without.mean(axis=0)) ** 2).sum(axis=0)))


def choose_blocks(hashes: npt.NDArray[np.uint64], rate: float) -> Bools:
    """Which blocks are in a sample of this share, by their hashes."""
    return hashes < np.uint64(rate * 2**64) if rate < 1 else np.ones(len(hashes), dtype=bool)


def _by_group(stream: ReferenceStream, size: Floats, which: Bools) -> Floats:
    return np.bincount(stream.group[which], size[which], GROUPS).astype(np.float64)


def hash_ids(block: Ints, seed: int) -> npt.NDArray[np.uint64]:
    """A hash of each id (splitmix64)."""
    x = block.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
