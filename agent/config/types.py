"""The tables of `kvitals.toml` as types. A value that makes no sense is refused when a table is made."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from rules.log_map import formats

TARGET_LABELS = ("cluster", "node", "pool", "role", "hardware")
ENTITY_LABELS = ("cluster", "node", "pool", "engine")
ROLES = ("prefill", "decode", "unified", "frontend", "router")
"""What an engine's part in a deployment can be. `unified` does prefill and decode."""

MAX_OBJECTIVES = 200
MAX_PREFIXES = 16
MAX_SOURCES = 32
MAX_CLASSED = 10_000  # tenants in classes
MAX_TOP = 1000
MAX_REQUEST_LOGS = 16
MAX_PRICES = 200
MAX_CONNECTIONS = 100_000
MAX_KV_SOURCES = 256
MAX_TOPIC = 200
OTHER_SOURCES = ("otlp", "tap")
"""Where parts of requests come from besides logs."""

_CODE = re.compile(r"[A-Z]{3}\d{2}")
_HOST = re.compile(r"[\w.:%-]+")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PREFIX = re.compile(r"[A-Za-z_:][\w:]{0,63}")
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_SELECTOR = re.compile(r"[\w.,/()!= -]{1,1000}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")
_SOURCE = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_ZMQ = re.compile(r"tcp://[\w.*:%\[\]-]{1,200}:\d{1,5}|ipc://[^\x00-\x1f\x7f]{1,200}")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[\w.-]{1,63}")


class ConfigError(Exception):
    """The configuration cannot be used. One problem a line: file, key, what is wrong and what is allowed."""


class Seconds(float):
    """A duration, written as a number of seconds or as text with a unit."""


