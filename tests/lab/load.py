"""Drives engines the way tenants would, and knows what it did to them.

    async with Load([engine.url], [Tenant("chat", clients=4, prefix=480)]) as load:
        await asyncio.sleep(10)
    print(load.truth())

It speaks the OpenAI completions API with streaming, and measures each request as its client would.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from .traffic import Ask, InfiniteCache, Prompts, Tenant, percentile, poisson

TENANT_HEADER = "X-Tenant"
REQUEST_TIMEOUT_S = 120.0
DRAIN_S = 15.0
AFTER_ERROR_S = 0.5
"""A client whose request failed does not hammer on."""
CUT = "cut"
"""Status of a request that was still running when the load was told to end."""

FAILED = "failed"
"""Status of a request whose stream ended with an error."""
LEFT = "left"
"""Status of a request whose client hung up in the middle of its answer."""
IMPATIENT = "impatient"
"""Status of a request whose client did not want to wait for the first token any longer."""
STOP_WORDS = ["a", "e", "i", "o"]
"""Hardly a word of the model has none of them, so an answer with these as stops ends where it may. vLLM takes four."""
ROOM_TO_STOP = 64
"""Tokens that an answer may run beyond where it is to stop."""

_serial = itertools.count()


@dataclass
class Sample:
    """One request as its client saw it. Times are seconds, `sent` is wall-clock time."""

    tenant: str
    sent: float
    prompt_tokens: int
    attainable_tokens: int
    """Prompt tokens that a cache of unlimited size would have had."""
    status: str = CUT
    ttft: float | None = None
    itl: list[float] = field(default_factory=list)
    e2e: float | None = None
    answer_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens the engine says it had."""


