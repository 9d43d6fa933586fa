"""Targets in `kvitals.toml`: those that are named, and the pods of a node."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import Struct

from kvitals.config.checks import (
    HOST,
    TEXT,
    Seconds,
    check_own_certificate,
    check_prefixes,
    check_seconds,
    is_pattern,
    normal_url,
    one_of,
)
from kvitals.config.judging import SomeSlo

TARGET_LABELS = ("cluster", "node", "pool", "role", "hardware")
ROLES = ("prefill", "decode", "unified", "frontend", "router")
"""What an engine's part in a deployment can be. `unified` does prefill and decode."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SELECTOR = re.compile(r"[\w.,/()!= -]{1,1000}")
_JOURNAL_UNIT = re.compile(r"journal:[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]{0,199}")


def check_log(log: str) -> None:
    """Raises ValueError for a log that is neither a path, a unit of the journal nor standard input."""
    if log in ("", "-") or _JOURNAL_UNIT.fullmatch(log):
        return
    path = Path(log)
    if not path.is_absolute() or "\0" in log or len(log) > 4096 or any(is_pattern(part) for part in path.parts[:-1]):
        raise ValueError(
            f"invalid log {log[:100]!r}: expected an absolute path whose last part may be a pattern, journal:UNIT,"
            " or - for standard input"
        )


_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[\w.-]{1,63}")


class TargetTable(Struct, frozen=True, kw_only=True):
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
    log: str = ""  # the engine's log: a path, journal:UNIT, or - for standard input

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))
        check_log(self.log)
        if self.name and not TEXT.fullmatch(self.name):
            raise ValueError("name must be one line of at most 200 characters")
        for label, text in self.labels.items():
            one_of("labels", label, TARGET_LABELS)
            if not TEXT.fullmatch(text):
                raise ValueError(f"labels.{label} must be one line of 1 to 200 characters")
        if "role" in self.labels:
            one_of("labels.role", self.labels["role"], ROLES)
        for fact in self.facts:
            if not _NAME.fullmatch(fact):
                raise ValueError(f"facts.{fact}: names of facts have only lower case letters, digits and _")
        _check_tls(self)
        check_prefixes(self.prefixes)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout, 0.1, 60)


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
        if self.node and not HOST.fullmatch(self.node):
            raise ValueError("node must be the name of the node in the cluster, as in `kubectl get nodes`")
        if self.selector and not _SELECTOR.fullmatch(self.selector):
            raise ValueError("selector must be written as for kubectl, such as app=vllm,tier!=test")
        for namespace in self.namespaces:
            if not re.fullmatch(r"[a-z0-9-]{1,63}", namespace):
                raise ValueError(f"namespaces: {namespace!r} is not the name of a namespace")
        if not _LABEL_KEY.fullmatch(f"{self.annotation}/scrape"):
            raise ValueError("annotation must be the part before the slash, such as prometheus.io")
        for port in self.ports:
            if port == "" or (isinstance(port, int) and not 0 < port < 65536):
                raise ValueError("ports must be names of ports or numbers from 1 to 65535")
        for key in (*self.pool, *self.role, *self.hardware):
            if not _LABEL_KEY.fullmatch(key):
                raise ValueError(f"{key!r} is not the name of a pod label")
        if self.server and not normal_url(self.server).startswith("https://"):
            raise ValueError("server must be an https URL, because kvitals sends a token there")
        _check_tls(self)
        check_seconds("timeout", self.timeout, 0.1, 60)


def _check_tls(own: TargetTable | Kubernetes) -> None:
    if own.insecure and own.ca_file:
        raise ValueError("insecure checks no certificate, so ca_file has no effect: remove one of them")
    check_own_certificate(own)