class Agent(Struct, frozen=True, kw_only=True):
    """The agent itself."""

    listen: str = "127.0.0.1:9477"
    interval: Seconds = Seconds(5)
    window: Seconds = Seconds(1800)
    timeout: Seconds = Seconds(3)
    discover: bool = True
    targets_file: tuple[Path, ...] = ()  # the last part of each may be a pattern
    prefixes: dict[str, str] = {}
    rules: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    parts_token_file: Path | None = None  # a token with which parts of requests are taken from other machines

    def __post_init__(self) -> None:
        _address(self.listen)
        _between("interval", self.interval, 0.2, 300)
        _between("window", self.window, 60, 24 * 3600)
        _between("timeout", self.timeout, 0.1, 60)
        _check_prefixes(self.prefixes)
        for path in self.targets_file:
            if any(is_pattern(part) for part in path.parts[:-1]):
                raise ValueError(f"targets_file {path}: only the last part of a path may be a pattern")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to; the empty host is all interfaces."""
        return _address(self.listen)


class NodeLabels(Struct, frozen=True, kw_only=True):
    """Labels that everything from this agent carries."""

    cluster: str = ""
    node: str = field(default_factory=socket.gethostname)

    def __post_init__(self) -> None:
        for name, value in (("cluster", self.cluster), ("node", self.node)):
            if value and not _TEXT.fullmatch(value):
                raise ValueError(f"{name} must be one line of at most 200 characters")


class Slo(Struct, frozen=True, kw_only=True):
    """What is fast enough, in seconds."""

    ttft_p99_seconds: float = 2.0
    itl_p99_seconds: float = 0.2

    def __post_init__(self) -> None:
        _check_slo(self)


class SomeSlo(Struct, frozen=True, kw_only=True):
    """Some of the objectives, in seconds; None is for those that something more general says."""

    ttft_p99_seconds: float | None = None
    itl_p99_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_slo(self)


class Objective(SomeSlo, frozen=True, kw_only=True):
    """Objectives for some engines, by patterns on their model and role, or for one class of tenants on them."""

    model: str = "*"
    role: str = "*"
    class_: str = field(name="class", default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ttft_p99_seconds is None and self.itl_p99_seconds is None:
            raise ValueError("say ttft_p99_seconds or itl_p99_seconds, or both")
        for name, value in (("model", self.model), ("role", self.role)):
            if not _TEXT.fullmatch(value):
                raise ValueError(f"{name} must be one line of 1 to 200 characters")
        if self.class_ and (not _TEXT.fullmatch(self.class_) or is_pattern(self.class_)):
            raise ValueError("class must be the name of one class, not a pattern: it becomes the label `class`")

    def covers(self, model: str, role: str) -> bool:
        """Whether it is for an engine; what is not known of the engine is an empty text."""
        return fnmatchcase(model, self.model) and fnmatchcase(role, self.role)


class Target(Struct, frozen=True, kw_only=True):
    """An engine to watch."""

    url: str  # without a path, /metrics is meant
    name: str = ""
    labels: dict[str, str] = {}
    facts: dict[str, float] = {}
    slo: SomeSlo | None = None
    bearer_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None  # ours, where the server asks for one
    key_file: Path | None = None
    insecure: bool = False
    prefixes: dict[str, str] = {}
    timeout: Seconds | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))
        if self.name and not _TEXT.fullmatch(self.name):
            raise ValueError("name must be one line of at most 200 characters")
        for label, text in self.labels.items():
            one_of("labels", label, TARGET_LABELS)
            if not _TEXT.fullmatch(text):
                raise ValueError(f"labels.{label} must be one line of 1 to 200 characters")
        if "role" in self.labels:
            one_of("labels.role", self.labels["role"], ROLES)
        for fact, value in self.facts.items():
            if not _NAME.fullmatch(fact):
                raise ValueError(f"facts.{fact}: names of facts have lower case letters, digits and _")
            if not math.isfinite(value):
                raise ValueError(f"facts.{fact} must be a number, not {value}")
        if self.insecure and self.ca_file:
            raise ValueError("insecure checks no certificate, so ca_file has no use beside it: leave one away")
        _check_pair(self)
        _check_prefixes(self.prefixes)
        if self.timeout is not None:
            _between("timeout", self.timeout, 0.1, 60)


class Kubernetes(Struct, frozen=True, kw_only=True):
    """The pods of one node, as targets."""

    node: str = ""  # the node's name in the cluster; from the environment where it is not said
    namespaces: tuple[str, ...] = ()  # none: all of them
    selector: str = ""  # labels of pods, as kubectl writes them
    annotated: bool = False  # only pods with the annotation PREFIX/scrape: "true"
    annotation: str = "prometheus.io"  # the prefix
    ports: tuple[str | int, ...] = ("metrics", "http")
    pool: tuple[str, ...] = (
        "llm-d.ai/model",
        "nvidia.com/dynamo-graph-deployment-name",
        "rbg.workloads.x-k8s.io/group-name",
        "rolebasedgroup.workloads.x-k8s.io/name",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/name",
        "app",
    )
    role: tuple[str, ...] = (
        "llm-d.ai/role",
        "nvidia.com/dynamo-sub-component-type",
        "nvidia.com/dynamo-component-type",
        "rbg.workloads.x-k8s.io/role-name",
        "rolebasedgroup.workloads.x-k8s.io/role",
        "app.kubernetes.io/component",
    )
    hardware: tuple[str, ...] = ()
    bearer_file: Path | None = None  # these five as of a target, for every pod
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure: bool = False
    server: str = ""  # of the API; the cluster's own where it is not said
    token_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    server_ca_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
    timeout: Seconds = Seconds(10)  # of one listing as a whole

    def __post_init__(self) -> None:
        if self.node and not _HOST.fullmatch(self.node):
            raise ValueError("node must be the name of the node in the cluster, as in `kubectl get nodes`")
        if self.selector and not _SELECTOR.fullmatch(self.selector):
            raise ValueError("selector must be as for kubectl, such as app=vllm,tier!=test")
        for namespace in self.namespaces:
            if not re.fullmatch(r"[a-z0-9-]{1,63}", namespace):
                raise ValueError(f"namespaces: {namespace!r} is no name of a namespace")
        if not _LABEL_KEY.fullmatch(f"{self.annotation}/scrape"):
            raise ValueError("annotation must be the part before the slash, such as prometheus.io")
        for port in self.ports:
            if port == "" or (isinstance(port, int) and not 0 < port < 65536):
                raise ValueError("ports must be names of ports or numbers from 1 to 65535")
        for key in (*self.pool, *self.role, *self.hardware):
            if not _LABEL_KEY.fullmatch(key):
                raise ValueError(f"{key!r} is no name of a pod's label")
        if self.server and not normal_url(self.server).startswith("https://"):
            raise ValueError("server must be an https URL: a token is sent there")
        if self.insecure and self.ca_file:
            raise ValueError("insecure checks no certificate, so ca_file has no use beside it: leave one away")
        _check_pair(self)
        _between("timeout", self.timeout, 0.1, 60)


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
                raise ValueError(f"{name} may have {MAX_SOURCES} entries at most")
        for header in self.headers:
            if not _HEADER.fullmatch(header):
                raise ValueError(f"headers: {header!r} is no name of a header")
        for attribute in self.attributes:
            if not _TEXT.fullmatch(attribute):
                raise ValueError("attributes must be names of attributes, one line of 1 to 200 characters each")
        _check_classes(self.classes)
        if not 1 <= self.top <= MAX_TOP:
            raise ValueError(f"top must be from 1 to {MAX_TOP} tenants, not {self.top}")
        _between("ttl", self.ttl, 60, 30 * 24 * 3600)


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
            raise ValueError(f"say either format ({', '.join(formats())}) or mapping, a file of your own")
        if self.format:
            one_of("format", self.format, formats())
        if not self.name:
            msgspec.structs.force_setattr(self, "name", self.mapping.stem if self.mapping else self.format)
        if not _SOURCE.fullmatch(self.name) or self.name in OTHER_SOURCES:
            raise ValueError(
                f"name {self.name!r} must have lower case letters, digits, _ and -, and be none of"
                f" {', '.join(OTHER_SOURCES)}"
            )
        for key in self.tenant:
            if not _TEXT.fullmatch(key):
                raise ValueError("tenant must list keys, one line of 1 to 200 characters each")


class Otlp(Struct, frozen=True, kw_only=True):
    """Where spans are taken in. The table being there switches it on; an empty address switches one of the two off."""

    grpc: str = "127.0.0.1:4317"
    http: str = "127.0.0.1:4318"
    token_file: Path | None = None  # exporters must send it as a bearer token
    cert_file: Path | None = None  # of the server, with its chain: TLS
    key_file: Path | None = None
    max_bytes: int = 4 << 20  # of one request, decompressed

    def __post_init__(self) -> None:
        for name, address in (("grpc", self.grpc), ("http", self.http)):
            if address and _address(address, name)[0] not in _LOOPBACK and self.token_file is None:
                raise ValueError(f"{name} = {address!r} can be reached from other machines: name a token_file")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: name both")
        if not (self.grpc or self.http):
            raise ValueError("grpc and http are both switched off: leave the table away")
        if not 1 << 16 <= self.max_bytes <= 1 << 28:
            raise ValueError(f"max_bytes must be from {1 << 16} to {1 << 28}, not {self.max_bytes}")

    @property
    def grpc_address(self) -> tuple[str, int] | None:
        """Host and port to bind to; the empty host is all interfaces."""
        return _address(self.grpc, "grpc") if self.grpc else None

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Likewise."""
        return _address(self.http, "http") if self.http else None