class Load:
    """Tenants sending to engines, from the moment the block is entered until it is left.

    `cache` carries the knowledge of what was sent before into the next phase on the same engines.
    """

    def __init__(
        self,
        urls: Sequence[str],
        tenants: Sequence[Tenant],
        *,
        cache: InfiniteCache | None = None,
        seed: str | None = None,
        drain_s: float = DRAIN_S,
        sticky: bool = False,
    ) -> None:
        """`sticky`: requests with one system prompt go to one of the URLs; else to each in turn."""
        self.tenants = tuple(tenants)
        self.samples: list[Sample] = []
        self.started: float | None = None
        self.ended: float | None = None
        self._urls = itertools.cycle(urls)
        self._sticky = list(urls) if sticky else []
        self._cache = cache if cache is not None else InfiniteCache()
        self._seed = seed if seed is not None else f"load-{next(_serial)}"
        self._drain_s = drain_s
        self._senders: list[asyncio.Task[None]] = []
        self._flying: set[asyncio.Task[None]] = set()
        self._closing = False
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop_sending()
        await self.drain(0.0 if error[0] is not None else self._drain_s)

    async def start(self) -> None:
        """Begin to send. Whoever calls this calls `stop_sending` and `drain` in the end."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        )
        self.started = time.time()
        self._senders = [asyncio.create_task(sender) for tenant in self.tenants for sender in self._ways(tenant)]

    def stop_sending(self) -> None:
        """Start no more requests; those on their way go on. Ends the load as far as the truth goes."""
        self._closing = True
        if self.ended is None:
            self.ended = time.time()
        for sender in self._senders:
            sender.cancel()

    async def drain(self, seconds: float = DRAIN_S) -> None:
        """Wait for the requests on their way, but no longer than this; the rest is hung up on."""
        if self._flying:
            await asyncio.wait(self._flying, timeout=seconds)
        for request in self._flying:
            request.cancel()
        await asyncio.gather(*self._senders, *self._flying, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def warm(self, tenants: Sequence[Tenant]) -> None:
        """Send one request for each of their system prompts, one by one, so that a cache has seen them."""
        for tenant in tenants:
            for ask in Prompts(tenant, f"{self._seed}/warm").every_system():
                await self._send(ask)

    def truth(self) -> dict[str, Any]:
        """What this load did, in numbers: in all and per tenant."""
        by_tenant = {
            tenant.name: summary([s for s in self.samples if s.tenant == tenant.name]) for tenant in self.tenants
        }
        return {"start": self.started, "end": self.ended, **summary(self.samples), "tenants": by_tenant}

    def _ways(self, tenant: Tenant) -> list[Coroutine[Any, Any, None]]:
        ways = [self._closed_loop(tenant, number) for number in range(tenant.clients)]
        if tenant.rate > 0:
            ways.append(self._open_loop(tenant))
        if tenant.burst > 0:
            ways.append(self._bursts(tenant))
        return ways

    async def _closed_loop(self, tenant: Tenant, number: int) -> None:
        prompts = Prompts(tenant, f"{self._seed}/client-{number}")
        pause = random.Random(f"{self._seed}/{tenant.name}/think-{number}")
        session = prompts.session()
        if tenant.ramp_s:
            await asyncio.sleep(tenant.ramp_s * number / tenant.clients)
        if tenant.think_s:
            await asyncio.sleep(pause.uniform(0, tenant.think_s))  # clients do not start in step
        while not self._closing:
            await asyncio.sleep(self._off(tenant))
            session = prompts.next_session(session)
            # The request outlives a cancelled sender, so that stopping does not hang up on it.
            await asyncio.shield(self._fly(prompts.ask(session)))
            if tenant.think_s:
                await asyncio.sleep(pause.expovariate(1 / tenant.think_s))

    async def _open_loop(self, tenant: Tenant) -> None:
        prompts = Prompts(tenant, f"{self._seed}/open")
        chance = random.Random(f"{self._seed}/{tenant.name}/ramp")
        for pause in poisson(tenant.rate, random.Random(f"{self._seed}/{tenant.name}/arrivals")):
            await asyncio.sleep(pause)
            if self._off(tenant) or (tenant.ramp_s and chance.random() > self._lasted() / tenant.ramp_s):
                continue
            self._fly(prompts.ask(prompts.session()))

    def _lasted(self) -> float:
        """Seconds since the load began."""
        return time.time() - (self.started or time.time())

    def _off(self, tenant: Tenant) -> float:
        """Seconds until a tenant that sends in pulses does so again; 0 while it does."""
        into = self._lasted() % (2 * tenant.pulse_s) if tenant.pulse_s else 0.0
        return 2 * tenant.pulse_s - into if into > tenant.pulse_s else 0.0

    async def _bursts(self, tenant: Tenant) -> None:
        prompts = Prompts(tenant, f"{self._seed}/burst")
        while not self._closing:
            for _ in range(tenant.burst):
                self._fly(prompts.ask(prompts.session()))
            await asyncio.sleep(tenant.every_s)

    def _fly(self, ask: Ask) -> asyncio.Task[None]:
        request = asyncio.create_task(self._send(ask))
        self._flying.add(request)
        request.add_done_callback(self._flying.discard)
        return request

    async def _send(self, ask: Ask) -> None:
        for _ in range(1 + ask.tenant.retries):
            if await self._try(ask) != IMPATIENT:
                break

    async def _try(self, ask: Ask) -> str:
        """One attempt; how it ended."""
        sample = Sample(
            tenant=ask.tenant.name,
            sent=time.time(),
            prompt_tokens=len(ask.prompt),
            attainable_tokens=self._cache.attainable(ask.prompt),
        )
        self._cache.add(ask.prompt)
        self.samples.append(sample)
        answer: list[int] = []
        try:
            async with asyncio.timeout(ask.tenant.patience_s or None) as patience:
                await self._stream(ask, sample, answer, patience)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            sample.status = IMPATIENT if patience.expired() else type(error).__name__
        if sample.status not in ("ok", LEFT, IMPATIENT):
            await asyncio.sleep(AFTER_ERROR_S)
        if ask.tenant.turns > 1:
            question = ask.prompt[-ask.tenant.question :]
            ask.session.remember(question, answer)
            self._cache.add([*ask.prompt, *answer[:-1]])  # the last token sampled is never computed
        return sample.status

    def _url(self, ask: Ask) -> str:
        if self._sticky:
            return self._sticky[zlib.crc32(repr(ask.session.system).encode()) % len(self._sticky)]
        return next(self._urls)

    async def _stream(self, ask: Ask, sample: Sample, answer: list[int], patience: asyncio.Timeout) -> None:
        assert self._session is not None
        begun = last = time.perf_counter()
        headers = {TENANT_HEADER: ask.tenant.name}
        url = f"{self._url(ask)}/v1/completions"
        pieces = 0
        async with self._session.post(url, json=_body(ask), headers=headers) as response:
            if response.status != 200:
                sample.status = str(response.status)
                return
            async for event in _events(response):
                now = time.perf_counter()
                if "error" in event:  # an engine that fails after the first byte has said 200 already
                    sample.status = FAILED
                    return
                if event.get("usage"):
                    _note_usage(sample, event["usage"])
                if not event.get("choices"):
                    continue
                pieces += 1
                if sample.ttft is None:
                    sample.ttft = now - begun
                    patience.reschedule(None)
                else:
                    sample.itl.append(now - last)
                last = now
                answer += event["choices"][0].get("token_ids") or []
                if pieces == ask.leaves_after:
                    sample.status = LEFT
                    response.close()
                    return
        sample.e2e = time.perf_counter() - begun
        sample.status = "ok"


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Counts and latencies of some requests; latencies over those that finished or got that far."""
    prompt_tokens = sum(s.prompt_tokens for s in samples)
    attainable = sum(s.attainable_tokens for s in samples)
    return {
        "requests": len(samples),
        "status": dict(sorted(Counter(s.status for s in samples).items())),
        "prompt_tokens": prompt_tokens,
        "shared_tokens": attainable,
        "unique_tokens": prompt_tokens - attainable,
        "attainable_hit_ratio": _ratio(attainable, prompt_tokens),
        "cached_tokens": sum(s.cached_tokens or 0 for s in samples),
        "answer_tokens": sum(s.answer_tokens for s in samples),
        "ttft_s": _latency([s.ttft for s in samples if s.ttft is not None]),
        "itl_s": _latency([gap for s in samples for gap in s.itl]),
        "e2e_s": _latency([s.e2e for s in samples if s.e2e is not None]),
    }


