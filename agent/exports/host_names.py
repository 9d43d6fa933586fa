"""Who may call the API: the names that it is served under on loopback, and the token of callers over TLS.

Requests for a host name that is not allowed are refused: otherwise a web page could point its own name at 127.0.0.1 and
read the agent (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from aiohttp import web

from kvitals.agent.exports.browsers import refuse_cross_site
from kvitals.agent.inbound import has_token
from kvitals.config.hosts import is_loopback

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


OTHER_HOST = (
    "kvitals is not served under this host name. To allow this name, add it to `hosts` of [agent] in kvitals.toml.\n"
)


def allowed_hosts(bound_to: str, more: Collection[str] = ()) -> frozenset[str] | None:
    """The names by which a server bound to this address may be called: `more` on loopback, any (None)
    elsewhere. localhost and addresses are always allowed, since rebinding needs another name."""
    return frozenset(more) if is_loopback(bound_to) else None


def check_caller(hosts: Collection[str] | None, token_file: Path | None) -> Any:
    """The middleware that refuses other host names and, over TLS, callers without the token in `token_file`."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.secure:  # the door for other machines, whose names are its certificate's
            if token_file is not None and not has_token(request.headers.get("Authorization", ""), token_file):
                raise web.HTTPUnauthorized(
                    text="Send the token that [remote] token_file names: Authorization: Bearer ...\n",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            return await handler(request)
        named = request.headers.get("Host")
        # In GET http://host/path that host counts, whatever the header says (RFC 9112, 3.2.2).
        addressed = named if named is None else request.host
        if not (is_allowed_host(named, hosts) and is_allowed_host(addressed, hosts)):
            raise web.HTTPForbidden(text=OTHER_HOST)
        return await handler(request)

    return check


def refuse_others(bound_to: str, more: Collection[str] = ()) -> list[Any]:
    """The middlewares of a server without a token: they refuse other host names, and pages of other sites.

    Both are needed: a page whose own name leads to 127.0.0.1 sends an Origin that equals the Host header."""
    return [check_caller(allowed_hosts(bound_to, more), None), refuse_cross_site]


def is_allowed_host(host: str | None, hosts: Collection[str] | None) -> bool:
    """Whether a server may answer under this name.

    host: the request's Host header; only clients that are no browsers leave it out. hosts: from `allowed_hosts`.
    """
    if hosts is None or host is None:
        return True
    name = re.sub(r":[0-9]*$", "", host).lower()
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name == "localhost" or name in {known.lower() for known in hosts}
    return not getattr(address, "scope_id", None)  # a scope may be any text
