"""Streamable HTTP on this machine, behind the guard, the Host check and the cross-site check of the agent's API.

There are no sessions and no streams: each POST to /mcp gets one JSON answer, so that nothing of a client stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from aiohttp import web
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.exports.browsers import refuse_cross_site
from kvitals.agent.exports.host_names import Handler, check_caller
from kvitals.agent.inbound import has_token
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.request_body import BodyError, read_body
from kvitals.app.errors import UsageError

PATH = "/mcp"
SHUTDOWN_SECONDS = 1.0
"""For answers that are under way; then as long again until their connections are closed."""
_NO_TOKEN = "Send the token of --token-file: Authorization: Bearer ...\n"  # noqa: S105 (a sentence)


@contextlib.asynccontextmanager
async def serve_http(
    server: Server[Any], address: tuple[str, int], hosts: Collection[str], token_file: Path | None
) -> AsyncIterator[None]:
    """Serve until the context ends. hosts: names beside localhost. token_file: what callers must send, None: nothing.
    Raises UsageError where it cannot listen."""
    host, port = address
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
    app = web.Application(middlewares=[check_caller(hosts, None), refuse_cross_site, _check_token(token_file)])
    app.router.add_post(PATH, _Bridge(manager).answer)
    async with manager.run():
        runner = GuardedRunner(app, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            try:
                await GuardedSite(runner, LISTENERS["mcp"], host, port).start()
            except OSError as error:
                raise UsageError(
                    f"cannot listen on {host}:{port} ({error.strerror}); choose another --listen"
                ) from error
            yield
        finally:
            await runner.cleanup()


def _check_token(token_file: Path | None) -> Any:
    """The middleware that refuses callers without the token."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token_file is not None and not has_token(request.headers.get("Authorization", ""), token_file):
            raise web.HTTPUnauthorized(text=_NO_TOKEN, headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return check


class _Bridge:
    """Hands a whole request to the SDK's ASGI application and its whole answer back."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager

    async def answer(self, request: web.Request) -> web.Response:
        row = LISTENERS["mcp"]
        try:
            body = await read_body(request, row.max_body, row.body)
        except BodyError as error:
            return web.Response(status=error.status, text=f"{error}\n")
        events = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return events.pop() if events else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        await self._manager.handle_request(_scope(request), receive, send)
        return _response(sent)


def _scope(request: web.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path.encode(),
        "query_string": request.query_string.encode(),
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "client": None,
        "server": None,
    }


def _response(sent: list[dict[str, Any]]) -> web.Response:
    start = next(message for message in sent if message["type"] == "http.response.start")
    body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    response = web.Response(status=start["status"], body=body)
    for name, value in start.get("headers", ()):
        if name.lower() != b"content-length":
            response.headers[name.decode("latin-1")] = value.decode("latin-1")
    return response
