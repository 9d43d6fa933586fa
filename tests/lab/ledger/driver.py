"""Sends requests whose every token is known, from tenants in sessions, and writes down what became of them.

driver = Driver([url], tell=Tell())
await driver.drive([Tenant("acme", clients=3, turns=4, prefix=320)], seconds=20)
driver.calls                             # one row a request
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import aiohttp

from ..requests.clients import TENANT_HEADER, TIMEOUT_S
from ..traffic import Ask, Prompts, Tenant

SESSION_HEADER = "X-Session-ID"


@dataclass(frozen=True)
class Tell:
    """What requests say of who sent them."""

    tenant: bool = True  # in the header that the tap reads
    session: bool = True  # in X-Session-ID
    salt: bool = False  # the tenant is a cache salt, which keeps its blocks apart


@dataclass
class Call:
    """One request as it was sent and answered. Times are seconds since the epoch; None was not told."""

    id: str
    tenant: str
    session: str
    prompt: list[int]
    salt: str = ""
    url: str = ""
    sent: float = 0.0
    first: float | None = None  # token
    ended: float = 0.0
    ok: bool = False
    prompt_tokens: int | None = None  # by the answer's usage, as what follows
    cached_tokens: int | None = None
    created_tokens: int | None = None
    output_tokens: int | None = None
    answer: list[int] = field(default_factory=list)


@dataclass
class _Doors:
    open: bool = True


class Driver:
    """Sends to one URL, or to several in turn."""

    def __init__(self, urls: Sequence[str], tell: Tell, seed: str = "ledger") -> None:
        self.calls: list[Call] = []
        self.extras = True
        """Whether the answer's tokens are asked for, which only vLLM knows. Without them a session has no answers."""
        self.sticky = False
        """Whether all of a session goes to one URL, and not each request to the next one."""
        self._urls = tuple(urls)
        self._tell = tell
        self._seed = seed
        self._sessions = 0

    async def drive(self, tenants: Sequence[Tenant], seconds: float) -> None:
        """Every tenant's clients, each one after another, for so long; what is under way then ends first."""
        doors = _Doors()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            clients = [
                asyncio.create_task(self._client(session, tenant, number, doors))
                for tenant in tenants
                for number in range(tenant.clients)
            ]
            await asyncio.wait(clients, timeout=seconds)
            doors.open = False
            await asyncio.gather(*clients)

    async def _client(self, session: aiohttp.ClientSession, tenant: Tenant, number: int, doors: _Doors) -> None:
        phase = len(self.calls)
        prompts = Prompts(tenant, f"{self._seed}/{number}/{phase}")
        pause = random.Random(f"{self._seed}/{tenant.name}/{number}/{phase}")
        conversation = prompts.session()
        name = self._name(tenant)
        await asyncio.sleep(pause.uniform(0, tenant.think_s or 0.1))
        while doors.open:
            going_on = prompts.next_session(conversation)
            if going_on is not conversation:
                conversation, name = going_on, self._name(tenant)
            ask = prompts.ask(conversation)
            call = await self._call(session, ask, name)
            if tenant.turns > 1:
                conversation.remember(ask.prompt[-tenant.question :], call.answer)
            if tenant.think_s:
                await asyncio.sleep(pause.expovariate(1 / tenant.think_s))

    def _name(self, tenant: Tenant) -> str:
        self._sessions += 1
        return f"{tenant.name}-{self._sessions}"

    async def _call(self, session: aiohttp.ClientSession, ask: Ask, name: str) -> Call:
        tenant = ask.tenant.name
        call = Call(uuid.uuid4().hex, tenant, name, list(ask.prompt), tenant if self._tell.salt else "")
        headers = {"X-Request-Id": call.id}
        if self._tell.tenant:
            headers[TENANT_HEADER] = tenant
        if self._tell.session:
            headers[SESSION_HEADER] = name
        url = self._urls[(crc32(name.encode()) if self.sticky else len(self.calls)) % len(self._urls)]
        call.url = url
        self.calls.append(call)
        call.sent = time.time()
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                session.post(
                    f"{url}/v1/completions", json=_body(ask, call.salt, self.extras), headers=headers
                ) as response,
            ):
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        _note(call, json.loads(line[6:]))
                call.ok = response.status == 200
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            call.ok = False
        call.ended = time.time()
        return call


def _note(call: Call, event: dict[str, Any]) -> None:
    if usage := event.get("usage"):
        details = usage.get("prompt_tokens_details") or {}
        call.prompt_tokens, call.output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        call.cached_tokens, call.created_tokens = details.get("cached_tokens"), details.get("created_cache_tokens")
    for choice in event.get("choices") or ():
        call.first = call.first or time.time()
        call.answer += choice.get("token_ids") or []


def _body(ask: Ask, salt: str, extras: bool) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "prompt": ask.prompt,
        "max_tokens": ask.tenant.answer,
        "min_tokens": ask.tenant.answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if extras:
        body["return_token_ids"] = True
    return body | ({"cache_salt": salt} if salt else {})
