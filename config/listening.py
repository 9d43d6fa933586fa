"""What engines, observers of requests and the tap tell, in `kvitals.toml`: where it is taken in, and whose it is."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from kvitals.config.checks import (
    HEADER,
    HOST,
    MAX_SOURCES,
    NAME_OF_SOURCE,
    TEXT,
    Seconds,
    check_seconds,
    check_server_certificate,
    host_and_port,
    is_pattern,
    normal_url,
    one_of,
)
from kvitals.config.hosts import is_loopback
from kvitals.rules.log_map import formats

MAX_CLASSED = 10_000  # tenants in classes
MAX_TOP = 1000
MAX_CONNECTIONS = 100_000
MAX_KV_SOURCES = 256
MAX_TOPIC = 200
OTHER_SOURCES = ("otlp", "tap")
"""Where parts of requests come from besides logs."""

_ZMQ = re.compile(r"tcp://[\w.*:%\[\]-]{1,200}:[0-9]{1,5}|ipc://[^\x00-\x1f\x7f]{1,200}")


class TenantsTable(Struct, frozen=True, kw_only=True):
    """Whose a request is: where that is told, whom it is believed, and what stands for it."""

    names: Literal["pseudonym", "plain"] = "pseudonym"
    headers: tuple[str, ...] = ("x-tenant-id", "x-gateway-inference-fairness-id")  # of requests through the tap
    gateways: tuple[str, ...] = ("127.0.0.0/8", "::1/128")  # from where a header counts
    attributes: tuple[str, ...] = ("tenant.id", "enduser.id", "user.id")  # of spans
    classes: dict[str, tuple[str, ...]] = {}  # class -> names, or what stands for them
    top: int = 50  # tenants that have series of their own; the others are `other`
    ttl: Seconds = Seconds(24 * 3600)  # after which a name that was not seen is forgotten

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "headers", tuple(header.lower() for header in self.headers))
        msgspec.structs.force_setattr(self, "gateways", tuple(_network(text) for text in self.gateways))
        for name, value in (("headers", self.headers), ("attributes", self.attributes), ("gateways", self.gateways)):
            if len(value) > MAX_SOURCES:
                raise ValueError(f"{name} may have at most {MAX_SOURCES} entries")
        for header in self.headers:
            if not HEADER.fullmatch(header):
                raise ValueError(f"headers: {header!r} is not the name of a header")
        for attribute in self.attributes:
            if not TEXT.fullmatch(attribute):
                raise ValueError("attributes must be names of attributes: each one line of 1 to 200 characters")
        _check_classes(self.classes)
        if not 1 <= self.top <= MAX_TOP:
            raise ValueError(f"top must be from 1 to {MAX_TOP} tenants, not {self.top}")
        check_seconds("ttl", self.ttl, 60, 30 * 24 * 3600)


class RequestLog(Struct, frozen=True, kw_only=True):
    """A log of requests that is followed, a JSON object a line."""

    path: Path  # the last part may be a pattern
    format: str = ""  # one that is known, or
    mapping: Path | None = None  # a file that says what the keys mean
    name: str = ""  # what its parts come from; the format's by default
    tenant: tuple[str, ...] = ()  # keys that name the tenant, in place of the format's

    def __post_init__(self) -> None:
        if any(is_pattern(part) for part in self.path.parts[:-1]):
            raise ValueError(f"path {self.path}: only the last part of a path may be a pattern")
        if bool(self.format) == (self.mapping is not None):
            raise ValueError(f"set either format ({', '.join(formats())}) or mapping (your own file)")
        if self.format:
            one_of("format", self.format, formats())
        if not self.name:
            msgspec.structs.force_setattr(self, "name", self.mapping.stem if self.mapping else self.format)
        if not NAME_OF_SOURCE.fullmatch(self.name) or self.name in OTHER_SOURCES:
            raise ValueError(
                f"name {self.name!r} must have lower case letters, digits, _ and - only, and differ from "
                f"{', '.join(OTHER_SOURCES)}"
            )
        for key in self.tenant:
            if not TEXT.fullmatch(key):
                raise ValueError("tenant must list keys: each one line of 1 to 200 characters")


class Otlp(Struct, frozen=True, kw_only=True):
    """Where spans are taken in. The table being there switches it on; an empty address switches one of the two
    off."""

    grpc: str = "127.0.0.1:4317"
    http: str = "127.0.0.1:4318"
    token_file: Path | None = None  # exporters must send it as a bearer token
    cert_file: Path | None = None  # of the server, with its chain: TLS
    key_file: Path | None = None
    max_bytes: int = 4 << 20  # of one request, decompressed

    def __post_init__(self) -> None:
        for name, address in (("grpc", self.grpc), ("http", self.http)):
            if address and not is_loopback(host_and_port(address, name)[0]) and self.token_file is None:
                raise ValueError(f"other machines can reach {name} = {address!r}: set a token_file")
        check_server_certificate(self)
        if not (self.grpc or self.http):
            raise ValueError("grpc and http are both switched off: remove the table")
        if not 1 << 16 <= self.max_bytes <= 1 << 28:
            raise ValueError(f"max_bytes must be from {1 << 16} to {1 << 28}, not {self.max_bytes}")

    @property
    def grpc_address(self) -> tuple[str, int] | None:
        """Host and port to bind to; the empty host is all interfaces."""
        return host_and_port(self.grpc, "grpc") if self.grpc else None

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Likewise."""
        return host_and_port(self.http, "http") if self.http else None


class KvEventsSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A publisher of KV events that is not found by itself, or is to be reached in another way. Of several with one
    target, the first is rank 0."""

    target: str  # the URL of its target
    endpoint: str  # tcp://HOST:PORT or ipc://PATH, as the engine has it
    replay: str = ""
    topic: str | None = None  # None: any
    bind: bool | None = None  # whether kvitals binds there; None: by the form of the endpoint, as vLLM has it

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "target", normal_url(self.target))
        for name, address in (("endpoint", self.endpoint), ("replay", self.replay)):
            if address and not _ZMQ.fullmatch(address):
                raise ValueError(f"{name} {address!r} must be like tcp://127.0.0.1:5557 or ipc:///run/kv.sock")
        if self.topic is not None and len(self.topic) > MAX_TOPIC:
            raise ValueError(f"topic may have at most {MAX_TOPIC} characters")


class KvEventsTable(Struct, frozen=True, kw_only=True):
    """How KV events are listened to. Engines of this node that publish them are found."""

    enabled: bool = True
    hosts: tuple[str, ...] = ()  # beside loopback and a target's own: to connect to, and own addresses to bind
    source: tuple[KvEventsSource, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hosts) > MAX_SOURCES or len(self.source) > MAX_KV_SOURCES:
            raise ValueError(f"hosts may have at most {MAX_SOURCES} entries, and source at most {MAX_KV_SOURCES}")
        for host in self.hosts:
            if not HOST.fullmatch(host):
                raise ValueError(f"hosts: {host!r} is not a name or address of a host")


class TapTable(Struct, frozen=True, kw_only=True):
    """What `kvitals tap` does where its options say nothing."""

    upstream: str = ""  # URL of the engine or router behind it
    listen: str = "127.0.0.1:8100"
    admin: str = "127.0.0.1:9478"  # for its own metrics
    agent: str = ""  # URL of the agent that is told; the configured one on this node where it is not said
    token_file: Path | None = None  # a bearer token for the agent
    cert_file: Path | None = None  # with its chain: TLS towards clients
    key_file: Path | None = None
    router: bool = False  # the upstream is a router: which engine serves is unknown
    engine: str = ""  # what the agent calls the engine; host:port of the upstream where it is not said
    role: Literal["", "prefill", "decode", "unified"] = ""
    session_headers: tuple[str, ...] = ("x-session-id",)
    session_id: bool = False  # X-Session-ID = what stands for tenant and session
    keep_traceparent: bool = False
    max_connections: int = 4096
    drain: Seconds = Seconds(30)  # for requests under way to end when it is stopped

    def __post_init__(self) -> None:
        for name in ("upstream", "agent"):
            if url := getattr(self, name):
                msgspec.structs.force_setattr(self, name, normal_url(url))
        host_and_port(self.listen)
        host_and_port(self.admin, "admin")
        check_server_certificate(self)
        msgspec.structs.force_setattr(self, "session_headers", tuple(one.lower() for one in self.session_headers))
        for header in self.session_headers:
            if not HEADER.fullmatch(header):
                raise ValueError(f"session_headers: {header!r} is not the name of a header")
        if not self.session_headers or len(self.session_headers) > MAX_SOURCES:
            raise ValueError(f"session_headers must have 1 to {MAX_SOURCES} entries")
        if self.engine and not TEXT.fullmatch(self.engine):
            raise ValueError("engine must be one line of at most 200 characters")
        if self.router and (self.engine or self.role):
            raise ValueError("router means that the engine is unknown: remove either router, or engine and role")
        if not 1 <= self.max_connections <= MAX_CONNECTIONS:
            raise ValueError(f"max_connections must be from 1 to {MAX_CONNECTIONS}, not {self.max_connections}")
        check_seconds("drain", self.drain, 0, 3600)


def _check_classes(classes: Mapping[str, Collection[str]]) -> None:
    class_of: dict[str, str] = {}
    for name, members in classes.items():
        if not TEXT.fullmatch(name) or is_pattern(name):
            raise ValueError("classes must have names of one line without *, ? or [: they become the label `class`")
        for member in members:
            if not TEXT.fullmatch(member):
                raise ValueError(f"classes.{name} must list tenants: each one line of 1 to 200 characters")
            if class_of.setdefault(member, name) != name:
                raise ValueError(
                    f"classes: {member!r} is in {class_of[member]!r} and in {name!r}: remove it from one of them"
                )
    if len(class_of) > MAX_CLASSED:
        raise ValueError(f"classes may list at most {MAX_CLASSED} tenants, not {len(class_of)}")


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError(f"gateways: {text!r} is not an address or network, such as 10.0.0.0/8") from None
