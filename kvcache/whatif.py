"""What other memory, routing or eviction would have made of recorded accesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvitals.kvcache.accesses import Accesses, Floats, Ints
from kvitals.kvcache.distances import stack_distances
from kvitals.kvcache.eviction import Policy, cache
from kvitals.kvcache.routing import Routing, assign_nodes, by_prefix, default_rate
from kvitals.kvcache.sampling import Bools, Estimator, ReferenceStream, divide_by_node, sample_references, whole
from kvitals.kvcache.sessions import sessions

MAX_NODES = 1024


@dataclass(frozen=True)
class ReplayPlan:
    """Which caches to try: all combinations.

    capacities: blocks of one node, None for endless. host_blocks: of a second tier in each node's host memory, which is
    written whatever the first is given, and evicts by LRU; 0 for none. rate: the share of blocks that are looked at.
    horizon: seconds that a session stays active after a request, for the policy `priority`. prefill_rate: prompt tokens
    that a node works off in a second, for routing by load; None for `routing.default_rate`.
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

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ValueError(f"{self.nodes} nodes: write 1 to {MAX_NODES}")
        if any(capacity is not None and capacity < 1 for capacity in self.capacities) or self.host_blocks < 0:
            raise ValueError("a cache has at least one block")


@dataclass(frozen=True)
class ReplayRow:
    """One combination and what would have hit.

    capacity_blocks: of one node, None for endless; `pooled` has that of all nodes in one cache. Rates are shares of all
    prompt tokens and of all blocks looked up; host_token_hit_rate those that the host tier would have had, None without
    one. prefill_tokens: what is left to compute. load_max_over_mean: of the prompt tokens sent to each node. error: how
    far token_hit_rate may be off by the chance of sampling (two standard errors), 0 where all blocks were looked at.
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
    """A row for each routing, policy and capacity, in this order. Raises SampleError; ValueError for no accesses."""
    if not accesses.references or not accesses.tokens.any():
        raise ValueError("there is no block in these accesses")
    return list(_rows(accesses, plan))


def _rows(accesses: Accesses, plan: ReplayPlan) -> Iterator[ReplayRow]:
    everything = whole(accesses)
    sample = sample_references(everything, plan.rate, plan.seed)
    session = sessions(accesses) if {"sticky", "prefix"} & set(plan.routings) or "priority" in plan.policies else None
    session = accesses.session if session is None else session
    rate = plan.prefill_rate or default_rate(accesses, plan.nodes)
    for routing in plan.routings:
        if routing == "prefix":
            yield from _by_prefix(accesses, everything, sample, session, rate, plan)
            continue
        node = assign_nodes(routing, accesses, session, plan.nodes, rate, plan.seed)
        division = _Division(accesses, everything, sample, session, node, plan)
        for policy in plan.policies:
            for capacity, first, second in division.hits(policy, plan.nodes if routing == "pooled" else 1):
                yield division.row(policy, routing, capacity, first, second)


def _by_prefix(
    accesses: Accesses,
    everything: ReferenceStream,
    sample: ReferenceStream,
    session: Ints,
    rate: float,
    plan: ReplayPlan,
) -> Iterator[ReplayRow]:
    """Where a request goes depends on what the caches hold, so each cache decides anew."""
    for policy in plan.policies:
        for capacity in plan.capacities:
            blocks = _scaled(sample, capacity)
            caches = [cache(policy, blocks, plan.horizon) for _ in range(plan.nodes)]
            node, depth = by_prefix(accesses, sample, session, caches, rate)
            division = _Division(accesses, everything, sample, session, node, plan)
            first = division.leading(depth[division.order])
            yield division.row(policy, "prefix", capacity, first, division.with_host(first, 1))


class _Division:
    """The accesses as they went to the nodes, and what hits there."""

    def __init__(
        self,
        accesses: Accesses,
        everything: ReferenceStream,
        sample: ReferenceStream,
        session: Ints,
        node: Ints,
        plan: ReplayPlan,
    ) -> None:
        self.order = np.argsort(node, kind="stable")
        self._accesses = accesses
        self._plan = plan
        self._node = node[self.order]
        self._time = accesses.time[self.order]
        self._session = session[self.order]
        every = divide_by_node(everything, node)
        self._stream = every if sample is everything else divide_by_node(sample, node)
        self._estimator = Estimator(every, self._stream)
        self._distances: Floats | None = None

    def hits(self, policy: Policy, memories: int) -> Iterator[tuple[int | None, Bools, Bools]]:
        """For each capacity, which references hit, and which do with the host tier; `memories` to a cache."""
        plan = self._plan
        for capacity in plan.capacities:
            blocks = None if capacity is None else capacity * memories
            if blocks is None:
                first = self._estimator.attainable
            elif policy == "lru":
                first = self.within(blocks)
            else:
                first = self.leading(self._replayed(policy, blocks))
            yield capacity, first, self.with_host(first, memories)

    def with_host(self, first: Bools, memories: int) -> Bools:
        """Which references hit in `first` or in the host tier.

        That is an LRU cache of what the first is given, so that it never holds a tail without its head.
        """
        return first | self.within(self._plan.host_blocks * memories) if self._plan.host_blocks else first

    def within(self, blocks: int) -> Bools:
        """Which references an LRU cache of so many blocks hits."""
        if self._distances is None:
            self._distances = stack_distances(self._stream.start, self._stream.block, self._stream.weight)
        return np.asarray(self._distances <= blocks)

    def leading(self, depth: Ints) -> Bools:
        """Which references hit where so many of each chain do."""
        row = self._stream.row
        return np.asarray(np.arange(len(row)) - self._stream.start[row] < depth[row])

    def _replayed(self, policy: Policy, blocks: int) -> Ints:
        """How many references of each chain hit, each node's with a cache of its own."""
        block, start = self._stream.block.tolist(), self._stream.start.tolist()
        times, sessions = self._time.tolist(), self._session.tolist()
        ends = np.flatnonzero(np.diff(self._node, append=-1)) + 1
        depth, begin = [], 0
        for end in ends.tolist():
            held = cache(policy, _scaled(self._stream, blocks), self._plan.horizon)
            for row in range(begin, end):
                chain = block[start[row] : start[row + 1]]
                depth.append(held.leading(chain))
                held.touch(chain, times[row], sessions[row])
            begin = end
        return np.array(depth, dtype=np.int64)

    def row(self, policy: Policy, routing: Routing, capacity: int | None, first: Bools, both: Bools) -> ReplayRow:
        """What is told of one combination."""
        plan, accesses = self._plan, self._accesses
        tokens, blocks = self._estimator.token_hits(first), self._estimator.block_hits(first)
        in_both = self._estimator.token_hits(both)
        prompts = int(accesses.tokens.sum())
        load = np.bincount(self._node, accesses.tokens[self.order], plan.nodes if routing != "pooled" else 1)
        return ReplayRow(
            policy=policy,
            routing=routing,
            nodes=plan.nodes,
            capacity_blocks=capacity,
            block_size=accesses.block_size,
            sample_rate=plan.rate,
            seed=plan.seed,
            token_hit_rate=tokens.value / prompts,
            block_hit_rate=blocks.value / accesses.references,
            host_token_hit_rate=(in_both.value - tokens.value) / prompts if plan.host_blocks else None,
            prefill_tokens=round(prompts - in_both.value),
            load_max_over_mean=float(load.max() / load.mean()),
            error=tokens.error / prompts,
        )


def _scaled(sample: ReferenceStream, blocks: int | None) -> int:
    """The capacity of a cache for the sample alone: the hottest take their own blocks, the others share the rest."""
    if blocks is None:
        return len(sample.block) + 1
    hot = min(blocks, len(np.unique(sample.block[sample.hot]))) if sample.rate < 1 else blocks
    return max(1, hot + round((blocks - hot) * sample.rate))
