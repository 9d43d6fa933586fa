"""Parts on their way to the agent: gathered, sent in batches, kept for a while where it is away."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from pathlib import Path

import aiohttp
import msgspec

from kvitals.agent.logger import Logger
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.series.secret_file import SecretError, secret

MAX_WAITING = 10_000
"""Parts that wait for the agent; the oldest give way."""
MAX_BATCH = 500
GATHER_SECONDS = 0.5
TIMEOUT_SECONDS = 5.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0

PATH = "/api/v1/parts"
CONTENT_TYPE = "application/x-msgpack"

_TAKEN = (200, 202, 204)
_HOPELESS = (400, 413, 422)  # trying again would change nothing

_log = Logger()
_encoder = msgspec.msgpack.Encoder()


class PartDelivery:
    """Sends parts to an agent in the background, from `open` to `close`."""

    def __init__(self, agent: str, token_file: Path | None = None) -> None:
        """`agent` is its URL, empty for none: then nothing is kept. The token is read anew for each batch."""
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()  # of those dropped, what the agent was not told yet
        self._url = agent.rstrip("/") + PATH if agent else ""
        self._token_file = token_file
        self._waiting: deque[RequestPart] = deque()
        self._in_hand = 0  # parts of the batch that is being sent
        self._sending = asyncio.Lock()
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._away = ""  # why the agent does not take parts; empty where it does

    @property
    def waiting(self) -> int:
        """Parts that the tap has not sent to the agent yet."""
        return len(self._waiting) + self._in_hand

    @property
    def reaches_agent(self) -> bool:
        """Whether the last batch was taken."""
        return not self._away

    def add(self, part: RequestPart) -> None:
        """A part for the agent."""
        if not self._url:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._drop("full", 1)
        self._waiting.append(part)
        self._some.set()

    async def open(self) -> None:
        """Begin to send."""
        if self._url:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
            self._task = asyncio.create_task(self._send_all())

    async def close(self) -> None:
        """Try once more to send what waits, then end."""
        if self._task is not None:
            async with self._sending:  # a batch that may have arrived is not sent twice
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._waiting and await self._send():
            pass
        if self._session is not None:
            await self._session.close()

    async def _send_all(self) -> None:
        pause = FIRST_RETRY_SECONDS
        while True:
            await self._some.wait()
            if len(self._waiting) < MAX_BATCH:
                await asyncio.sleep(GATHER_SECONDS)
            if await self._send():
                pause = FIRST_RETRY_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_RETRY_SECONDS)
            if not self._waiting:
                self._some.clear()

    async def _send(self) -> bool:
        """Send one batch. Whether it is off our hands."""
        async with self._sending:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            untold, self._untold = self._untold, Counter()
            self._in_hand = len(batch)
            record = PartsRecord(t=time.time(), source="tap", parts=tuple(batch), dropped=dict(untold))
            try:
                status = await self._post(_encoder.encode(record))
                why = "" if status in _TAKEN else f"it answers {status}"
            except SecretError as error:
                status, why = 0, str(error)
            except (aiohttp.ClientError, OSError, ValueError) as error:  # OSError: TimeoutError too
                status, why = 0, type(error).__name__
            except Exception as error:  # of whatever kind: nothing may end the sending for good
                _log.exception("parts were not sent")
                status, why = 0, type(error).__name__
            self._in_hand = 0
        self._say(why)
        if status in _TAKEN:
            self.delivered += len(batch)
            return True
        self._untold += untold
        if status in _HOPELESS:
            self._drop("refused", len(batch))
            return True
        self._take_back(batch)
        return False

    async def _post(self, body: bytes) -> int:
        assert self._session is not None
        headers = {"Content-Type": CONTENT_TYPE}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {secret(self._token_file)}"
        async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
            return response.status

    def _take_back(self, batch: list[RequestPart]) -> None:
        room = max(MAX_WAITING - len(self._waiting), 0)
        kept = batch[len(batch) - room :] if room < len(batch) else batch
        self._drop("full", len(batch) - len(kept))
        self._waiting.extendleft(reversed(kept))
        self._some.set()

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] += count
            self._untold[reason] += count

    def _say(self, why: str) -> None:
        if why and not self._away:
            _log.warning("the agent does not accept parts; they wait", why=why, url=self._url, keeps=MAX_WAITING)
        elif not why and self._away:
            _log.info("the agent accepts parts again")
        self._away = why
