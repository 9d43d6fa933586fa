"""POST /api/v1/notify: where an Alertmanager sends its messages. Answered with 200 once a message is on the disk.

Who may send: this machine, or whoever has the token; with a token configured nobody without it. No web page can send
from a browser on this machine: the body must be JSON by its type, there must be no Origin, and without a token the
server must be called by its address, since a page could point a name of its own here.

What can be tried again is answered with 503, since an Alertmanager takes all of 4xx for final.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from kvitals.agent.exports.requests import is_local
from kvitals.agent.inbound import has_token
from kvitals.app.errors import UsageError
from kvitals.app.notify.incoming import IncomingError
from kvitals.app.notify.queue import SpoolError
from kvitals.app.notify.service import Notifier

PATH = "/api/v1/notify"
MAX_BODY_BYTES = 1 << 20
BODY_SECONDS = 10.0
PER_SECOND, BURST = 10.0, 100.0
MAX_AT_ONCE = 16
RETRY_SECONDS = "5"


def add_notify(app: web.Application, notifier: Notifier, token_file: Path | None, *, guarded: bool = False) -> None:
    """Take messages in this application while it runs, and tell how they fare. Its set-up raises SpoolError where
    nothing can be kept. guarded: the application itself sees to the names that it is called by."""
    intake = MessageIntake(notifier, token_file, guarded=guarded)

    async def running(_: web.Application) -> AsyncIterator[None]:
        await notifier.open()
        yield
        await notifier.close()

    app.cleanup_ctx.append(running)
    app.router.add_post(PATH, intake.handle)
    app.router.add_get(PATH, intake.status)


async def set_up(runner: web.AppRunner) -> None:
    """Begin. Raises UsageError where alerts that wait can not be kept."""
    try:
        await runner.setup()
    except SpoolError as error:
        await runner.cleanup()
        raise UsageError(f"{error}; name another place with `directory` in [notify]") from error


class MessageIntake:
    """Takes messages one by one, some a second."""

    def __init__(
        self,
        notifier: Notifier,
        token_file: Path | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        guarded: bool = False,
    ) -> None:
        self._notifier = notifier
        self._guarded = guarded
        self._token_file = token_file
        self._clock = clock
        self._left, self._at = BURST, clock()
        self._under_way = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Take a message."""
        if refusal := self._refusal(request):
            return refusal
        self._under_way += 1
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(request)
            if body is None:
                return _answer(413, f"a message may have {MAX_BODY_BYTES} bytes; see max_alerts of webhook_configs")
            await self._notifier.take(body)
        except TimeoutError:
            return _answer(408, f"the message did not arrive within {BODY_SECONDS:.0f} s")
        except IncomingError as error:
            return _answer(400, str(error))
        except SpoolError as error:
            return _answer(503, f"not taken, try again: {error}")
        finally:
            self._under_way -= 1
        return _answer(200, "")

    async def status(self, request: web.Request) -> web.Response:
        """What waits and how the targets fare; for whom may send as well."""
        if not self._may_send(request):
            return self._forbidden()
        try:
            data = await self._notifier.facts()
        except SpoolError as error:
            return _answer(503, str(error))
        return web.Response(
            body=msgspec.json.encode({"status": "success", "data": data}), content_type="application/json"
        )

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self._may_send(request):
            return self._forbidden()
        if request.content_type != "application/json":
            return _answer(415, "send JSON, with Content-Type: application/json")
        if self._under_way >= MAX_AT_ONCE or not self._has_room():
            return _answer(503, f"more than {PER_SECOND:.0f} messages a second: try again")
        return None

    def _may_send(self, request: web.Request) -> bool:
        if "Origin" in request.headers:
            return False
        if self._guarded and request.secure:  # [remote], the door for other machines, has asked already
            return True
        if self._token_file is not None:
            return has_token(request.headers.get("Authorization", ""), self._token_file)
        return is_local(request) and (self._guarded or _is_address(request.host))

    def _forbidden(self) -> web.Response:
        if self._token_file is None:
            why = "messages are taken from this machine, at 127.0.0.1, no browser; or name a token_file in [notify]"
            return _answer(403, why)
        return _answer(401, "send the token that [notify] token_file names: http_config.authorization.credentials_file")

    def _has_room(self) -> bool:
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def _is_address(host: str) -> bool:
    name = re.sub(r":\d*$", "", host).removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _body(request: web.Request) -> bytes | None:
    """The body, or None where it is too large."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        return None
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _answer(status: int, error: str) -> web.Response:
    told = {"status": "error", "error": error} if error else {"status": "success"}
    headers = {"Retry-After": RETRY_SECONDS} if status == 503 else {}
    return web.Response(body=msgspec.json.encode(told), status=status, content_type="application/json", headers=headers)
