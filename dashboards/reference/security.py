"""The table of docs/security.md that lists every listener and its bounds, from `agent/listeners.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvitals.agent.listeners import KIB, LISTENERS, MIB, PROXY_HEADERS, Listener
from kvitals.dashboards.reference.text import table

FILE = "security.md"

_PLACE = re.compile(r"<!-- listeners -->\n(?:[^<]|<(?!!--))*<!-- end of listeners -->")


def fill_listeners(document: str) -> str:
    """The document with its table as the listeners are now. Raises ValueError where it has no place for it."""
    if len(_PLACE.findall(document)) != 1:
        raise ValueError(f"docs/{FILE}: expected one place `<!-- listeners -->` with `<!-- end of listeners -->`")
    rows = "\n".join([*_ways_in(), "", _proxied(), "", *_bounds()])
    return _PLACE.sub(lambda _: f"<!-- listeners -->\n{rows}\n<!-- end of listeners -->", document)


def _ways_in() -> Iterator[str]:
    rows = ((one.address, one.title, one.accepts, one.callers, one.tls) for one in LISTENERS.values())
    return table(("address", "listener", "accepts", "from", "TLS"), rows)


def _proxied() -> str:
    names = ", ".join(f"`{name}`" for name in PROXY_HEADERS)
    return (
        f"A request with one of these headers comes through a proxy: {names}. It counts as a request from another"
        " machine, even if the proxy runs on this machine: it needs the token for parts and alerts, and it gets no"
        " names of tenants. The tap passes these headers on. Other reads do not depend on them.\n\n"
        "HTTP listeners accept HTTP/1.0 and HTTP/1.1. Other versions, also a request line without a version, get 505 or"
        " 400, and the connection is closed. The web page is an exception (see below)."
    )


def _bounds() -> Iterator[str]:
    head = (
        "listener",
        "connections",
        "from one address",
        "first byte",
        "head",
        "stalled",
        "idle",
        "head",
        "body",
        "framing",
        "sessions, from one address",
    )
    return table(head, (_row(one) for one in LISTENERS.values()))


def _row(one: Listener) -> tuple[str, ...]:
    return (
        one.title,
        *(f"{count:,}" if count else "not limited" for count in (one.connections, one.per_peer)),
        *(f"{seconds:g} s" if seconds else "-" for seconds in (one.first_byte, one.head, one.body, one.idle)),
        *(_size(size) for size in (one.max_head, one.max_body, one.max_framing)),
        f"{one.sessions}, {one.sessions_per_peer}" if one.sessions else "-",
    )


def _size(size: int) -> str:
    if not size:
        return "-"
    return f"{size // MIB} MB" if size >= MIB else f"{size // KIB} KB"
