"""The requests that a simulated engine gets: how they arrive, how long they are, and which blocks they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvitals.diagnoser.twin.intervals import BucketCounts, ScrapeIntervals
from kvitals.kvcache.accesses import Accesses, Ints
from kvitals.series.types import Floats

PLATEAU = 0.85
"""Median over maximum of the requests in the engine, from which on they are at the limit that clients set."""
FOLLOWS = -0.6
"""Correlation of arrivals with inter-token time: clients that wait for answers send less while the engine is slow."""
FLOODED = 4.0
"""Maximum over median of the requests in the engine: clients that wait do not make such a queue."""
MIN_CORRELATED = 20
BLOCK_SECONDS = 5.0
"""Of consecutive arrivals that stay together where others are drawn: bursts last about so long."""


@dataclass(frozen=True)
class SimulatedRequest:
    """One request: seconds after the start, tokens, and what its prompt shares. cached: prompt tokens from the cache
    where chains are unknown. chain: ids of the prompt's full blocks, empty where unknown."""

    arrival: float
    prompt: int
    output: int
    cached: int
    chain: tuple[int, ...] = ()


@dataclass(frozen=True)
class SimulatedLoad:
    """clients: of a closed loop, each with one request at a time; 0 for an open loop, in which requests come at their
    arrival. think: seconds from an answer to a client's next request, on average. seconds: that are simulated.
    lone: share of a request's cached blocks that no other running request holds. warm: chains that were looked up
    before."""

    requests: tuple[SimulatedRequest, ...]
    seconds: float
    clients: int = 0
    think: float = 0.0
    lone: float = 1.0
    warm: tuple[tuple[int, ...], ...] = ()

    @property
    def requests_per_second(self) -> float | None:
        """That arrive, those in the engine at the start included; None in a closed loop, where answers decide it."""
        return None if self.clients else len(self.requests) / self.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Of the answers to these requests; None in a closed loop."""
        return None if self.clients else sum(one.output for one in self.requests) / self.seconds

    @property
    def has_chains(self) -> bool:
        """Whether hits follow from the blocks that requests look up."""
        return any(request.chain for request in self.requests)

    def next_minute(self, rng: np.random.Generator) -> SimulatedLoad:
        """The load of another time that is like this one: blocks of its arrivals, drawn with replacement. In a closed
        loop, arrivals follow from the answers; and where hits follow from the blocks, their order counts: both stay."""
        if self.clients or self.has_chains or not self.requests:
            return self
        of_block = (np.array([one.arrival for one in self.requests]) // BLOCK_SECONDS).astype(int)
        count = int(np.ceil(self.seconds / BLOCK_SECONDS))
        arrived = [
            replace(self.requests[row], arrival=self.requests[row].arrival + BLOCK_SECONDS * (place - drawn))
            for place, drawn in enumerate(rng.integers(count, size=count).tolist())
            for row in np.flatnonzero(of_block == drawn).tolist()
        ]
        return replace(self, requests=tuple(sorted(arrived, key=lambda one: one.arrival)))

    def endless(self) -> Iterator[SimulatedRequest]:
        """The requests again and again. Blocks that only one request has are new ones in each round."""
        seen: dict[int, int] = {}
        for request in self.requests:
            for block in request.chain:
                seen[block] = seen.get(block, 0) + 1
        turn = 0
        while True:
            for request in self.requests:
                chain = tuple(block if seen[block] > 1 else hash((block, turn)) for block in request.chain)
                yield request if not turn else replace(request, chain=chain)
            turn += 1


@dataclass(frozen=True)
class ArrivalKind:
    """Whether arrivals depend on answers. closed: probability of a closed loop; clients, think: of that loop."""

    closed: float
    clients: int
    think: float


def arrival_kind(of: ScrapeIntervals) -> ArrivalKind:
    """Open or closed loop: from the requests in the engine, and from whether arrivals follow the engine's speed."""
    present = of.present[np.isfinite(of.present)]
    mean, median, most = float(present.mean()), float(np.median(present)), float(present.max())
    rate = float(np.nansum(of.finished) / of.seconds.sum())
    clients = max(round(most), 1)
    closed = 0.5
    if median >= PLATEAU * most or _speed_correlation(of) <= FOLLOWS:
        closed = 1.0
    elif most > FLOODED * max(median, 2.0):
        closed = 0.0
    resident = _resident(of)
    inside = mean if resident is None else rate * resident
    return ArrivalKind(closed, clients, max(clients - inside, 0.0) / rate if rate > 0 else 0.0)


def _resident(of: ScrapeIntervals) -> float | None:
    """Mean seconds of a request in the scheduler: queue, prefill and decoding. Gauges leave out requests that are on
    their way through the API server. None where the engine does not report the queue and the prefill."""
    requests, finished = float(np.nansum(of.ttft_count)), float(np.nansum(of.finished))
    if not requests or not finished or not (np.isfinite(of.queue_seconds) & np.isfinite(of.prefill_seconds)).any():
        return None
    decoding = float(np.nansum(of.itl_seconds)) / finished
    return float(np.nansum(of.queue_seconds) + np.nansum(of.prefill_seconds)) / requests + decoding


