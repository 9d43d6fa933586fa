"""The tap before a real engine: what its parts say beside what the client saw.

    python -m tests.lab.tap [--requests 50] [--streams DIR]

Requests go one at a time through `kvitals tap`, which tells an agent that only listens. For each, the client's own
times to the first output and to the end are compared with the part's. --streams writes down what the engine answers,
byte by byte, to requests of each kind; that is where the streams in tests/fixtures/streams come from.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from kvitals.agent.requests.observation import PartsRecord, RequestPart

from .engines import engine
from .ports import HOST, Port
from .product import kvitals_command
from .traffic import percentile

MEDIAN_LIMIT, P95_LIMIT = 0.005, 0.020  # seconds between the client's clock and the part's
PATIENCE_S = 20.0
PROMPT = "The quick brown fox jumps over the lazy dog. " * 12


@dataclass
class Agent:
    """An agent that only takes parts."""

    url: str
    parts: dict[str, RequestPart] = field(default_factory=dict)  # by request id

    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        record = msgspec.msgpack.decode(await request.read(), type=PartsRecord)
        for part in record.parts:
            self.parts[next(i for i in part.ids if i.startswith("request:")).removeprefix("request:")] = part
        self._came.set()
        return web.Response(status=202)

    async def part(self, request_id: str) -> RequestPart:
        async with asyncio.timeout(PATIENCE_S):
            while request_id not in self.parts:
                self._came.clear()
                await self._came.wait()
        return self.parts[request_id]


@contextlib.asynccontextmanager
async def listening_agent() -> AsyncIterator[Agent]:
    port = Port.take()
    agent = Agent(port.url)
    app = web.Application()
    app.router.add_post("/api/v1/parts", agent.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, port.number).start()
    try:
        yield agent
    finally:
        await runner.cleanup()
        port.release()


@contextlib.asynccontextmanager
async def tap(upstream: str, agent: str, *options: str) -> AsyncIterator[str]:
    """`kvitals tap` before an upstream, as a process; its URL."""
    listen, admin = Port.take(), Port.take()
    with tempfile.TemporaryDirectory() as home:
        command = [
            *(*kvitals_command(), "tap", f"--listen={HOST}:{listen.number}", f"--admin={HOST}:{admin.number}"),
            *(f"--upstream={upstream}", f"--agent={agent}", *options),
        ]
        process = await asyncio.create_subprocess_exec(*command, env={"XDG_STATE_HOME": home})
        try:
            await _until_answering(f"{admin.url}/metrics", process)
            yield listen.url
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            listen.release()
            admin.release()


async def _until_answering(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url):
                    return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"the tap ended with {process.returncode}")


@dataclass
class Seen:
    """A request as its client saw it. Seconds; None where it did not come."""

    id: str
    ttft: float | None
    e2e: float
    usage: dict[str, Any]


async def ask(session: aiohttp.ClientSession, url: str, tokens: int) -> Seen:
    """One streamed completion."""
    request_id = uuid.uuid4().hex
    body = {
        **{"model": "tiny", "prompt": f"{request_id} {PROMPT}", "max_tokens": tokens, "min_tokens": tokens},
        **{"ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}},
    }
    ttft, usage = None, {}
    began = time.perf_counter()
    async with session.post(f"{url}/v1/completions", json=body, headers={"X-Request-Id": request_id}) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            event = json.loads(line[6:])
            if ttft is None and any(choice["text"] for choice in event["choices"]):
                ttft = now - began
            usage = event.get("usage") or usage
    return Seen(request_id, ttft, time.perf_counter() - began, usage)


async def agreement(requests: int) -> bool:
    """Print how far the parts are from the client's clock; whether they agree."""
    async with engine() as one, listening_agent() as agent, tap(one.url, agent.url) as url:
        async with aiohttp.ClientSession() as session:
            await ask(session, url, 8)  # what is only slow once
            seen = [await ask(session, url, 24) for _ in range(requests)]
        parts = [await agent.part(one.id) for one in seen]
    pairs = list(zip(seen, parts, strict=True))
    rows = {
        "TTFT": [abs(s.ttft - p.ttft) for s, p in pairs if s.ttft is not None and p.ttft is not None],
        "e2e": [abs(s.e2e - (p.end or 0.0) + (p.start or 0.0)) for s, p in pairs],
    }
    counted = [
        (p.prompt_tokens, p.output_tokens, p.cached_tokens)
        == (
            s.usage["prompt_tokens"],
            s.usage["completion_tokens"],
            (s.usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        )
        for s, p in pairs
    ]
    print(f"{requests} requests one at a time, |client - part|, ms{'':6}n    median       p95       max")
    good = all(counted)
    for name, off in rows.items():
        median, p95 = percentile(off, 0.5) or 0.0, percentile(off, 0.95) or 0.0
        print(f"{name:48}{len(off):6}" + "".join(f"{value * 1e3:10.2f}" for value in (median, p95, max(off))))
        good = good and len(off) == requests and median <= MEDIAN_LIMIT and p95 <= P95_LIMIT
    ttft = percentile([s.ttft for s in seen if s.ttft is not None], 0.5) or 0.0
    print(f"client's median TTFT {ttft * 1e3:.1f} ms; usage equal to the part's in {sum(counted)} of {requests}")
    print("they agree" if good else "THEY DO NOT AGREE")
    return good


GREETING = "Hello there, how are you today? " * 12  # two blocks and more, so that all but the first are cached
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": GREETING}], "max_tokens": 6, "temperature": 0}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat-stream": ("/v1/chat/completions", {**CHAT, **USAGE}),
    "chat-stream-without-usage": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "chat": ("/v1/chat/completions", CHAT),
    "completions-stream": (
        "/v1/completions",
        {"model": "tiny", "prompt": GREETING, "max_tokens": 6, "temperature": 0, **USAGE},
    ),
    "responses-stream": (
        "/v1/responses",
        {"model": "tiny", "input": GREETING, "max_output_tokens": 16, "temperature": 0, "stream": True},
    ),
    "messages-stream": ("/v1/messages", {**CHAT, "stream": True}),
    "unknown-model": ("/v1/chat/completions", {**CHAT, "model": "none"}),
}


async def streams(folder: Path) -> None:
    """Write down the engine's answers to requests of each kind."""
    async with engine() as one, aiohttp.ClientSession() as session:
        for name, (path, body) in KINDS.items():
            async with session.post(f"{one.url}{path}", json=body) as response:
                said = await response.read()
            write_down(folder / f"vllm-0.32-{name}.txt", said)
            print(f"{name}: {response.status} {response.content_type}, {len(said)} bytes")


def write_down(file: Path, said: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--streams", type=Path, metavar="DIR")
    args = parser.parse_args()
    if args.streams:
        asyncio.run(streams(args.streams))
        return 0
    return 0 if asyncio.run(agreement(args.requests)) else 1


if __name__ == "__main__":
    sys.exit(main())