class Remote(Struct, frozen=True, kw_only=True):
    """The API for other machines, over TLS. The table being there switches it on."""

    listen: str
    cert_file: Path  # of the server, with its chain
    key_file: Path
    client_ca_file: Path | None = None  # callers must show a certificate that it signed
    token_file: Path | None = None  # callers must send it as a bearer token

    def __post_init__(self) -> None:
        _address(self.listen)
        if self.client_ca_file is None and self.token_file is None:
            raise ValueError("say who may call: name a token_file, a client_ca_file, or both")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to; the empty host is all interfaces."""
        return _address(self.listen)


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
            raise ValueError(f"topic may have {MAX_TOPIC} characters at most")


class KvEventsTable(Struct, frozen=True, kw_only=True):
    """How KV events are listened to. Engines of this node that publish them are found."""

    enabled: bool = True
    hosts: tuple[str, ...] = ()  # beside loopback and a target's own: to connect to, and own addresses to bind
    source: tuple[KvEventsSource, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hosts) > MAX_SOURCES or len(self.source) > MAX_KV_SOURCES:
            raise ValueError(f"hosts may have {MAX_SOURCES} entries and source {MAX_KV_SOURCES} at most")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"hosts: {host!r} is no name or address of a host")


class OtlpOutTable(Struct, frozen=True, kw_only=True):
    """Where traces of requests are sent. The table being there switches it on."""

    endpoint: str  # URL of a collector; over HTTP without a path, /v1/traces is meant
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    headers_file: Path | None = None  # NAME: VALUE a line, such as a token
    sample: float = 0.1  # share of the requests that are neither slow nor failed

    def __post_init__(self) -> None:
        url = normal_url(self.endpoint)
        path = urlsplit(url).path
        if self.protocol == "grpc" and path:
            raise ValueError(
                f"endpoint {self.endpoint!r} must be without a path for grpc, such as http://collector:4317"
            )
        if self.protocol == "http/protobuf" and not path:
            url = f"{url}/v1/traces"
        msgspec.structs.force_setattr(self, "endpoint", url)
        if not 0.0 <= self.sample <= 1.0:
            raise ValueError(f"sample must be from 0 to 1, not {self.sample:g}")


class PrometheusTable(Struct, frozen=True, kw_only=True):
    """The server that holds a fleet's series, for `--prometheus` without a URL. Options come before it."""

    url: str
    bearer_file: Path | None = None  # a file with a token
    basic_file: Path | None = None  # a file with user:password
    headers_file: Path | None = None  # more headers, a line `Name: value` each
    tenant: str = ""  # X-Scope-OrgID, of servers with tenants
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout: Seconds = Seconds(30)  # for one question
    step: Seconds | None = None  # between two samples; measured where it is not said

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))
        if self.bearer_file and self.basic_file:
            raise ValueError("bearer_file or basic_file, not both: a server takes one of them")
        if self.key_file and not self.cert_file:
            raise ValueError("key_file is the key of a certificate: name cert_file as well")
        if self.tenant and not _TEXT.fullmatch(self.tenant):
            raise ValueError("tenant must be one line of at most 200 characters")
        _between("timeout", self.timeout, 0.1, 600)
        if self.step is not None:
            _between("step", self.step, 1, 300)


