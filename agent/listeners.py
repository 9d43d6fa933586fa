"""Every listener of kvitals and its bounds, in one table.

The servers read their bounds from this table and docs/security.md is generated from it, so what the page promises is
what runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Listener:
    """One listener. Times in seconds, sizes in bytes; 0 is "does not apply".

    A connection in `body` is one whose request, or whose client's reading of the answer, makes no progress.
    """

    name: str
    title: str
    address: str  # default
    accepts: str  # what it reads from a caller, for docs/security.md
    callers: str  # who may call it, for docs/security.md
    tls: str
    connections: int  # at the same time
    per_peer: int  # of these, from one address
    first_byte: float  # until the first byte of a connection arrives
    head: float  # for a whole head, once it has begun
    body: float  # without a byte of a body that is under way
    idle: float  # between two requests
    max_head: int
    max_body: int
    max_framing: int  # of a body in chunks, beside its content
    files: int = 1  # open files of one connection
    json_errors: bool = False  # as Prometheus writes them, also where a request ends with its connection
    sessions: int = 0  # at the same time, of a page with WebSockets
    sessions_per_peer: int = 0  # of these, from one address


LISTENERS: dict[str, Listener] = {
    listener.name: listener
    for listener in (
        Listener(
            name="api",
            title="API",
            address="127.0.0.1:9477",
            accepts="queries, reads of findings, request records and history; parts of the tap (`/api/v1/parts`);"
            " alerts (`[notify]`)",
            callers="this machine; also any host that reaches it where `listen` is another address: use "
            "`[remote]` for those; parts and alerts from other machines, or through a proxy, only with a token",
            tls="no",
            connections=256,
            per_peer=192,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=1 * MIB,
            max_framing=256 * KIB,
            json_errors=True,
        ),
        Listener(
            name="remote",
            title="API for other machines (`[remote]`)",
            address="not open by default",
            accepts="the same as the API",
            callers="a bearer token, a client certificate, or both",
            tls="yes, 1.2 and later",
            connections=256,
            per_peer=64,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=1 * MIB,
            max_framing=256 * KIB,
            json_errors=True,
        ),
        Listener(
            name="otlp_http",
            title="OTLP over HTTP",
            address="127.0.0.1:4318",
            accepts="spans as protobuf or JSON, plain or gzip",
            callers="this machine; other machines only with `token_file`",
            tls="`cert_file` and `key_file` of `[otlp]`",
            connections=128,
            per_peer=96,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=4 * MIB,
            max_framing=1 * MIB,
        ),
        Listener(
            name="otlp_grpc",
            title="OTLP over gRPC",
            address="127.0.0.1:4317",
            accepts="spans as protobuf, plain or gzip",
            callers="this machine; other machines only with `token_file`",
            tls="`cert_file` and `key_file` of `[otlp]`",
            connections=32,
            per_peer=24,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=300.0,
            max_head=16 * KIB,
            max_body=4 * MIB,
            max_framing=0,
            files=3,
        ),
        Listener(
            name="tap",
            title="the tap",
            address="127.0.0.1:8100",
            accepts="HTTP/1.1 requests of the engine's clients, passed on as they are",
            callers="every client of the engine; the tap does not authenticate",
            tls="`cert_file` and `key_file` of `[tap]`",
            connections=4096,
            per_peer=3072,
            first_byte=30.0,
            head=30.0,
            body=30.0,
            idle=75.0,
            max_head=64 * KIB,
            max_body=0,
            max_framing=16 * KIB,
        ),
        Listener(
            name="tap_metrics",
            title="the tap's own `/metrics`",
            address="127.0.0.1:9478",
            accepts="reads of one page",
            callers="this machine; any host that reaches it where `--admin` is another address",
            tls="no",
            connections=32,
            per_peer=24,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=64 * KIB,
            max_framing=16 * KIB,
        ),
        Listener(
            name="notify",
            title="alerts to diagnose (`kvitals notify`)",
            address="127.0.0.1:9479",
            accepts="webhook messages of an Alertmanager",
            callers="this machine; other machines, or through a proxy, only with `token_file`",
            tls="with `[remote]`",
            connections=128,
            per_peer=96,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=1 * MIB,
            max_framing=256 * KIB,
        ),
        Listener(
            name="web",
            title="web page",
            address="127.0.0.1:8501",
            accepts="a browser's session; uploads of recordings: at most four at a time, two stored in memory "
            "per session and eight in all",
            callers="this machine; other machines only with `--password-file`",
            tls="no: put a proxy in front",
            connections=256,
            per_peer=192,
            first_byte=10.0,
            head=10.0,
            body=60.0,
            idle=75.0,
            max_head=64 * KIB,
            max_body=64 * MIB,
            max_framing=1 * MIB,
            sessions=32,
            sessions_per_peer=24,
        ),
        Listener(
            name="record",
            title="API of `kvitals record --listen`",
            address="not open by default",
            accepts="queries, reads of request records; parts of the tap",
            callers="this machine; any host that reaches it where `--listen` is another address; parts from other"
            " machines, or through a proxy, only with a token",
            tls="no",
            connections=128,
            per_peer=96,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=1 * MIB,
            max_framing=256 * KIB,
            json_errors=True,
        ),
        Listener(
            name="replay",
            title="pages of a recording (`kvitals record --replay FILE --serve`)",
            address="127.0.0.1, one port for each engine",
            accepts="reads of one page",
            callers="this machine",
            tls="no",
            connections=32,
            per_peer=24,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=64 * KIB,
            max_framing=16 * KIB,
            json_errors=True,
        ),
        Listener(
            name="mcp",
            title="Model Context Protocol (`kvitals mcp --http`)",
            address="not open by default",
            accepts="calls of the read-only tools, which read the sources that the command line names",
            callers="this machine; with `--token-file` only callers that send the token",
            tls="no",
            connections=64,
            per_peer=48,
            first_byte=10.0,
            head=10.0,
            body=10.0,
            idle=75.0,
            max_head=16 * KIB,
            max_body=256 * KIB,
            max_framing=64 * KIB,
        ),
        Listener(
            name="kv_events",
            title="KV events that engines connect to",
            address="not open by default",
            accepts="KV events over ZeroMQ",
            callers="this machine; other machines only where `hosts` names them",
            tls="no: ZeroMQ sockets do not support it here",
            connections=32,
            per_peer=24,
            first_byte=5.0,
            head=5.0,
            body=15.0,
            idle=15.0,
            max_head=0,
            max_body=8 * MIB,
            max_framing=0,
        ),
    )
}

PROXY_HEADERS = (
    *("Forwarded", "Via", "X-Forwarded-*", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Original-*"),
    *("X-Envoy-*", "X-Proxy-*", "True-Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip"),
)
"""Headers that a proxy adds; `*` is any end. A request with one of them comes from behind a proxy, so its sender may be
another machine although its connection is from this one."""

_PROXY_HEADER = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in PROXY_HEADERS), re.IGNORECASE)


def has_proxy_header(headers: Iterable[str]) -> bool:
    """Whether one of these header names is in `PROXY_HEADERS`."""
    return any(_PROXY_HEADER.fullmatch(name) for name in headers)


PROCESSES: dict[str, tuple[str, ...]] = {
    "kvitals run": ("api", "remote", "otlp_http", "otlp_grpc", "kv_events"),
    "kvitals record": ("record", "otlp_http", "otlp_grpc", "kv_events"),
    "kvitals record --replay": ("replay",),
    "kvitals tap": ("tap", "tap_metrics"),
    "kvitals notify": ("notify",),
    "kvitals web": ("web",),
    "kvitals mcp": ("mcp",),
}
"""The listeners that share the limit of open files of one process."""