def _latency(seconds: Sequence[float]) -> dict[str, float | None]:
    values = {"p50": percentile(seconds, 0.5), "p99": percentile(seconds, 0.99)}
    return {name: None if value is None else round(value, 4) for name, value in values.items()}


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _body(ask: Ask) -> dict[str, Any]:
    # Only conversations need the answer's tokens, and Dynamo refuses requests with parameters it does not know.
    wanted: dict[str, Any] = {"return_token_ids": True} if ask.tenant.turns > 1 else {}
    if ask.tenant.stops:
        wanted |= {"stop": STOP_WORDS, "max_tokens": ask.tenant.answer + ROOM_TO_STOP}
    return {
        "model": ask.model,
        "prompt": ask.prompt,
        "max_tokens": ask.tenant.answer,
        "min_tokens": ask.tenant.answer,
        "ignore_eos": True,
        "temperature": ask.tenant.temperature,
        **({"priority": ask.tenant.priority} if ask.tenant.priority else {}),
        "stream": True,
        "stream_options": {"include_usage": True},
        **wanted,
    }


def _note_usage(sample: Sample, usage: dict[str, Any]) -> None:
    sample.answer_tokens = usage.get("completion_tokens", 0)
    details = usage.get("prompt_tokens_details") or {}
    sample.cached_tokens = details.get("cached_tokens")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream."""
    async for line in response.content:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])