class ReviewTable(Struct, frozen=True, kw_only=True):
    """What `kvitals review` reckons with. Options come before it."""

    usd_per_gpu_hour: float | None = None  # of every GPU that `prices` does not name
    prices: dict[str, float] = {}  # of hardware, a pool or a model, by a part of its name
    gpus_per_engine: float = 1.0  # of an engine that does not tell how many it has

    def __post_init__(self) -> None:
        several = [*self.prices.values(), *([] if self.usd_per_gpu_hour is None else [self.usd_per_gpu_hour])]
        if not all(0 <= price < 1e6 for price in several):
            raise ValueError("prices are US dollars an hour of one GPU, from 0 to a million")
        if len(self.prices) > MAX_PRICES or not all(_TEXT.fullmatch(name) for name in self.prices):
            raise ValueError(f"prices may name {MAX_PRICES} kinds at most, one line of 1 to 200 characters each")
        if not 0 < self.gpus_per_engine <= 1024:
            raise ValueError(f"gpus_per_engine must be above 0 and 1024 at most, not {self.gpus_per_engine:g}")


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
        _address(self.listen)
        _address(self.admin, "admin")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: name both")
        msgspec.structs.force_setattr(self, "session_headers", tuple(one.lower() for one in self.session_headers))
        for header in self.session_headers:
            if not _HEADER.fullmatch(header):
                raise ValueError(f"session_headers: {header!r} is no name of a header")
        if not self.session_headers or len(self.session_headers) > MAX_SOURCES:
            raise ValueError(f"session_headers must have 1 to {MAX_SOURCES} entries")
        if self.engine and not _TEXT.fullmatch(self.engine):
            raise ValueError("engine must be one line of at most 200 characters")
        if self.router and (self.engine or self.role):
            raise ValueError("router says that the engine is unknown; leave engine and role away, or router")
        if not 1 <= self.max_connections <= MAX_CONNECTIONS:
            raise ValueError(f"max_connections must be from 1 to {MAX_CONNECTIONS}, not {self.max_connections}")
        _between("drain", self.drain, 0, 3600)


class HistoryTable(Struct, frozen=True, kw_only=True):
    """What is kept on disk of what was seen."""

    enabled: bool = True
    directory: Path | None = None  # where the agent keeps what outlives a restart, where it is not said
    full: Seconds = Seconds(24 * 3600)  # with every row
    keep: Seconds = Seconds(30 * 24 * 3600)  # in all, after `full` with a row a minute
    max_bytes: int = 4 << 30
    min_free_bytes: int = 1 << 30  # of the disk: with less left nothing is written

    def __post_init__(self) -> None:
        _between("full", self.full, 3600, 14 * 24 * 3600)
        _between("keep", self.keep, self.full, 400 * 24 * 3600)
        if not 64 << 20 <= self.max_bytes <= 1 << 44:
            raise ValueError(f"max_bytes must be from {64 << 20} to {1 << 44}, not {self.max_bytes}")
        if not 0 <= self.min_free_bytes <= 1 << 44:
            raise ValueError(f"min_free_bytes must be from 0 to {1 << 44}, not {self.min_free_bytes}")


class NotifyTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where messages about alerts are handed on to. The secret is in a file, where the URL is none."""

    name: str = ""  # in logs and in the file of dead letters; the kind and its place in the list where it is not said
    severities: tuple[Literal["page", "ticket", "info"], ...] = ("page", "ticket", "info")
    resolved: bool = True  # whether the end of an incident is told
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if self.name and not _SOURCE.fullmatch(self.name):
            raise ValueError(f"name {self.name!r} must have lower case letters, digits, _ and -, 40 at most")


class WebhookTarget(NotifyTarget, frozen=True, kw_only=True):
    """Takes a notice as JSON."""

    url: str
    bearer_file: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))


class SlackTarget(NotifyTarget, frozen=True, kw_only=True):
    """An incoming webhook of Slack, or of what takes the same, such as Mattermost."""

    url_file: Path  # holds the URL, which is the secret


class PagerDutyTarget(NotifyTarget, frozen=True, kw_only=True):
    """A service of PagerDuty, over its Events API v2."""

    key_file: Path  # holds the integration's routing key
    url: str = "https://events.pagerduty.com/v2/enqueue"

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))


class AlertmanagerTarget(WebhookTarget, frozen=True, kw_only=True):
    """An Alertmanager, or what takes alerts as it does, at the URL's /api/v2/alerts."""


class NotifyTable(Struct, frozen=True, kw_only=True):
    """Alerts that are taken in, diagnosed and handed on. The table being there switches it on."""

    token_file: Path | None = None  # a bearer token with which messages are taken from other machines
    directory: Path | None = None  # of what waits; where the agent keeps what outlives a restart, where it is not said
    listen: str = "127.0.0.1:9479"  # of `kvitals notify`; a running agent takes messages at its own address
    repeat: Seconds = Seconds(4 * 3600)  # an incident that goes on is told again this much later, at the earliest
    give_up: Seconds = Seconds(24 * 3600)  # what could not be handed on for so long is a dead letter
    page: str = ""  # URL of the web page, for links
    webhook: tuple[WebhookTarget, ...] = ()
    slack: tuple[SlackTarget, ...] = ()
    pagerduty: tuple[PagerDutyTarget, ...] = ()
    alertmanager: tuple[AlertmanagerTarget, ...] = ()

    def __post_init__(self) -> None:
        _address(self.listen)
        if self.page:
            msgspec.structs.force_setattr(self, "page", normal_url(self.page))
        _between("repeat", self.repeat, 60, 30 * 24 * 3600)
        _between("give_up", self.give_up, 60, 7 * 24 * 3600)
        named = list(self.targets)
        if not 1 <= len(named) <= MAX_SOURCES:
            raise ValueError(f"name 1 to {MAX_SOURCES} targets: webhook, slack, pagerduty, alertmanager")
        if len({name for name, _ in named}) < len(named):
            raise ValueError("two targets have one name: give each its own")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to; the empty host is all interfaces."""
        return _address(self.listen)

    @property
    def targets(self) -> Iterator[tuple[str, NotifyTarget]]:
        """All of them by name."""
        kinds = {
            "webhook": self.webhook, "slack": self.slack, "pagerduty": self.pagerduty,
            "alertmanager": self.alertmanager,
        }  # fmt: skip
        for kind, several in kinds.items():
            for number, one in enumerate(several, 1):
                yield one.name or f"{kind}-{number}", one


class Mute(Struct, frozen=True, kw_only=True):
    """A rule that is not to be reported, for an entity or everywhere, until a time or for good."""

    rule: str
    reason: str
    entity: dict[str, str] = {}
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.rule):
            raise ValueError(f"rule {self.rule!r} must be a code such as KVC05")
        if not self.reason.strip():
            raise ValueError("reason must say why, for those who find the mute later")
        if self.until is not None and self.until.tzinfo is None:
            raise ValueError("until needs a time zone, such as 2026-12-01T00:00:00Z")
        for label in self.entity:
            one_of("entity", label, ENTITY_LABELS)

    def covers(self, rule: str, entity: Mapping[str, str], t: float) -> bool:
        """Whether it mutes a rule for an entity's labels at `t`, seconds since the epoch."""
        if rule != self.rule or (self.until is not None and t >= self.until.timestamp()):
            return False
        return all(entity.get(label, "") == value for label, value in self.entity.items())


