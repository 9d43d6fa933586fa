"""Who may call the web page's server: the rules of the API, for an ASGI application."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from kvitals.agent.exports.browsers import CROSS_SITE, is_cross_site
from kvitals.agent.exports.host_names import OTHER_HOST, is_allowed_host


def refuse_strangers(app: Any, hosts: Collection[str] | None) -> Any:
    """The application for requests and WebSockets under an allowed host name that no other site's page sends.

    The others get 403. hosts: as `PageSettings.hosts`.
    """

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        problem = _problem(Headers(scope=scope), hosts) if scope["type"] in ("http", "websocket") else ""
        if not problem:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(problem, status_code=403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403

    return guarded


def _problem(headers: Headers, hosts: Collection[str] | None) -> str:
    host = headers.get("host")
    if not is_allowed_host(host, hosts):
        return OTHER_HOST
    # A proxy in front may add TLS, so that the page's own origin has either scheme.
    if all(is_cross_site(headers, f"{scheme}://{host or ''}") for scheme in ("http", "https")):
        return CROSS_SITE
    return ""