def _speed_correlation(of: ScrapeIntervals) -> float:
    """Of the logarithms of arrivals and inter-token time; 0 where too few intervals have both."""
    arrived = np.maximum(of.finished + np.diff(of.present, prepend=of.present[:1]), 0.0) / of.seconds
    known = (arrived > 0) & (of.itl_count > 0) & (of.itl_seconds > 0)
    if known.sum() < MIN_CORRELATED:
        return 0.0
    rates, gaps = np.log(arrived[known]), np.log(of.itl_seconds[known] / of.itl_count[known])
    return float(np.corrcoef(rates, gaps)[0, 1]) if rates.std() > 0 and gaps.std() > 0 else 0.0


def of_histograms(
    of: ScrapeIntervals, lengths: dict[str, BucketCounts], *, closed: ArrivalKind | None, lone: float, seed: int
) -> SimulatedLoad:
    """Requests with the measured arrivals, lengths and hit rate, drawn independently of each other."""
    rng = np.random.default_rng(seed)
    seconds = float(of.seconds.sum())
    arrivals = _arrivals(of, rng)
    count = len(arrivals) if closed is None else max(int(np.nansum(of.finished)), 1)
    prompts, outputs = (_draw(lengths[name], mean, count, rng) for name, mean in _means(of, lengths))
    hits = float(np.nansum(of.cached) / max(np.nansum(of.prompt), 1.0))
    requests = [
        SimulatedRequest(float(arrival), prompt, output, min(int(hits * prompt), prompt - 1))
        for arrival, prompt, output in zip(
            arrivals if closed is None else np.zeros(count), prompts.tolist(), outputs.tolist(), strict=True
        )
    ]
    return _looped(requests, seconds, closed, lone)


def of_accesses(
    accesses: Accesses,
    of: ScrapeIntervals,
    lengths: dict[str, BucketCounts],
    *,
    closed: ArrivalKind | None,
    lone: float,
    seed: int,
) -> SimulatedLoad:
    """Requests as their block lookups came, with the measured answer lengths."""
    rng = np.random.default_rng(seed)
    first, last = float(of.ends[0] - of.seconds[0]), float(of.ends[-1])
    chains = [
        tuple(accesses.block[accesses.start[row] : accesses.start[row + 1]].tolist()) for row in range(len(accesses))
    ]
    outputs = _draw(lengths["output"], dict(_means(of, lengths))["output"], len(accesses), rng).tolist()
    requests = [
        SimulatedRequest(
            float(accesses.time[row]) - first,
            max(int(accesses.tokens[row]), 1),
            int(accesses.output[row]) if accesses.output[row] > 0 else outputs[row],
            0,
            chains[row],
        )
        for row in range(len(accesses))
        if first <= accesses.time[row] <= last
    ]
    warm = tuple(chain for chain, time in zip(chains, accesses.time.tolist(), strict=True) if time < first)
    return replace(_looped(requests, float(of.seconds.sum()), closed, lone), warm=warm)


def _looped(
    requests: Sequence[SimulatedRequest], seconds: float, kind: ArrivalKind | None, lone: float
) -> SimulatedLoad:
    if kind is None:
        return SimulatedLoad(tuple(requests), seconds, lone=lone)
    return SimulatedLoad(tuple(requests), seconds, kind.clients, kind.think, lone)


def _arrivals(of: ScrapeIntervals, rng: np.random.Generator) -> Floats:
    """Finished requests and the growth of those in the engine, at random times of their interval."""
    growth = np.diff(of.present, prepend=of.present[:1])
    counts = np.maximum(np.nan_to_num(of.finished) + np.nan_to_num(growth), 0.0).astype(int)
    counts[0] += int(np.nan_to_num(of.present[0]))
    starts = np.concatenate([[0.0], np.cumsum(of.seconds)[:-1]])
    drawn = [start + length * rng.random(n) for start, length, n in zip(starts, of.seconds, counts, strict=True)]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0)


def _means(of: ScrapeIntervals, lengths: dict[str, BucketCounts]) -> list[tuple[str, float]]:
    """Mean tokens of prompts and answers."""
    requests = max(float(np.nansum(of.finished)), 1.0)
    started = max(float(np.nansum(of.ttft_count)), 1.0)
    known = {"prompt": float(np.nansum(of.prompt)) / started, "output": float(np.nansum(of.generated)) / requests}
    return [(name, max(mean, 1.0)) for name, mean in known.items() if name in lengths]


def _draw(of: BucketCounts, mean: float, count: int, rng: np.random.Generator) -> Ints:
    """Lengths: even inside each bucket, and moved inside the buckets until their mean is the measured one. Where all
    lie in one bucket, how they differ is unknown and all are the mean."""
    inside = np.diff(of.counts, prepend=0.0)
    filled = np.flatnonzero(inside > 0)
    if len(filled) <= 1:
        low = np.full(count, int(np.floor(mean)), dtype=np.int64)
        return np.asarray(low + (rng.random(count) < mean - np.floor(mean)), dtype=np.int64)
    bucket = rng.choice(filled, size=count, p=inside[filled] / inside[filled].sum())
    lower = np.concatenate([[0.0], of.bounds[:-1]])[bucket]
    upper = np.where(np.isfinite(of.bounds), of.bounds, 2 * of.bounds[-2])[bucket]
    place = rng.random(count)
    low_power, high_power = -6.0, 6.0
    for _ in range(30):  # place ** exp(power) falls with power: bisection on the mean
        power = (low_power + high_power) / 2
        if float((lower + (upper - lower) * place ** np.exp(power)).mean()) > mean:
            low_power = power
        else:
            high_power = power
    drawn = lower + (upper - lower) * place ** np.exp((low_power + high_power) / 2)
    return np.asarray(np.maximum(np.rint(drawn), 1), dtype=np.int64)
