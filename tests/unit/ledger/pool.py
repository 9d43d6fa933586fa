"""A paged KV cache as vLLM 0.32's scheduler and block pool keep it (v1/core: block_pool.py, kv_cache_manager.py,
sched/scheduler.py), small: it publishes the same events in the same order, and knows what was found.

Running requests are scheduled before waiting ones, each takes its blocks from the front of the free queue and what lies
there is removed; full blocks are stored when they are scheduled, not when they are computed; the last token of a prompt
is always computed; a request's blocks are freed last first, those without content to the front of the queue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import blake2b

from kvitals.agent.ledger.event import (
    BlockEventBatch,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
    KvEventsRecord,
)
from kvitals.agent.requests.record import RequestRecord

ENGINE = "e"


def block_hash(parent: int | None, tokens: tuple[int, ...]) -> int:
    digest = blake2b(repr((parent, tokens)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


@dataclass(eq=False)
class Request:
    """A request, and what became of it."""

    id: str
    prompt: list[int]
    output: int  # tokens to generate
    arrives: float
    tenant: str = ""
    session: str = ""
    report: bool = False  # kv_cache_report_mode full
    seed: int = 0  # what it generates
    hits: int | None = None  # blocks found at its first look-up
    stored_at: float | None = None  # when the first of its prompt's blocks was told
    ttft: float | None = None
    ends: float | None = None
    preempted: bool = False
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    cached: int = 0  # of its blocks, that have a hash


class Pool:
    """One engine."""

    def __init__(self, blocks: int, size: int = 16, budget: int = 512, step: float = 0.05, slots: int = 16) -> None:
        self.size, self.budget, self.step_seconds, self.slots = size, budget, step, slots
        self.now = 1_790_000_000.0
        self.refaulted = 0  # blocks of prompts that were there before
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._refs = [0] * blocks
        self._hash: list[int | None] = [None] * blocks
        self._cached: dict[int, dict[int, None]] = {}  # hash -> blocks
        self._ever: set[int] = set()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._events: list[Event] = []
        self._sequence = 0

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def live(self) -> int:
        """Blocks with content, copies included."""
        return sum(len(same) for same in self._cached.values())

    def ask(self, request: Request) -> None:
        request.tokens = list(request.prompt)
        self._waiting.append(request)

    def reset(self) -> None:
        """Forget all, as /reset_prefix_cache does where nothing runs."""
        assert self.idle
        self._cached.clear()
        self._hash = [None] * len(self._hash)
        self._events.append(BlocksCleared())

    def step(self) -> BlockEventBatch | None:
        """One step of the engine; the events that it publishes."""
        left = self.budget
        for request in list(self._running):
            if request not in self._running:
                continue
            left -= self._run(request, left)
        while self._waiting and left > 0 and len(self._running) < self.slots:
            request = self._waiting[0]
            if request.arrives > self.now:
                break
            taken = self._admit(request, left)
            if taken is None:
                break
            left -= taken
            self._waiting.popleft()
        self.now += self.step_seconds
        self._finish()
        if not self._events:
            return None
        batch = BlockEventBatch(self._sequence, self.now, tuple(self._events))
        self._sequence += 1
        self._events = []
        return batch

    def _run(self, request: Request, left: int) -> int:
        n = min(len(request.tokens) - request.computed, left)
        if n <= 0:
            return 0
        while not self._allocate(request, request.computed + n):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is request:
                return 0
        self._compute(request, n)
        return n

    def _admit(self, request: Request, left: int) -> int | None:
        hashes = self._hashes(request)
        found = []
        for one in hashes[: (len(request.tokens) - 1) // self.size]:
            same = self._cached.get(one)
            if not same:
                break
            found.append(next(iter(same)))
        if request.report and found:
            self._events.append(self._stored(request, tuple(hashes[: len(found)]), None))
        n = min(len(request.tokens) - len(found) * self.size, left)
        need = -(-(len(found) * self.size + n) // self.size) - len(found)
        if need > len(self._free) - sum(1 for block in found if not self._refs[block]):
            return None
        for block in found:
            if not self._refs[block]:
                del self._free[block]
            self._refs[block] += 1
        request.blocks, request.cached, request.computed = found, len(found), len(found) * self.size
        if request.hits is None:
            request.hits = len(found)
        self._allocate(request, request.computed + n)
        self._compute(request, n)
        self._running.append(request)
        return n

    def _allocate(self, request: Request, tokens: int) -> bool:
        need = -(-tokens // self.size) - len(request.blocks)
        if need > len(self._free):
            return False
        for _ in range(need):
            block, _ = self._free.popitem(last=False)
            old = self._hash[block]
            if old is not None:
                same = self._cached[old]
                del same[block]
                if not same:
                    del self._cached[old]
                self._hash[block] = None
                self._events.append(BlocksRemoved((old,)))
            self._refs[block] = 1
            request.blocks.append(block)
        return True

    def _compute(self, request: Request, n: int) -> None:
        request.computed += n
        full = min(request.computed, len(request.tokens)) // self.size
        if full <= request.cached:
            return
        hashes = self._hashes(request)
        new = tuple(hashes[request.cached : full])
        parent = hashes[request.cached - 1] if request.cached else None
        prompt = len(request.prompt) // self.size
        self.refaulted += sum(
            one in self._ever and one not in self._cached for one in hashes[request.cached : min(full, prompt)]
        )
        for block, one in zip(request.blocks[request.cached : full], new, strict=True):
            self._hash[block] = one
            self._cached.setdefault(one, {})[block] = None
        self._ever.update(new)
        if request.stored_at is None and request.cached < prompt:
            request.stored_at = self.now + self.step_seconds
        request.cached = full
        self._events.append(self._stored(request, new, parent))

    def _stored(self, request: Request, hashes: tuple[int, ...], parent: int | None) -> BlocksStored:
        told = request.session if request.session.startswith("told") else ""
        return BlocksStored(hashes, parent, self.size, tenant=request.tenant if told else "", session=told)

    def _finish(self) -> None:
        for request in list(self._running):
            if request.computed < len(request.tokens):
                continue
            if request.ttft is None:
                request.ttft = self.now - request.arrives
            request.tokens.append(1_000_000 + request.seed * 10_000 + len(request.tokens))
            if len(request.tokens) - len(request.prompt) >= request.output:
                request.ends = self.now
                self._running.remove(request)
                self._release(request)

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._release(request)
        request.preempted, request.computed = True, 0
        self._waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        for block in reversed(request.blocks):
            self._refs[block] -= 1
            if not self._refs[block]:
                self._free[block] = None
                if self._hash[block] is None:
                    self._free.move_to_end(block, last=False)
        request.blocks, request.cached = [], 0

    def _hashes(self, request: Request) -> list[int]:
        found: list[int] = []
        parent: int | None = None
        for i in range(0, len(request.tokens) - self.size + 1, self.size):
            parent = block_hash(parent, tuple(request.tokens[i : i + self.size]))
            found.append(parent)
        return found


def record(request: Request, size: int) -> RequestRecord:
    """What an observer of a request tells of it."""
    assert request.ends is not None
    assert request.hits is not None
    return RequestRecord(
        id=request.id,
        start=request.arrives,
        end=request.ends,
        complete=True,
        engines={"unified": ENGINE},
        tenant=request.tenant,
        session=request.session,
        ttft=request.ttft,
        prompt_tokens=len(request.prompt),
        cached_tokens=request.hits * size,
        output_tokens=request.output,
    )


def events(batches: list[BlockEventBatch], t: float) -> KvEventsRecord:
    return KvEventsRecord(t=t, target="t", batches=tuple(batches))