class Config(Struct, frozen=True, kw_only=True):
    """A configuration as a whole."""

    agent: Agent = field(default_factory=Agent)
    remote: Remote | None = None
    labels: NodeLabels = field(default_factory=NodeLabels)
    slo: Slo = field(default_factory=Slo)
    objectives: tuple[Objective, ...] = ()  # later ones come before earlier ones
    targets: tuple[Target, ...] = ()
    kubernetes: Kubernetes | None = None
    tenants: TenantsTable = field(default_factory=TenantsTable)
    request_logs: tuple[RequestLog, ...] = ()
    otlp: Otlp | None = None
    otlp_out: OtlpOutTable | None = None
    kv_events: KvEventsTable = field(default_factory=KvEventsTable)
    history: HistoryTable = field(default_factory=HistoryTable)
    tap: TapTable = field(default_factory=TapTable)
    prometheus: PrometheusTable | None = None
    review: ReviewTable = ReviewTable()
    notify: NotifyTable | None = None
    mutes: tuple[Mute, ...] = ()
    params: dict[str, dict[str, float]] = {}  # rule code -> parameter -> value
    file: Path | None = None  # where it was read from


def normal_url(text: str) -> str:
    """`text` with a scheme and without a trailing slash. Raises ValueError, saying what is wrong, and no password."""
    url = text if "://" in text else f"http://{text}"
    if "@" in url:
        raise ValueError(f"the URL of {url.rpartition('@')[2]} holds a password: use bearer_file")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}") from None
    host_is_good = _HOST.fullmatch(parts.hostname or "")
    if parts.scheme not in ("http", "https") or not host_is_good or port == 0 or re.search(r"\s", url):
        raise ValueError(f"{text!r} is no URL of an engine, such as http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise ValueError(f"{text!r} must end with the path, without ? and #")
    return url.rstrip("/")


def is_pattern(text: str) -> bool:
    """Whether a text stands for several, as in `engines-*.json`."""
    return any(character in text for character in "*?[")


def one_of(name: str, value: str, allowed: Collection[str]) -> None:
    """Raises ValueError for what is not allowed, with what is meant perhaps."""
    if value not in allowed:
        raise ValueError(f"{name} may have {', '.join(allowed)}, not {value!r}{nearest(value, allowed)}")


def nearest(word: str, allowed: Collection[str]) -> str:
    """A hint at the word that was meant perhaps, or nothing."""
    close = difflib.get_close_matches(word, list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_pair(own: Target | Kubernetes) -> None:
    if own.key_file and not own.cert_file:
        raise ValueError("key_file is the key of a certificate: name cert_file as well")


def _check_slo(slo: Slo | SomeSlo) -> None:
    for name, least, most in (("ttft_p99_seconds", 0.001, 3600.0), ("itl_p99_seconds", 0.0001, 60.0)):
        value = getattr(slo, name)
        if value is not None:
            _between(name, value, least, most)


def _check_classes(classes: Mapping[str, Collection[str]]) -> None:
    class_of: dict[str, str] = {}
    for name, members in classes.items():
        if not _TEXT.fullmatch(name) or is_pattern(name):
            raise ValueError("classes must have names of one line without *, ? and [: they become the label `class`")
        for member in members:
            if not _TEXT.fullmatch(member):
                raise ValueError(f"classes.{name} must list tenants, one line of 1 to 200 characters each")
            if class_of.setdefault(member, name) != name:
                raise ValueError(f"classes: {member!r} is in {class_of[member]!r} and in {name!r}: leave one away")
    if len(class_of) > MAX_CLASSED:
        raise ValueError(f"classes may list {MAX_CLASSED} tenants at most, these are {len(class_of)}")


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError(f"gateways: {text!r} is no address or network, such as 10.0.0.0/8") from None


def _check_prefixes(prefixes: Mapping[str, str]) -> None:
    if len(prefixes) > MAX_PREFIXES:
        raise ValueError(f"prefixes may have {MAX_PREFIXES} entries at most")
    for old, new in prefixes.items():
        if not _PREFIX.fullmatch(old) or not _PREFIX.fullmatch(new):
            raise ValueError(f"prefixes: {old!r} and {new!r} must be how names of metrics begin, such as 'vllm:'")


def _address(listen: str, name: str = "listen") -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535 or (":" in bare and bare == host):
        raise ValueError(f"{name} must be HOST:PORT, such as 127.0.0.1:9477, not {listen!r}")
    return bare, int(port)


def _between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:g} to {most:g} seconds, not {value:g}")
