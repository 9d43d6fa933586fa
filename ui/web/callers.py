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
        problem = _problem(scope, hosts) if scope["type"] in ("http", "websocket") else ""
        if not problem:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(problem, status_code=403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403

    return guarded


def _problem(scope: Any, hosts: Collection[str] | None) -> str:
    headers = Headers(scope=scope)
    host = headers.get("host")
    if not is_allowed_host(host, hosts):
        return OTHER_HOST
    sites, senders = headers.getlist("sec-fetch-site"), headers.getlist("origin")
    # A proxy in front may add TLS, so that the page's own origin has either scheme.
    own = (f"{scheme}://{host or ''}" for scheme in ("http", "https"))
    if all(is_cross_site(sites, senders, origin) for origin in own) and not _is_followed_link(scope, headers):
        return CROSS_SITE
    return ""


def _is_followed_link(scope: Any, headers: Headers) -> bool:
    """Whether a person opens the page by a link elsewhere. That site can neither read the answer nor frame it."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and not headers.getlist("origin")
        and headers.getlist("sec-fetch-mode") == ["navigate"]
        and headers.getlist("sec-fetch-dest") == ["document"]
    )
