"""Handing notices on: each target has a task of its own, so that one that is away holds up none of the others."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

import aiohttp
import structlog

from kvitals.app.escaping import plain
from kvitals.app.notify.notice import Notice
from kvitals.app.notify.notice_requests import JsonPost, digest, request
from kvitals.app.notify.queue import NoticeDelivery, Spool, SpoolError
from kvitals.config import NotifyTarget, SlackTarget
from kvitals.series.ascii_numbers import is_digits
from kvitals.series.files import read_certificates
from kvitals.series.secret_file import SecretError

TIMEOUT_SECONDS = 10.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 300.0
TARGET_RETRY_SECONDS = 30.0
"""A target that takes nothing is tried as rarely as this, however many notices wait for it."""
MOST_ASKED_SECONDS = 3600.0
"""A target may ask for a longer pause, up to this."""
LOOK_SECONDS = 30.0
MOST_SINGLE, MOST_IN_DIGEST = 10, 500
"""Notices that wait for a chat: more become one message, which a person can read."""
MAX_ANSWER_BYTES = 16 * 1024

_HOPELESS = (400, 405, 406, 410, 411, 413, 414, 415, 422)
"""Trying again would change nothing. A refused secret may be replaced, and what is missing may come."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a target said. status 0: nothing came."""

    status: int
    said: str = ""
    wait: float = 0.0  # seconds that it asks us to stay away

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300

    @property
    def hopeless(self) -> bool:
        return 300 <= self.status < 400 or self.status in _HOPELESS


