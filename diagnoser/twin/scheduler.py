"""The scheduler of vLLM V1, simulated: which requests are in each step, and how long they wait.

Each step gives a token to every decoding sequence and spends the rest of the token budget on prompts, running requests
first, then waiting ones in order of arrival while slots and blocks are free. A request that gets no block preempts the
newest, which starts again. Steps between two changes of the batch are alike and simulated at once.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from kvitals.diagnoser.twin.simulated_load import SimulatedLoad, SimulatedRequest
from kvitals.diagnoser.twin.step_time import StepTime
from kvitals.series.types import Floats

MAX_EVENTS = 400_000


@dataclass(frozen=True)
class SchedulerSettings:
    """What bounds a step. blocks: those that requests can use. long_prefill: prompt tokens of one request in a step, 0
    for no limit. chunked: a prompt may be computed in parts."""

    slots: int
    token_budget: int
    blocks: int
    block_tokens: int
    chunked: bool = True
    caching: bool = True
    long_prefill: int = 0


@dataclass(frozen=True)
class SimulatedRun:
    """What a simulation shows.

    ttft: seconds, a request each, without the front end. itl: seconds of a gap between tokens; itl_tokens: how many
    gaps. requests, tokens: finished and generated, a second. hit_rate: share of prompt tokens, None without prompts.
    running, waiting: means over time. step_seconds: mean of a step; prefill_of_step, sequences_of_step: what is in it.
    refused: requests that no pool of this size holds. ended_early: there were more than `MAX_EVENTS` events.
    """

    ttft: Floats
    itl: Floats
    itl_tokens: Floats
    requests: float
    tokens: float
    hit_rate: float | None
    preemptions_per_second: float
    running: float
    waiting: float
    step_seconds: float
    prefill_of_step: float
    sequences_of_step: float
    refused: int
    ended_early: bool = False


class _Active:
    """A request in the engine."""

    __slots__ = ("arrival", "blocks", "cached", "computed", "first", "generated", "of", "target")

    def __init__(self, of: SimulatedRequest, arrival: float) -> None:
        self.of = of
        self.arrival = arrival
        self.cached = 0
        self.computed = 0
        self.target = of.prompt
        self.generated = 0
        self.blocks = 0.0
        self.first = False

    @property
    def decodes(self) -> bool:
        """Whether its prompt is computed."""
        return self.computed >= self.target

    @property
    def tokens(self) -> int:
        """Of its prompt and its answer so far: all are to be computed after a preemption."""
        return self.of.prompt + self.generated


class _Blocks:
    """The pool: blocks in use, and cached ones that leave in order of last use."""

    def __init__(self, settings: SchedulerSettings, lone: float) -> None:
        self._size, self._tokens = float(settings.blocks), settings.block_tokens
        self._caching, self._lone = settings.caching, lone
        self._held: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.private = 0.0

    @property
    def free(self) -> float:
        """Blocks that can be had, cached ones among them."""
        return self._size - len(self._held) - self.private

    def admit(self, one: _Active, tokens: int) -> bool:
        """Blocks for so many tokens; those of its chain that are cached are shared. Whether there are enough."""
        whole = math.ceil(tokens / self._tokens)
        chain = one.of.chain if self._caching else ()
        if not chain:
            cached = min(one.of.cached, one.of.prompt - 1) if self._caching else 0
            needed = whole - (1.0 - self._lone) * (cached // self._tokens)
            if needed > self.free:
                return False
            self.private += needed
            one.blocks, one.cached = needed, cached
            return True
        usable = (one.of.prompt - 1) // self._tokens
        hits = 0
        for block in chain[:usable]:
            if block not in self._held and block not in self._cached:
                break
            hits += 1
        idle = sum(block in self._cached for block in chain[:hits])
        new = [block for block in chain[hits:] if block not in self._held]
        rest = float(max(whole - len(chain), 0))
        if idle + len(new) + rest > self.free:
            return False
        for block in chain:
            self._cached.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        self.private += rest
        one.blocks, one.cached = rest, hits * self._tokens
        self._evict()
        return True

    def grow(self, one: _Active, blocks: int) -> None:
        """More blocks for an answer."""
        one.blocks += blocks
        self.private += blocks
        self._evict()

    def release(self, one: _Active) -> None:
        """Give back what a request holds. The end of its chain leaves the cache first."""
        self.private -= one.blocks
        one.blocks = 0.0
        for block in reversed(one.of.chain if self._caching else ()):
            held = self._held.get(block, 0) - 1
            if held > 0:
                self._held[block] = held
            elif held == 0:
                del self._held[block]
                self._cached[block] = None

    def _evict(self) -> None:
        while self._cached and len(self._cached) > self.free:
            self._cached.popitem(last=False)


@dataclass
class _Totals:
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    itl_tokens: list[int] = field(default_factory=list)
    finished: int = 0
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    preemptions: int = 0
    running_seconds: float = 0.0
    waiting_seconds: float = 0.0
    busy_seconds: float = 0.0
    steps: int = 0
    prefill: int = 0
    sequences: int = 0
    refused: int = 0


class _Simulation:
    def __init__(
        self, settings: SchedulerSettings, step: StepTime, load: SimulatedLoad, speed: Floats, every: float, seed: int
    ) -> None:
        self._settings, self._step, self._load = settings, step, load
        self._speed: list[float] = speed.tolist() or [1.0]
        self._every = every
        self._rng = np.random.default_rng(seed)
        self._blocks = _Blocks(settings, load.lone)
        self._waiting: deque[_Active] = deque()
        self._running: list[_Active] = []
        self._now = 0.0
        self._blocked = False  # the first that waits did not get its blocks, and none were released since
        self._arrivals: list[tuple[float, int, SimulatedRequest]] = []
        self._numbers = iter(range(10**9))
        self._source: Iterator[SimulatedRequest] = load.endless()
        self.totals = _Totals()
        for chain in load.warm:
            one = _Active(SimulatedRequest(0.0, len(chain) * settings.block_tokens + 1, 1, 0, chain), 0.0)
            if self._blocks.admit(one, one.tokens):
                self._blocks.release(one)
        if load.clients:
            for request in islice(self._source, load.clients):
                self._come(request, self._pause())
        else:
            for request in load.requests:
                self._come(request, request.arrival)

    def run(self) -> bool:
        """Whether the whole time was simulated."""
        for _ in range(MAX_EVENTS):
            if self._now >= self._load.seconds:
                return True
            self._receive()
            self._admit_idle()
            if not self._running and not self._waiting:
                if not self._arrivals:
                    return True
                self._pass(max(self._arrivals[0][0] - self._now, 0.0))
                continue
            if self._running and not self._can_admit() and all(one.decodes for one in self._running):
                self._decode()
            else:
                self._mixed_step()
        return False

    def _pause(self) -> float:
        return float(self._rng.exponential(self._load.think)) if self._load.think > 0 else 0.0

    def _come(self, request: SimulatedRequest, at: float) -> None:
        heapq.heappush(self._arrivals, (at, next(self._numbers), request))

    def _receive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._now + 1e-12:
            at, _, request = heapq.heappop(self._arrivals)
            self._waiting.append(_Active(request, at))

    def _admit_idle(self) -> None:
        """A request that never fits is refused, as vLLM refuses a prompt beyond its pool."""
        limit = self._settings.blocks
        while self._waiting and not self._running:
            longest = self._waiting[0].of.prompt + self._waiting[0].of.output
            if math.ceil(longest / self._settings.block_tokens) <= limit:
                return
            self._waiting.popleft()
            self.totals.refused += 1
            self._next_of_client()

    def _can_admit(self) -> bool:
        return bool(self._waiting) and not self._blocked and len(self._running) < self._settings.slots

    def _factor(self) -> float:
        return self._speed[int(self._now / self._every) % len(self._speed)]

    def _pass(self, seconds: float) -> None:
        self.totals.running_seconds += seconds * len(self._running)
        self.totals.waiting_seconds += seconds * len(self._waiting)
        self._now += seconds

    def _decode(self) -> None:
        """Steps in which every running request gets a token, up to the next change of the batch."""
        running, size = self._running, self._settings.block_tokens
        count = min(one.of.output - one.generated for one in running)
        context = sum(one.tokens for one in running)
        seconds = self._step.seconds(0, len(running), context) * self._factor()
        until = (int(self._now / self._every) + 1) * self._every
        if self._arrivals and len(running) < self._settings.slots:
            until = min(until, self._arrivals[0][0])
        count = max(min(count, math.ceil((until - self._now) / seconds)), 1)
        grown = self._growth(count, size)
        while sum(grown) > self._blocks.free and count > 1:
            count //= 2
            grown = self._growth(count, size)
        if sum(grown) > self._blocks.free:
            self._preempt()
            return
        for one, blocks in zip(running, grown, strict=True):
            if blocks:
                self._blocks.grow(one, blocks)
            one.generated += count
        self._count_steps(count, seconds, 0, len(running))
        self._finish()

    def _growth(self, count: int, size: int) -> list[int]:
        """Blocks that each running request needs for so many tokens more."""
        return [(one.tokens + count - 1) // size - (one.tokens - 1) // size for one in self._running]

    def _preempt(self) -> None:
        one = self._running.pop()
        self._blocks.release(one)
        one.computed, self._blocked = 0, len(self._running) > 0
        self._waiting.appendleft(one)
        self.totals.preemptions += 1

    def _mixed_step(self) -> None:
        """One step with prompt tokens in it."""
        settings, left = self._settings, self._settings.token_budget
        decoding = [one for one in self._running if one.decodes]
        grown = {
            id(one): blocks for one, blocks in zip(self._running, self._growth(1, settings.block_tokens), strict=True)
        }
        if sum(grown[id(one)] for one in decoding) > self._blocks.free:
            self._preempt()
            return
        for one in decoding:
            if grown[id(one)]:
                self._blocks.grow(one, grown[id(one)])
        left -= len(decoding)
        chunks: list[tuple[_Active, int]] = []
        for one in self._running:
            if not one.decodes and left > 0:
                left -= self._chunk(one, left, chunks)
        while self._waiting and not self._blocked and len(self._running) < settings.slots and left > 0:
            one = self._waiting[0]
            if not settings.chunked and one.tokens > left and chunks:
                break
            if not self._blocks.admit(one, one.tokens):
                self._blocked = True
                break
            self._waiting.popleft()
            one.computed, one.target = one.cached, one.tokens
            if not one.first:
                self.totals.prompt += one.of.prompt
                self.totals.cached += one.cached
            self._running.append(one)
            left -= self._chunk(one, left, chunks)
        context = sum(one.tokens for one in decoding)
        tokens = sum(count for _, count in chunks)
        if not decoding and not chunks:
            self._preempt()  # nothing moves: the newest holds blocks that the oldest needs
            return
        seconds = self._step.seconds(tokens, len(decoding), context) * self._factor()
        for one, count in chunks:
            one.computed += count
        self._count_steps(1, seconds, tokens, len(decoding))
        for one in decoding:
            one.generated += 1
        for one, _ in chunks:
            if one.decodes:
                if not one.first:
                    self.totals.ttft.append(self._now - one.arrival)
                    one.first = True
                one.generated += 1
                self.totals.tokens += 1
        self._finish()

    def _chunk(self, one: _Active, left: int, chunks: list[tuple[_Active, int]]) -> int:
        count = one.target - one.computed
        if self._settings.long_prefill:
            count = min(count, self._settings.long_prefill)
        if self._settings.chunked:
            count = min(count, left)
        chunks.append((one, count))
        return count

    def _count_steps(self, count: int, seconds: float, prefill: int, sequences: int) -> None:
        totals = self.totals
        self._pass(seconds * count)
        totals.busy_seconds += seconds * count
        totals.steps += count
        totals.prefill += prefill
        totals.sequences += sequences * count
        if sequences:
            totals.itl.append(seconds)
            totals.itl_tokens.append(sequences * count)
            totals.tokens += sequences * count

    def _finish(self) -> None:
        done = [one for one in self._running if one.generated >= one.of.output]
        if not done:
            return
        self._blocked = False
        self._running = [one for one in self._running if one.generated < one.of.output]
        for one in done:
            self._blocks.release(one)
            self.totals.finished += 1
            self._next_of_client()

    def _next_of_client(self) -> None:
        if self._load.clients:
            self._come(next(self._source), self._now + self._pause())


def simulate(
    settings: SchedulerSettings,
    step: StepTime,
    load: SimulatedLoad,
    *,
    speed: Floats | None = None,
    every: float = 1.0,
    seed: int = 0,
) -> SimulatedRun:
    """Simulate an engine under a load, the same for the same seed.

    speed: factors of the step time, one after another for `every` seconds each.
    """
    of = _Simulation(settings, step, load, np.ones(1) if speed is None else speed, every, seed)
    whole = of.run()
    totals = of.totals
    seconds = max(of._now, 1e-9)
    steps = max(totals.steps, 1)
    return SimulatedRun(
        np.array(totals.ttft),
        np.array(totals.itl),
        np.array(totals.itl_tokens, dtype=np.float64),
        totals.finished / seconds,
        totals.tokens / seconds,
        totals.cached / totals.prompt if totals.prompt else None,
        totals.preemptions / seconds,
        totals.running_seconds / seconds,
        totals.waiting_seconds / seconds,
        totals.busy_seconds / steps,
        totals.prefill / steps,
        totals.sequences / steps,
        totals.refused,
        not whole,
    )
