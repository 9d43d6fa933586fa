"""Plays a load against an engine with an OpenAI API: arrivals as recorded, synthetic token ids."""

from __future__ import annotations

import asyncio
import hashlib
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

import aiohttp
import msgspec

from kvitals.agent.bounded_client import BoundedConnector
from kvitals.app.errors import NoEngineError
from kvitals.app.load.extracted_load import ExtractedLoad, LoadRequest
from kvitals.series.undecodable import UNDECODABLE

MAX_PLAY_SECONDS = 3600.0
MAX_CONCURRENCY = 1024
DRAIN_SECONDS = 30.0
"""How long requests may go on after the last arrival; then their connections are closed."""
REQUEST_SECONDS = 600.0
TAIL_BYTES = 16 << 10
"""Of an answer: its end is looked for there."""
_END = re.compile(rb'data: ?\[DONE\]|"finish_reason": ?"')
MAX_ANSWER_BYTES = 32 << 20
FIRST_ID, IDS = 256, 700
"""Prompts use the token ids from FIRST_ID on: every vocabulary has these, and special tokens are below or far above."""


@dataclass(frozen=True)
class PlayLimits:
    """Bounds of one play. seconds: of arrivals. concurrency: requests at the same time."""

    seconds: float = 600.0
    concurrency: int = 256


@dataclass(frozen=True)
class EngineAddress:
    """Where a load is played. model: as the engine serves it."""

    url: str
    model: str


@dataclass
class PlayedLoad:
    """How the requests of a load ended. refused: HTTP status -> requests. failed: requests whose connection failed or
    that the engine ended with a 5xx status. unfinished: still running `DRAIN_SECONDS` after the last arrival. late:
    seconds between the recorded and the real arrival, for each request. ttft: seconds to the first token."""

    sent: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    unfinished: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    late: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)

    @property
    def late_p90(self) -> float:
        """Seconds by which nine of ten requests were late at most."""
        return statistics.quantiles(self.late, n=10)[-1] if len(self.late) > 1 else 0.0


def last_part(load: ExtractedLoad, limits: PlayLimits) -> ExtractedLoad:
    """The last part of a load that is within the limit of time: an incident is at the end of its recording."""
    if load.seconds <= limits.seconds:
        return load
    start = load.seconds - limits.seconds
    kept = [replace(request, at=round(request.at - start, 3)) for request in load.requests if request.at >= start]
    return replace(load, requests=kept, truncated=True)


def token_ids(load: ExtractedLoad, request: LoadRequest, salt: int) -> list[int]:
    """The prompt of a request. Equal blocks have equal ids within a play, and another salt makes other ids, so that an
    engine's cache has nothing of an earlier play."""
    ids: list[int] = []
    for block in request.blocks:
        count = min(load.block_tokens, request.prompt_tokens - len(ids))
        digest = hashlib.shake_128(b"%d:%d" % (salt, block)).digest(2 * count)
        ids += [FIRST_ID + int.from_bytes(digest[at : at + 2], "little") % IDS for at in range(0, 2 * count, 2)]
    return ids


def header_value(name: str) -> str:
    """A tenant's name as a header can have it: percent-encoded where it has line ends, other than ASCII characters or
    white space around it."""
    return name if name.isascii() and name.isprintable() and name == name.strip() else quote(name)


async def served_model(url: str) -> str:
    """The first model that an engine lists. Raises NoEngineError."""
    async with _session(1, 30.0) as session:
        try:
            async with session.get(f"{url}/v1/models", allow_redirects=False) as response:
                body = await response.content.read(1 << 20)
            listed = msgspec.json.decode(body, type=_Models)
        except (aiohttp.ClientError, TimeoutError, OSError, *UNDECODABLE) as error:
            raise NoEngineError(
                f"{url}/v1/models has no list of models ({error or type(error).__name__}); a load needs an engine with"
                " the OpenAI API. If the engine has no list, name its model with --model"
            ) from error
    if not listed.data:
        raise NoEngineError(f"{url}/v1/models lists no model; name it with --model")
    return listed.data[0].id


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class LoadPlayer:
    """Plays one load once.

    player = LoadPlayer(load, EngineAddress(url, model), limits)
    await player.send()    # until the last arrival
    await player.drain()
    player.played
    """

    def __init__(self, load: ExtractedLoad, engine: EngineAddress, limits: PlayLimits) -> None:
        self._load = load
        self._engine = engine
        self._limits = limits
        self._salt = time.time_ns()
        self._running: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(limits.concurrency)
        self._http = _session(limits.concurrency, REQUEST_SECONDS)
        self.played = PlayedLoad()

    async def send(self) -> None:
        """Send every request at its time; returns after the last arrival."""
        begun = time.monotonic()
        for request in self._load.requests:
            prompt = token_ids(self._load, request, self._salt)
            await asyncio.sleep(max(0.0, begun + request.at - time.monotonic()))
            await self._free.acquire()
            self.played.late.append(max(0.0, time.monotonic() - begun - request.at))
            self.played.sent += 1
            task = asyncio.create_task(self._ask(request, prompt))
            self._running.add(task)
            task.add_done_callback(self._ended)

    async def drain(self) -> None:
        """Wait `DRAIN_SECONDS` for the running requests, and close the connections of those that are left."""
        if self._running:
            await asyncio.wait(self._running, timeout=DRAIN_SECONDS)
        self.played.unfinished = len(self._running)
        await self.close()

    async def close(self) -> None:
        """End what still runs."""
        left = list(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._http.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._free.release()

    async def _ask(self, request: LoadRequest, prompt: Sequence[int]) -> None:
        try:
            async with asyncio.timeout(request.abort_after):
                await self._answer(request, prompt)
        except TimeoutError:
            if request.abort_after is not None:
                self.played.aborted += 1
            else:
                self.played.failed += 1
        except (aiohttp.ClientError, OSError):
            self.played.failed += 1

    async def _answer(self, request: LoadRequest, prompt: Sequence[int]) -> None:
        body = {
            "model": self._engine.model,
            "prompt": prompt,
            "max_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        headers = {"x-tenant-id": header_value(request.tenant)} if request.tenant else {}
        begun, first = time.monotonic(), True
        url = f"{self._engine.url}/v1/completions"
        async with self._http.post(url, json=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                self._refused(response.status)
                return
            tail = b""
            async for piece in response.content.iter_any():
                if first:
                    self.played.ttft.append(time.monotonic() - begun)
                    first = False
                tail = (tail + piece)[-TAIL_BYTES:]
        if _END.search(tail):
            self.played.finished += 1
        else:  # a proxy or an engine that went away can end a stream without an error
            self.played.failed += 1

    def _refused(self, status: int) -> None:
        if status >= 500 and status != 503:
            self.played.failed += 1
        else:
            self.played.refused[status] += 1


def _session(connections: int, seconds: float) -> aiohttp.ClientSession:
    """A client that trusts no environment and bounds each answer. `seconds`: of one request."""
    connector = BoundedConnector(MAX_ANSWER_BYTES, limit=connections)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds))
