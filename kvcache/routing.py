"""Which of several nodes each request goes to.

The *load* of a node is the prompt tokens that were sent to it and that it has not worked off yet, at a given rate. What
hits is not taken off, so that routings which do not look into caches do not depend on their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvitals.kvcache.accesses import Accesses, Ints
from kvitals.kvcache.eviction import Cache
from kvitals.kvcache.sampling import hash_ids

Routing = Literal["round-robin", "least-loaded", "sticky", "prefix", "pooled"]
ROUTINGS: tuple[Routing, ...] = ("round-robin", "least-loaded", "sticky", "prefix", "pooled")

UTILISATION = 0.8
"""Where no rate is given, nodes work off tokens so fast that together they would be busy for this share of the time."""

LOAD_CAP = 2.0
"""Routing by prefix passes over a node whose load is more than this times the mean, and the request's own tokens."""

LONG_PREFIX = 0.5
"""Routing by prefix goes by a prefix only if it is more than this share of the chain: else a system prompt decides."""


class Loads:
    """The outstanding prompt tokens of each node, as time goes on."""

    def __init__(self, nodes: int, tokens_per_second: float) -> None:
        self.outstanding = np.zeros(nodes)
        self._rate = tokens_per_second
        self._now = 0.0

    def advance(self, time: float) -> None:
        """Work until `time`."""
        self.outstanding -= (time - self._now) * self._rate
        np.maximum(self.outstanding, 0.0, out=self.outstanding)
        self._now = time


def default_rate(accesses: Accesses, nodes: int) -> float:
    """Tokens per second and node with which the nodes would be busy for UTILISATION of the time."""
    lasted = float(accesses.time[-1] - accesses.time[0]) if len(accesses) else 0.0
    return float(accesses.tokens.sum()) / (lasted * nodes * UTILISATION) if lasted else 0.0


def assign_nodes(routing: Routing, accesses: Accesses, session: Ints, nodes: int, rate: float, seed: int) -> Ints:
    """The node of each access, for routings that do not look into caches.

    Round-robin: one after the other. Least-loaded: where the load is least. Sticky: by a hash of the session, and in
    turn where that is UNKNOWN. Pooled: all to one, which has the memory of all.
    """
    rows = len(accesses)
    if routing == "pooled":
        return np.zeros(rows, dtype=np.int64)
    if routing == "round-robin":
        return np.arange(rows) % nodes
    if routing == "sticky":
        found = (hash_ids(session, seed) % np.uint64(nodes)).astype(np.int64)
        anywhere = session < 0
        found[anywhere] = np.arange(anywhere.sum()) % nodes
        return found
    if routing == "least-loaded":
        loads = Loads(nodes, rate)
        found = np.zeros(rows, dtype=np.int64)
        for row, (time, tokens) in enumerate(zip(accesses.time.tolist(), accesses.tokens.tolist(), strict=True)):
            loads.advance(time)
            node = int(loads.outstanding.argmin())
            loads.outstanding[node] += tokens
            found[row] = node
        return found
    raise ValueError(f"{routing} looks into caches")


def by_prefix(
    accesses: Accesses, codes: npt.NDArray[np.int32], session: Ints, caches: Sequence[Cache], rate: float
) -> tuple[Ints, Ints]:
    """The node of each access and how many of its blocks hit there, for a router that knows all caches. codes: ids.

    The node with the longest prefix, of several such the least loaded, if the prefix is over LONG_PREFIX of the chain
    and the node's load within LOAD_CAP; else the least loaded node.
    """
    loads = Loads(len(caches), rate)
    node, hits = np.zeros(len(accesses), dtype=np.int64), np.zeros(len(accesses), dtype=np.int64)
    rows = zip(accesses.time.tolist(), accesses.tokens.tolist(), session.tolist(), strict=True)
    for row, (time, tokens, of) in enumerate(rows):
        loads.advance(time)
        load = loads.outstanding.tolist()
        chain = codes[accesses.start[row] : accesses.start[row + 1]].tolist()
        held = [cache.leading(chain) for cache in caches]
        most = LOAD_CAP * sum(load) / len(load) + tokens
        best = max(range(len(load)), key=lambda one: (held[one], -load[one]))
        if held[best] <= LONG_PREFIX * len(chain) or load[best] > most:
            best = load.index(min(load))
        caches[best].touch(chain, time, of)
        loads.outstanding[best] += tokens
        node[row], hits[row] = best, held[best]
    return node, hits
