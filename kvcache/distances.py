"""Stack distances: for each block looked up, the least LRU cache that would have held it.

A cache of C blocks with least-recently-used eviction holds, before a request, the C blocks touched last. So a block
is there exactly when its *distance*, the blocks touched since it was touched itself, itself included, is at most C: one
pass gives every capacity (R. L. Mattson et al., IBM Systems Journal 9(2), 1970). That holds for a prefix cache, since a
request touches all of its blocks whatever it hits.

A request's blocks are touched after its look-up, from the last to the first, in the order in which vLLM and SGLang
free them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvitals.kvcache.accesses import Floats, Ints

NEVER = np.inf
"""The distance of what was not touched before."""


def stack_distances(start: Ints, block: Ints, weight: Floats) -> Floats:
    """For each reference, the capacity from which on it hits, as a prefix: where it and all before it in its chain do.

    Row i's chain is `block[start[i]:start[i + 1]]`; `weight` is how many blocks a reference's block stands for, the
    same for all references to it. Time O(n log n), memory some 100 bytes a reference; fewer than 2^31.
    """
    if not len(block):
        return np.zeros(0)
    row = np.repeat(np.arange(len(start) - 1), np.diff(start))
    place = start[row] + start[row + 1] - 1 - np.arange(len(block))  # of the reference in the order of touches
    touched = block[place]
    before, before_row = _previous(touched, row)
    of_weight = weight[place]
    so_far = np.concatenate(([0.0], np.cumsum(of_weight)))
    # What is touched in [p, s) and not earlier in there is what was not touched before p, less all that is before p.
    seen = np.flatnonzero(before_row >= 0)
    p = before_row[seen]
    distance = np.full(len(block), NEVER)
    others = weight_below(before, of_weight, start[row[seen]], p) - so_far[p] - of_weight[seen]
    distance[seen] = others + 1  # it is there itself, whatever it stands for
    return _running_max(distance[place], row, start)


def seen_before(start: Ints, block: Ints) -> npt.NDArray[np.bool_]:
    """For each reference, whether an endless cache would hit it, as a prefix."""
    row = np.repeat(np.arange(len(start) - 1), np.diff(start))
    _, first, inverse = np.unique(block, return_index=True, return_inverse=True)
    seen = row[first][inverse] < row
    depth = np.arange(len(block)) - start[row]
    misses = np.flatnonzero(~seen)
    leading = np.diff(start)
    np.minimum.at(leading, row[misses], depth[misses])
    return np.asarray(depth < leading[row])


def _previous(touched: Ints, row: Ints) -> tuple[Ints, Ints]:
    """Where each block was touched before: at all, and before this row; -1 where it was not."""
    order = np.argsort(touched, kind="stable")
    block, of_row = touched[order], row[order]
    before = np.full(len(order), -1, dtype=np.int64)
    same = block[1:] == block[:-1]
    before[1:][same] = order[:-1][same]
    new = np.ones(len(order), dtype=bool)
    new[1:] = ~same | (of_row[1:] != of_row[:-1])
    begins = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))  # of the block's touches in this row
    found = np.empty((2, len(order)), dtype=np.int64)
    found[0, order], found[1, order] = before, before[begins]
    return found[0], found[1]


def weight_below(value: Ints, weight: Floats, end: Ints, bound: Ints) -> Floats:
    """For each query the weight of all `value[:end]` below `bound`, by a wavelet matrix built and asked level by level.

    Values are from -1 on. F. Claude, G. Navarro, G. Ordonez, "The wavelet matrix", Information Systems 47, 2015.
    """
    # Half as wide numbers: most of the time goes into fetching them.
    value, bound = (value + 1).astype(np.int32), (bound + 1).astype(np.int32)
    low, high = np.zeros(len(end), dtype=np.int32), end.astype(np.int32)
    alike = bool((weight == weight[0]).all())  # so that counting is enough
    total = np.zeros(len(end))
    for bit in reversed(range(int(max(value.max(), bound.max(initial=0))).bit_length())):
        one = (value >> bit & 1).astype(bool)
        zeros = np.concatenate((np.zeros(1, dtype=np.int32), np.cumsum(~one, dtype=np.int32)))
        right = (bound >> bit & 1).astype(bool)
        low0, high0 = zeros[low], zeros[high]
        if alike:
            within = (high0 - low0) * weight[0]
        else:
            zero_weight = np.concatenate(([0.0], np.cumsum(np.where(one, 0.0, weight))))
            within = zero_weight[high] - zero_weight[low]
            weight = np.concatenate((weight[~one], weight[one]))
        total += np.where(right, within, 0.0)
        low = np.where(right, zeros[-1] + low - low0, low0)
        high = np.where(right, zeros[-1] + high - high0, high0)
        value = np.concatenate((value[~one], value[one]))
    return total


def _running_max(distance: Floats, row: Ints, start: Ints) -> Floats:
    """The largest from each chain's root on. Where ids are those of prefixes the distances rise already."""
    falls = (distance[1:] < distance[:-1]) & (row[1:] == row[:-1])
    if not falls.any():
        return distance
    values, rank = np.unique(distance, return_inverse=True)
    raised = np.maximum.accumulate(row * len(values) + rank) - row * len(values)
    return values[raised]