class Sender:
    """Sends what is due to one target, from `run` until it is cancelled."""

    def __init__(
        self,
        name: str,
        target: NotifyTarget,
        spool: Spool,
        thread: Executor,
        give_up: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """thread: the one that the spool belongs to. give_up: seconds after which a notice is a dead letter."""
        self.counts: Counter[str] = Counter()  # sent, retried, dead
        self.ok: bool | None = None  # whether the last notice was taken; None before the first
        self.last_error = ""
        self.last_sent: float | None = None
        self._name = name
        self._target = target
        self._spool = spool
        self._thread = thread
        self._give_up = give_up
        self._clock = clock
        self._some = asyncio.Event()
        self._stopping = False
        self._failures = 0  # notices in a row that the target did not take
        self._away_until = 0.0
        self._digests = True

    def stop(self) -> None:
        """End after what is being sent, so that it is not sent again by the next run."""
        self._stopping = True
        self._some.set()

    def look(self) -> None:
        """There may be something new."""
        self._some.set()

    async def run(self) -> None:
        """Until it is stopped; what nobody expected is said and begun anew."""
        while not self._stopping:
            try:
                await self._run()
            except OSError as error:
                self.last_error = f"{self._target.ca_file} cannot be used: {error}"
                _log.error("kvitals cannot send anything to a target", target=self._name, why=self.last_error)
                await asyncio.sleep(LOOK_SECONDS)
            except Exception:
                _log.error("sending to a target failed", target=self._name, trace=traceback.format_exc(limit=-5))
                await asyncio.sleep(LOOK_SECONDS)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, connector=self._connector()) as session:
            while not self._stopping:
                self._some.clear()
                try:
                    if not await self._one(session):
                        await self._pause()
                except SpoolError as error:
                    _log.warning("the queue of messages cannot be read or written; retrying", why=str(error))
                    await asyncio.sleep(LOOK_SECONDS)

    async def _one(self, session: aiohttp.ClientSession) -> bool:
        """Send the next, where one is due."""
        if self._clock() < self._away_until:
            return False
        several = await self._in_thread(self._due)
        if not several:
            return False
        answer = await self._send(session, several)
        now = self._clock()
        self.ok = answer.taken
        if answer.taken:
            self._failures = 0
            self.last_sent, self.last_error = now, ""
            self.counts["sent"] += len(several)
            await self._in_thread(lambda: self._spool.sent(*several))
            return True
        self.last_error = answer.said
        if answer.hopeless and len(several) > 1:
            self._digests = False  # one by one, so that only what cannot be sent is given up
            return True
        due = now + pause(max(one.attempts for one in several), answer.wait)
        for delivery in several:
            await self._not_taken(delivery, answer, now, due)
        self._away_until = now + max(min(pause(self._failures, 0.0), TARGET_RETRY_SECONDS), answer.wait)
        self._failures += 1
        return True

    def _due(self) -> list[NoticeDelivery]:
        """What is sent next, in one message: to a chat many notices together."""
        now = self._clock()
        if self._digests and isinstance(self._target, SlackTarget):
            several = self._spool.all_due(self._name, now, MOST_IN_DIGEST)
            if len(several) > MOST_SINGLE:
                return several
        delivery = self._spool.due(self._name, now)
        return [] if delivery is None else [delivery]

    async def _not_taken(self, delivery: NoticeDelivery, answer: Answer, now: float, due: float) -> None:
        """Try it again later, or give it up."""
        if answer.hopeless or now - delivery.created >= self._give_up:
            await self._in_thread(lambda: self._spool.bury(delivery, answer.said, now))
            self.counts["dead"] += 1
            _log.error("a message was not delivered: see the dead-letter file", target=self._name, why=answer.said)
            return
        if delivery.attempts == 0:
            _log.warning("the target did not accept a message; kvitals tries again", target=self._name, why=answer.said)
        await self._in_thread(lambda: self._spool.later(delivery, due, answer.said))
        self.counts["retried"] += 1

    async def _send(self, session: aiohttp.ClientSession, several: Sequence[NoticeDelivery]) -> Answer:
        try:
            wanted = self._request([one.notice for one in several])
        except SecretError as error:
            return Answer(0, str(error))
        try:
            return await post(session, wanted)
        except TimeoutError:
            return Answer(0, f"no answer within {TIMEOUT_SECONDS:.0f} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(0, type(error).__name__)  # its text may hold the URL, which may be a secret

    def _request(self, notices: Sequence[Notice]) -> JsonPost:
        """Raises SecretError."""
        if len(notices) > 1:
            assert isinstance(self._target, SlackTarget)
            return digest(self._target, notices)
        return request(self._target, notices[0])

    async def _pause(self) -> None:
        """Until something is due, or something new came."""
        if self._stopping:
            return
        soonest = await self._in_thread(lambda: self._spool.soonest(self._name))
        due = None if soonest is None else max(soonest, self._away_until)
        wait = LOOK_SECONDS if due is None else min(max(due - self._clock(), 0.05), LOOK_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):  # `wait_for` may lose a cancellation (Python 3.11)
                await self._some.wait()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _connector(self) -> aiohttp.TCPConnector:
        if self._target.ca_file is None:
            return aiohttp.TCPConnector(limit=1)
        trusted = read_certificates(self._target.ca_file)
        return aiohttp.TCPConnector(limit=1, ssl=ssl.create_default_context(cadata=trusted))


async def post(session: aiohttp.ClientSession, wanted: JsonPost) -> Answer:
    """Send, and read what matters of the answer. A redirect is not followed: a secret is for its address."""
    headers = {"Content-Type": "application/json", "User-Agent": "kvitals", **wanted.headers}
    async with session.post(wanted.url, data=wanted.body, headers=headers, allow_redirects=False) as response:
        body = await response.content.read(MAX_ANSWER_BYTES)
        if 300 <= response.status < 400:
            return Answer(response.status, f"the target redirects ({response.status}); configure the final address")
        said = plain.line(body.decode("utf-8", "replace"))[:200]  # logged, and shown as the target's last error
        wait = asked_pause(response.headers, time.time())
        return Answer(response.status, f"HTTP {response.status}: {said}".rstrip(": "), wait)


def pause(attempts: int, asked: float) -> float:
    """Seconds until the next attempt: doubled each time, a little at random, and no less than was asked for."""
    usual = min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts, 20), LAST_RETRY_SECONDS)
    return max(usual * random.uniform(0.75, 1.25), asked)  # noqa: S311 (so that many do not come at once)


def asked_pause(headers: Mapping[str, str], now: float) -> float:
    """Retry-After in seconds, as a number or a date; 0 where there is none that can be read."""
    text = headers.get("Retry-After", "")
    try:
        seconds = float(text) if is_digits(text.replace(".", "", 1)) else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MOST_ASKED_SECONDS)
