"""What other memory, routing or eviction would have made of recorded accesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvitals.kvcache.accesses import Accesses, Ints
from kvitals.kvcache.eviction import Cache, Policy, cache
from kvitals.kvcache.prefix_lru import Narrow, PrefixLru, dense_codes
from kvitals.kvcache.routing import Routing, assign_nodes, by_prefix, default_rate
from kvitals.kvcache.sampling import SampledLru, SampleError, check_rate, divide_by_node, sample_references
from kvitals.kvcache.sessions import sessions

MAX_NODES = 1024
_ROWS = 4096
"""Requests whose chains are Python lists at a time."""


@dataclass(frozen=True)
class ReplayPlan:
    """Which caches to try: all combinations.

    capacities: blocks of one node, None for endless. host_blocks: of a second tier in each node's host memory, which is
    written whatever the first is given, and evicts by LRU; 0 for none. rate: the share of blocks that are looked at.
    horizon: seconds that a session stays active after a request, for the policy `priority`. prefill_rate: prompt tokens
    that a node works off in a second, for routing by load; None for `routing.default_rate`. warm: the first so many
    accesses fill the caches and are not counted in any rate, so that the rest does not begin with empty caches.
    """

    capacities: tuple[int | None, ...]
    nodes: int = 1
    routings: tuple[Routing, ...] = ("pooled",)
    policies: tuple[Policy, ...] = ("lru",)
    rate: float = 1.0
    seed: int = 0
    host_blocks: int = 0
    horizon: float = 300.0
    prefill_rate: float | None = None
    warm: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ValueError(f"{self.nodes} nodes: write 1 to {MAX_NODES}")
        if any(capacity is not None and capacity < 1 for capacity in self.capacities) or self.host_blocks < 0:
            raise ValueError("a cache has at least one block")
        if self.warm < 0 or (self.warm and self.rate < 1):
            raise ValueError("accesses that fill caches are counted from 0 and replayed with all blocks")


@dataclass(frozen=True)
class ReplayRow:
    """One combination and what would have hit.

    capacity_blocks: of one node, None for endless; `pooled` has that of all nodes in one cache. Rates are shares of all
    prompt tokens and of all blocks looked up; host_token_hit_rate those that the host tier would have had, None without
    one. prefill_tokens: what is left to compute. load_max_over_mean: of the prompt tokens sent to each node. error:
    half the width of the 95% interval of token_hit_rate for the chance of sampling, 0 where all blocks were replayed.
    """

    policy: Policy
    routing: Routing
    nodes: int
    capacity_blocks: int | None
    block_size: int
    sample_rate: float
    seed: int
    token_hit_rate: float
    block_hit_rate: float
    host_token_hit_rate: float | None
    prefill_tokens: int
    load_max_over_mean: float
    error: float


def what_if(accesses: Accesses, plan: ReplayPlan) -> list[ReplayRow]:
    """A row for each routing, policy and capacity, in this order.

    Raises SampleError for a sample that is too small, or of a policy or routing that has no correct one; ValueError for
    no accesses.
    """
    if not accesses.start[-1] > accesses.start[min(plan.warm, len(accesses))] or not accesses.tokens[plan.warm :].any():
        raise ValueError("these accesses contain no block")
    check_rate(plan.rate)
    if plan.rate < 1:
        unsampled = [name for name in (*plan.policies, *plan.routings) if name in EXACT_ONLY]
        if unsampled:
            raise SampleError(
                f"{', '.join(unsampled)} cannot be estimated from a sample: use all blocks, or use lru with a "
                f"routing other than prefix"
            )
    return list(_rows(accesses, plan))


EXACT_ONLY = ("lfu", "fifo", "priority", "prefix")
"""Policies and routings that are replayed with all blocks only; `kvitals.kvcache.sampling` states why."""


def _rows(accesses: Accesses, plan: ReplayPlan) -> Iterator[ReplayRow]:
    codes = dense_codes(accesses.block)
    by_session = {"sticky", "prefix"} & set(plan.routings) or "priority" in plan.policies
    session = sessions(accesses) if by_session else accesses.session
    rate = plan.prefill_rate or default_rate(accesses, plan.nodes)
    for routing in plan.routings:
        if routing == "prefix":
            yield from _by_prefix(accesses, codes, session, rate, plan)
            continue
        node = assign_nodes(routing, accesses, session, plan.nodes, rate, plan.seed)
        division = _Division(accesses, codes, session, node, plan)
        memories = plan.nodes if routing == "pooled" else 1
        for policy in plan.policies:
            for capacity, first, both in division.hits(policy, memories):
                yield division.row(policy, routing, capacity, first, both)


def _by_prefix(accesses: Accesses, codes: Narrow, session: Ints, rate: float, plan: ReplayPlan) -> Iterator[ReplayRow]:
    """Where a request goes depends on what the caches hold, so each cache decides anew."""
    for policy in plan.policies:
        for capacity in plan.capacities:
            blocks = accesses.references + 1 if capacity is None else capacity
            caches = [cache(policy, blocks, plan.horizon) for _ in range(plan.nodes)]
            node, depth = by_prefix(accesses, codes, session, caches, rate)
            division = _Division(accesses, codes, session, node, plan)
            depth = depth[division.order] if division.order is not None else depth
            yield division.row(policy, "prefix", capacity, division.sums(depth), division.with_host(depth, 1))


@dataclass(frozen=True)
class _Hits:
    """Sums over all requests; error: of the tokens."""

    tokens: float
    blocks: float
    error: float = 0.0


class _Division:
    """The accesses as they went to the nodes, and what hits there."""

    def __init__(self, accesses: Accesses, codes: Narrow, session: Ints, node: Ints, plan: ReplayPlan) -> None:
        self._accesses, self._codes, self._session, self._node, self._plan = accesses, codes, session, node, plan
        self.order: Ints | None = None
        self._first = np.zeros(1, dtype=np.int64)  # places at which nodes begin
        self._counted = np.arange(len(accesses)) >= plan.warm
        node_start = None
        if node.any():
            self.order = np.argsort(node, kind="stable")
            ordered = node[self.order]
            self._first = np.flatnonzero(np.diff(ordered, prepend=-1))
            node_start = np.searchsorted(ordered, ordered, side="left")
        if self.order is not None:
            self._counted = self._counted[self.order]
        self._tokens = accesses.tokens if self.order is None else accesses.tokens[self.order]
        self._lru = PrefixLru(accesses.start, codes, self.order, node_start)
        self._known: dict[int | None, _Hits] = {}
        self._host_depth: Ints | None = None

    def hits(self, policy: Policy, memories: int) -> Iterator[tuple[int | None, _Hits, _Hits]]:
        """For each capacity, what hits, and what does with the host tier; `memories` to a cache."""
        plan = self._plan
        host = plan.host_blocks * memories
        sizes = [None if capacity is None else capacity * memories for capacity in plan.capacities]
        # The host tier is an LRU cache of what the first is given: with LRU the larger of the two decides.
        self._count({size for size in sizes if size is None or policy == "lru"})
        if host and policy == "lru":
            self._count({max(size, host) for size in sizes if size is not None})
        for capacity, size in zip(plan.capacities, sizes, strict=True):
            if size is None or policy == "lru":
                first = self._known[size]
                yield capacity, first, first if size is None or not host else self._known[max(size, host)]
            else:
                depth = self._replayed(policy, size)
                yield capacity, self.sums(depth), self.with_host(depth, memories)

    def with_host(self, depth: Ints, memories: int) -> _Hits:
        """Sums with the host tier, which never holds a tail without its head."""
        if not self._plan.host_blocks:
            return self.sums(depth)
        if self._host_depth is None:
            host = self._plan.host_blocks * memories
            self._host_depth = np.concatenate([runs.depth(host) for runs in self._lru.runs()])
        return self.sums(np.maximum(depth, self._host_depth))

    def sums(self, depth: Ints, first: int = 0) -> _Hits:
        """Of the rows from place `first` on, which hit so many blocks each."""
        if self._plan.warm:
            depth = depth * self._counted[first : first + len(depth)]
        tokens = np.minimum(depth * self._accesses.block_size, self._tokens[first : first + len(depth)])
        return _Hits(float(tokens.sum()), float(depth.sum()))

    def _count(self, sizes: set[int | None]) -> None:
        """LRU caches of these sizes."""
        wanted = sizes - set(self._known)
        sampled = {size for size in wanted if size is not None} if self._plan.rate < 1 else set()
        exact = wanted - sampled | ({None} if sampled and None not in self._known else set())
        if exact:
            parts: dict[int | None, list[_Hits]] = {size: [] for size in exact}
            for runs in self._lru.runs():
                for size, part in parts.items():
                    part.append(self.sums(runs.depth(size), runs.first))
            for size, part in parts.items():
                self._known[size] = _Hits(sum(one.tokens for one in part), sum(one.blocks for one in part))
        if sampled:
            self._estimate(tuple(sorted(sampled)))

    def _estimate(self, sizes: tuple[int, ...]) -> None:
        attainable = self._known[None]
        sample = sample_references(self._accesses, self._codes, self._plan.rate, self._plan.seed)
        lru = SampledLru(divide_by_node(sample, self._node), sizes, attainable.tokens, attainable.blocks)
        for size in sizes:
            found = lru.hits(size)
            self._known[size] = _Hits(found.tokens, found.blocks, found.error)

    def _replayed(self, policy: Policy, blocks: int) -> Ints:
        """How many blocks of each chain hit, each node's with a cache of its own."""
        depth = np.zeros(len(self._accesses), dtype=np.int64)
        bounds = [*self._first.tolist(), len(depth)]
        for begin, end in pairwise(bounds):
            held = cache(policy, blocks, self._plan.horizon)
            for at in range(begin, end, _ROWS):
                self._replay_rows(held, depth, at, min(at + _ROWS, end))
        return depth

    def _replay_rows(self, held: Cache, depth: Ints, first: int, end: int) -> None:
        rows: slice | Ints = slice(first, end) if self.order is None else self.order[first:end]
        starts, codes = self._lru.chains(first, end)
        block, start = codes.tolist(), starts.tolist()
        times, sessions = self._accesses.time[rows].tolist(), self._session[rows].tolist()
        for place in range(end - first):
            chain = block[start[place] : start[place + 1]]
            depth[first + place] = held.leading(chain)
            held.touch(chain, times[place], sessions[place])

    def row(self, policy: Policy, routing: Routing, capacity: int | None, first: _Hits, both: _Hits) -> ReplayRow:
        """The row of one combination."""
        plan, accesses = self._plan, self._accesses
        prompts = int(accesses.tokens[plan.warm :].sum())
        references = accesses.references - int(accesses.start[plan.warm])
        load = np.bincount(self._node, accesses.tokens, plan.nodes if routing != "pooled" else 1)
        return ReplayRow(
            policy=policy,
            routing=routing,
            nodes=plan.nodes,
            capacity_blocks=capacity,
            block_size=accesses.block_size,
            sample_rate=plan.rate,
            seed=plan.seed,
            token_hit_rate=first.tokens / prompts,
            block_hit_rate=first.blocks / references,
            host_token_hit_rate=(both.tokens - first.tokens) / prompts if plan.host_blocks else None,
            prefill_tokens=round(prompts - both.tokens),
            load_max_over_mean=float(load.max() / load.mean()),
            error=first.error / prompts,
        )
