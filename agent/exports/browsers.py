"""Requests that a web page of another site makes a browser send.

A listener on loopback is reachable from every page that an operator opens. Browsers name the page's site in two headers
that a page cannot change, so a listener refuses such requests before it does any work. What is no browser (Prometheus,
Grafana's server, curl) sends neither header.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CROSS_SITE = (
    "Request refused: it comes from a web page of another site (Origin or Sec-Fetch-Site). "
    "Open the address itself, or use a client other than a browser.\n"
)


def is_cross_site(sites: Iterable[str], senders: Iterable[str], origin: str) -> bool:
    """Whether a browser sends the request for a page of another origin.

    sites, senders: the values of all Sec-Fetch-Site and of all Origin headers; each must pass. origin: the listener's
    own, scheme://host[:port], where the host is that of the request's Host header; a caller checks by itself which
    hosts it serves.
    """
    own = _normal(origin)
    return any(site.strip().lower() not in ("same-origin", "none") for site in sites) or any(
        _normal(sender) != own for sender in senders
    )


def _normal(origin: str) -> str:
    """An origin without the port that its scheme implies."""
    text = origin.strip().lower()
    scheme, _, _ = text.partition("://")
    return text.removesuffix({"http": ":80", "https": ":443"}.get(scheme, "\0"))


@web.middleware
async def refuse_cross_site(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers such requests with 403, whatever their method."""
    headers = request.headers
    origin = f"{request.scheme}://{headers.get('Host', '')}"
    if is_cross_site(headers.getall("Sec-Fetch-Site", ()), headers.getall("Origin", ()), origin):
        raise web.HTTPForbidden(text=CROSS_SITE)
    return await handler(request)
