"""Clients that stream, keep the time by their own clock, hang up where they are told to, and write it all down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

TENANT_HEADER = "x-tenant-id"
TIMEOUT_S = 90.0
FINISHED, LEFT, FAILED = "finished", "left", "failed"


@dataclass(frozen=True)
class Order:
    """One request as it is to be sent."""

    prompt: Sequence[int]  # token ids
    answer: int  # tokens that the engine is made to generate
    tenant: str = ""
    leave_after: int | None = None  # the client hangs up behind so many pieces of output
    leave_within: float | None = None  # or after so many seconds, whatever came


@dataclass
class Seen:
    """One request as its client saw it. Durations are seconds, `sent` and `ended` wall-clock times."""

    id: str
    tenant: str
    via: str  # tap, or the name of what it was sent to straight
    prompt: int  # tokens that were sent
    sent: float = 0.0
    ended: float = 0.0
    ttft: float | None = None  # to the first text
    first: float | None = None  # to the first token, which may be a part of a letter and have no text yet
    e2e: float | None = None  # None for a client that left
    pieces: int = 0  # of output
    longest_gap: float = 0.0  # between two pieces of output
    status: str = FAILED
    http: int | None = None
    prompt_tokens: int | None = None  # by the response's usage, as all that follow
    cached_tokens: int | None = None
    output_tokens: int | None = None
    no_core: float | None = None  # of the time to the first token, how long this program was ready and had no core


def without_core() -> float:
    """Seconds that this program's main thread was ready to run so far and had no core. What a client's clock says is
    longer by as much, and no observer can know it."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


async def ask(session: aiohttp.ClientSession, url: str, order: Order, via: str) -> Seen:
    """Send one streamed completion. However it ends, its row of the ledger comes back."""
    seen = Seen(uuid.uuid4().hex, order.tenant, via, len(order.prompt))
    headers = {"X-Request-Id": seen.id} | ({TENANT_HEADER: order.tenant} if order.tenant else {})
    before = without_core()
    seen.sent = time.time()
    began = time.perf_counter()
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        try:
            async with (
                asyncio.timeout(order.leave_within or TIMEOUT_S),
                session.post(f"{url}/v1/completions", json=_body(order), headers=headers) as response,
            ):
                seen.http = response.status
                seen.status = await _read(response, order, seen, began, before)
                if seen.status == LEFT:
                    response.close()
        except TimeoutError:
            seen.status = LEFT if order.leave_within else FAILED
    if seen.status == LEFT:
        await asyncio.sleep(0)  # closing is the loop's next task: only then has the client gone
    took = time.perf_counter() - began
    seen.ended = seen.sent + took
    if seen.status == FINISHED:
        seen.e2e = took
    return seen


async def one_at_a_time(session: aiohttp.ClientSession, url: str, orders: Sequence[Order], via: str) -> list[Seen]:
    """Send them one after another."""
    return [await ask(session, url, order, via) for order in orders]


async def _read(response: aiohttp.ClientResponse, order: Order, seen: Seen, began: float, before: float) -> str:
    last: float | None = None
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        event = json.loads(line[6:])
        if event.get("usage"):
            _note(seen, event["usage"])
        if not event.get("choices"):
            continue
        seen.pieces += 1
        if last is not None:
            seen.longest_gap = max(seen.longest_gap, now - last)
        last = now
        if seen.first is None:
            seen.first = now - began
            seen.no_core = without_core() - before
        if seen.ttft is None and any(choice["text"] for choice in event["choices"]):
            seen.ttft = now - began
        if order.leave_after is not None and seen.pieces >= order.leave_after:
            return LEFT
    return FINISHED if response.status == 200 else FAILED


def _note(seen: Seen, usage: dict[str, Any]) -> None:
    seen.prompt_tokens = usage.get("prompt_tokens")
    seen.output_tokens = usage.get("completion_tokens")
    seen.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _body(order: Order) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": list(order.prompt),
        "max_tokens": order.answer,
        "min_tokens": order.answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
