"""What goes with a request so that others can be asked about it: a trace, a request id, whose it is.

https://www.w3.org/TR/trace-context/, version 00.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kvitals.agent.requests.observation import MAX_ID
from kvitals.agent.tap.http1 import RequestHead

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED = "01"


class RequestPseudonyms(Protocol):
    """Who stands behind a request, as pseudonyms. `kvitals.agent.requests.tenants.Tenants` is one."""

    def of_headers(self, headers: Mapping[str, str], peer: str) -> str:
        """The tenant of a request from address `peer`; empty where it is unknown."""

    def session(self, raw: str) -> str:
        """What stands for a session; empty for none."""


@dataclass(frozen=True)
class ContextFields:
    """What to read from requests and to add to them."""

    session_headers: tuple[str, ...] = ("x-session-id",)
    session_id: bool = False  # X-Session-ID = what stands for tenant and session
    keep_traceparent: bool = False  # one that is given goes on as it is


@dataclass(frozen=True)
class Context:
    """Who asks, and by which ids the request is known from here on."""

    trace: str
    span: str  # the tap's own; empty where the given traceparent was kept
    parent: str  # the span around it; empty where the trace begins here
    request_id: str
    tenant: str = ""
    session: str = ""
    added: tuple[bytes, ...] = ()  # lines for the upstream's head
    removed: frozenset[bytes] = frozenset()  # fields that they stand for


def context_of(head: RequestHead, peer: str, wanted: ContextFields, names: RequestPseudonyms) -> Context:
    """The context of a request from address `peer`, and what of it is new to the upstream.

    A trace that was given goes on, with the tap's span between the caller's and the engine's; else one begins.
    """
    headers = _clear(head)
    added: list[str] = []
    removed: set[bytes] = set()
    span = os.urandom(8).hex()
    given = _traceparent(headers)
    if given is None:
        trace, parent = os.urandom(16).hex(), ""
        # Sampled: an engine that traces is to tell of this request.
        added.append(f"traceparent: 00-{trace}-{span}-{_SAMPLED}")
        removed |= {b"traceparent", b"tracestate"}  # what there is belongs to no valid trace
    elif wanted.keep_traceparent:
        trace, parent, _ = given
        span = ""
    else:
        trace, parent, flags = given
        added.append(f"traceparent: 00-{trace}-{span}-{flags}")
        removed.add(b"traceparent")
    request_id = headers.get("x-request-id", "")[:MAX_ID]
    if not request_id:
        request_id = os.urandom(16).hex()
        added.append(f"X-Request-Id: {request_id}")
        removed.add(b"x-request-id")
    tenant = names.of_headers(headers, peer)
    session = names.session(next((headers[name] for name in wanted.session_headers if headers.get(name)), ""))
    if wanted.session_id:
        removed.add(b"x-session-id")  # the client's own name for it would be in the engine's events
        if tenant or session:
            added.append(f"X-Session-ID: {tenant}/{session}")
    lines = tuple(line.encode() for line in added)
    return Context(trace, span, parent, request_id, tenant, session, lines, frozenset(removed))


def _clear(head: RequestHead) -> dict[str, str]:
    """Fields by their names in lower case, less those that contradict themselves."""
    values: dict[str, str] = {}
    ambiguous = set()
    for field in head.fields:
        name = field.name.decode()
        value = _text(field.value)
        if values.setdefault(name, value) != value:
            ambiguous.add(name)
    return {name: value for name, value in values.items() if name not in ambiguous}


def _traceparent(headers: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Trace id, parent's span id and flags, of a valid one."""
    match = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    if not match[2].strip("0") or not match[3].strip("0"):
        return None
    return match[2], match[3], match[4]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
