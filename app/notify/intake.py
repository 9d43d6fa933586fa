"""POST /api/v1/notify: where an Alertmanager sends its messages. Answered with 200 once a message is on the disk.

Who may send: this machine, or whoever has the token; with a token configured nobody without it. No web page can send
from a browser on this machine: the body must be JSON by its type, there must be no Origin, and without a token the
server must be called by its address, since a page could point a name of its own here.

What can be tried again is answered with 503, since an Alertmanager takes all of 4xx for final.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from kvitals.agent.connection_table import share_of
from kvitals.agent.connections import GuardedRunner
from kvitals.agent.exports.requests_api import is_local
from kvitals.agent.inbound import has_token
from kvitals.agent.request_body import BodyError, read_body
from kvitals.app.errors import UsageError
from kvitals.app.notify.incoming import IncomingError
from kvitals.app.notify.queue import SpoolError
from kvitals.app.notify.service import Notifier
from kvitals.app.notify.shares import SenderShares

PATH = "/api/v1/notify"
MAX_BODY_BYTES = 1 << 20
BODY_SECONDS = 10.0
MAX_AT_ONCE = 16
MAX_AT_ONCE_OF_SENDER = 8
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


async def set_up(runner: GuardedRunner) -> None:
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
        self._shares = SenderShares(clock)
        self._under_way: Counter[str] = Counter()  # messages by sender

    async def handle(self, request: web.Request) -> web.Response:
        """Take a message."""
        if refusal := self._refusal(request):
            return refusal
        sender = share_of(request.remote or "")
        self._under_way[sender] += 1
        try:
            body = await read_body(request, MAX_BODY_BYTES, BODY_SECONDS)
            await self._notifier.take(body)
        except BodyError as error:
            advice = "; lower max_alerts in webhook_configs" if error.status == 413 else ""
            return _answer(error.status, f"{error}{advice}")
        except IncomingError as error:
            return _answer(400, str(error))
        except SpoolError as error:
            return _answer(503, f"not accepted, try again: {error}")
        finally:
            self._under_way -= Counter({sender: 1})  # none left is no entry
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
        sender = share_of(request.remote or "")
        if self._under_way.total() >= MAX_AT_ONCE or self._under_way[sender] >= MAX_AT_ONCE_OF_SENDER:
            return _answer(503, f"{self._under_way.total()} messages are arriving: try again")
        if not self._shares.take(sender):
            return _answer(503, "this sender exceeds its share of messages per second: try again")
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
            why = (
                "messages are accepted only from this machine, at 127.0.0.1, and not from a browser;"
                " for others name a token_file in [notify]"
            )
            return _answer(403, why)
        return _answer(401, "send the token from [notify] token_file: http_config.authorization.credentials_file")


def _is_address(host: str) -> bool:
    name = re.sub(r":[0-9]*$", "", host).removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _answer(status: int, error: str) -> web.Response:
    told = {"status": "error", "error": error} if error else {"status": "success"}
    headers = {"Retry-After": RETRY_SECONDS} if status == 503 else {}
    return web.Response(body=msgspec.json.encode(told), status=status, content_type="application/json", headers=headers)
