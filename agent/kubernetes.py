"""The pods of one node as targets, from the Kubernetes API.

    found = await Pods(config.kubernetes).list()    # raises KubernetesError, which says what to do

The pods are listed anew each time and not watched. A watch is a connection to keep, resume and repair, for a list of
a few dozen pods that an engine takes minutes to join: it would be most of this file and gain a few seconds. A listing
of one node's pods is answered from an index, and the selector leaves the engines of it.

The token and the CA's certificate are read for every listing, since both are replaced while they are mounted.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from kvitals.agent.workers import Worker, WorkerHungError
from kvitals.config import ROLES, Kubernetes, TargetTable
from kvitals.series.files import read_certificates
from kvitals.series.secret_file import SecretError, secret
from kvitals.series.undecodable import UNDECODABLE

if TYPE_CHECKING:
    import aiohttp

MAX_PAGE_BYTES = 8 << 20
MAX_PODS = 1000
MAX_PAGES = 50
MAX_NOTES = 10
PODS_A_PAGE = 100
MAX_SECONDS = 7 * 86400.0
"""A pod that waited longer for a node, or may take longer to end, is no measurement of a start or an end."""
_CHUNK = 1 << 16
_SCHEDULED = ("PodScheduled", "True")

_GIVE = "give its service account a Role or ClusterRole that allows the verb list on pods (apiGroups [''])"
_ROLE_WORDS = {"both": "unified", "prefill-decode": "unified", "scheduler": "router"}
"""Roles in the words of others: llm-d's for both phases in one engine, and the router of SGLang's role-based
groups."""


class KubernetesError(Exception):
    """The pods can not be listed. The message says why and what to do."""


@dataclass(frozen=True)
class DiscoveredPods:
    """Targets, and in words which pods can not be targets and why."""

    targets: tuple[TargetTable, ...] = ()
    notes: tuple[str, ...] = ()


class _Meta(Struct):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    created: Any = msgspec.field(name="creationTimestamp", default=None)


class _Port(Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(Struct, rename="camel"):
    ports: list[_Port] | None = None
    restart_policy: str = ""


class _Spec(Struct, rename="camel"):
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None
    grace_seconds: Any = msgspec.field(name="terminationGracePeriodSeconds", default=None)

    @property
    def ports(self) -> list[_Port]:
        """Ports of all containers that stay: a container of the start that always restarts is a sidecar."""
        sidecars = [c for c in self.init_containers or [] if c.restart_policy == "Always"]
        return [port for container in (*self.containers, *sidecars) for port in container.ports or []]


class _Condition(Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: Any = ""
    last_transition_time: Any = None


class _Running(Struct, rename="camel"):
    started_at: Any = None


class _State(Struct):
    running: _Running | None = None


class _ContainerStatus(Struct, rename="camel"):
    restart_count: Any = 0
    state: _State | None = None


class _Status(Struct, rename="camel"):
    phase: str = ""
    ip: str = msgspec.field(name="podIP", default="")
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _Pod(Struct):
    metadata: _Meta
    spec: _Spec
    status: _Status


class _ListMeta(Struct, rename={"next": "continue"}):
    next: str = ""


class _PodList(Struct):
    items: list[_Pod] | None = None
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


class _PassedError(Exception):
    """The place in the listing is no longer known."""


_decoder = msgspec.json.Decoder(_PodList)


class Pods:
    """Lists the pods that [kubernetes] asks for."""

    def __init__(self, config: Kubernetes, env: Mapping[str, str] = os.environ) -> None:
        self._config = config
        self._env = env
        self._files = Worker("kubernetes files")

    async def list(self) -> DiscoveredPods:
        """The running pods of the node, as targets. Raises KubernetesError."""
        fields = f"spec.nodeName={self._config.node},status.phase=Running"
        return _found(await self._list(fields), self._config)

    async def unschedulable(self) -> dict[str, int]:
        """How many pods that the selector matches find no node, by pool, on no node and so the same for each agent.
        Raises KubernetesError."""
        waiting = [pod for pod in await self._list("status.phase=Pending") if _is_unschedulable(pod)]
        return Counter(_labels(pod.metadata.labels or {}, self._config).get("pool", "") for pod in waiting)

    async def _list(self, fields: str) -> Sequence[_Pod]:
        """The pods that a field selector and the configuration ask for. Raises KubernetesError."""
        import aiohttp

        config = self._config
        server = self._server()
        try:
            token, tls = await self._files.run(lambda: (self._token(), self._tls()), config.timeout)
        except WorkerHungError as error:
            raise KubernetesError(f"token_file or server_ca_file cannot be read: {error}; check their disk") from error
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with asyncio.timeout(config.timeout), aiohttp.ClientSession(auto_decompress=False) as session:
                pods: list[_Pod] = []
                for namespace in config.namespaces or ("",):
                    where = f"{server}/api/v1/namespaces/{namespace}/pods" if namespace else f"{server}/api/v1/pods"
                    listing = _Listing(session, where, headers, tls, config, fields)
                    pods += await listing.all()
        except TimeoutError:
            raise KubernetesError(f"{server} did not answer within {config.timeout:g} s; kvitals retries") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise KubernetesError(
                f"{server}: its certificate is not signed by {config.server_ca_file} "
                f"({error.certificate_error}); check server_ca_file"
            ) from error
        except aiohttp.ClientError as error:
            raise KubernetesError(f"{server} cannot be reached ({str(error)[:200]}); check server") from error
        return pods

    def _server(self) -> str:
        if self._config.server:
            return self._config.server.rstrip("/")
        host, port = self._env.get("KUBERNETES_SERVICE_HOST"), self._env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise KubernetesError(
                "this is not a pod ($KUBERNETES_SERVICE_HOST is not set); outside of the cluster write server = "
                "and token_file = in [kubernetes]"
            )
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def _token(self) -> str:
        try:
            return secret(self._config.token_file)
        except SecretError as error:
            raise KubernetesError(
                f"no token: {error}; is automountServiceAccountToken off in the pod's template?"
            ) from error

    def _tls(self) -> ssl.SSLContext:
        file = self._config.server_ca_file
        try:
            return ssl.create_default_context(cadata=read_certificates(file))
        except OSError as error:
            raise KubernetesError(f"no certificates in server_ca_file {file} ({error})") from error


@dataclass
class _Listing:
    """One listing of pods, page by page."""

    session: aiohttp.ClientSession
    where: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext
    config: Kubernetes
    fields: str  # a field selector

    async def all(self) -> list[_Pod]:
        """All pages; from the beginning once more where the API forgot the place."""
        try:
            return await self._pages()
        except _PassedError:
            pass
        try:
            return await self._pages()
        except _PassedError:
            raise KubernetesError(f"{self.where} changes faster than kvitals can list it; kvitals retries") from None

    async def _pages(self) -> list[_Pod]:
        pods: list[_Pod] = []
        place = ""
        for _ in range(MAX_PAGES):
            page = await self._page(place)
            pods += page.items or []
            place = page.metadata.next
            if len(pods) > MAX_PODS:
                break
            if not place:
                return pods
        raise KubernetesError(f"more than {MAX_PODS} pods; select fewer with selector or namespaces")

    async def _page(self, place: str) -> _PodList:
        query = {"fieldSelector": self.fields, "limit": str(PODS_A_PAGE)}
        query |= {"labelSelector": self.config.selector} if self.config.selector else {}
        query |= {"continue": place} if place else {}
        headers = {**self.headers, "Accept": "application/json", "Accept-Encoding": "identity"}
        async with self.session.get(
            self.where, params=query, headers=headers, ssl=self.tls, allow_redirects=False
        ) as response:
            if response.status != 200:
                response.close()
                raise self._refusal(response.status)
            body = bytearray()
            async for part in response.content.iter_chunked(_CHUNK):
                body += part
                if len(body) > MAX_PAGE_BYTES:
                    response.close()
                    raise KubernetesError(f"{self.where} answered with more than {MAX_PAGE_BYTES} bytes; not read")
        try:
            return _decoder.decode(body)
        except UNDECODABLE as error:
            raise KubernetesError(f"{self.where} did not answer with a list of pods ({error}); check server") from error

    def _refusal(self, status: int) -> Exception:
        if status == 410:
            return _PassedError()
        means = {
            400: f"HTTP 400: the server does not understand the selector {self.config.selector!r}",
            401: f"HTTP 401: the token in {self.config.token_file} has expired or belongs to another cluster",
            403: f"HTTP 403: kvitals may not list pods; {_GIVE}",
            404: "HTTP 404: this is not a Kubernetes API; check server",
            429: "HTTP 429: the API is overloaded; kvitals retries",
        }
        return KubernetesError(f"{self.where}: {means.get(status, f'HTTP {status}; kvitals retries')}")


def _found(pods: Sequence[_Pod], config: Kubernetes) -> DiscoveredPods:
    targets: list[TargetTable] = []
    notes: list[str] = []
    for pod in pods:
        if not _is_wanted(pod, config):
            continue
        try:
            targets.append(_target(pod, config))
        except ValueError as error:
            notes.append(f"pod {pod.metadata.namespace}/{pod.metadata.name}: {error}")
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"and {len(notes) - MAX_NOTES} more pods that cannot be targets"]
    return DiscoveredPods(tuple(targets), tuple(notes))


def _is_wanted(pod: _Pod, config: Kubernetes) -> bool:
    """Whether it runs and is meant to be scraped. Without a selector only what is annotated is meant."""
    if pod.status.phase != "Running" or not pod.status.ip:
        return False
    scrape = (pod.metadata.annotations or {}).get(f"{config.annotation}/scrape", "").lower()
    return scrape == "true" or (scrape != "false" and bool(config.selector) and not config.annotated)


def _target(pod: _Pod, config: Kubernetes) -> TargetTable:
    """Raises ValueError, which says what is wrong with the pod."""
    said = {
        name: (pod.metadata.annotations or {}).get(f"{config.annotation}/{name}", "")
        for name in ("port", "path", "scheme")
    }
    ip = ip_address(pod.status.ip)
    host = f"[{ip}]" if ip.version == 6 else str(ip)
    path = f"/{said['path'].lstrip('/')}" if said["path"] else ""
    return TargetTable(
        url=f"{said['scheme'] or 'http'}://{host}:{_port(pod, said['port'], config)}{path}",
        name=f"{pod.metadata.namespace}/{pod.metadata.name}",
        facts=_facts(pod),
        labels=_labels(pod.metadata.labels or {}, config),
        bearer_file=config.bearer_file,
        ca_file=config.ca_file,
        cert_file=config.cert_file,
        key_file=config.key_file,
        insecure=config.insecure,
    )


def _port(pod: _Pod, annotated: str, config: Kubernetes) -> int:
    if annotated:
        if annotated.isascii() and annotated.isdecimal() and len(annotated) < 6:
            return int(annotated)
        raise ValueError(f"the annotation {config.annotation}/port must be a number, not {annotated[:50]!r}")
    by_name = {port.name: port.container_port for port in reversed(pod.spec.ports)}
    for wanted in config.ports:
        if isinstance(wanted, int) or wanted in by_name:
            return wanted if isinstance(wanted, int) else by_name[wanted]
    names = ", ".join(map(str, config.ports))
    raise ValueError(f"it has no port named {names}: annotate it with {config.annotation}/port, or set ports")


def _labels(pod: Mapping[str, str], config: Kubernetes) -> dict[str, str]:
    """Our labels, each from the first of the pod's that has a value; a role only where it is one that we know."""
    roles = [_ROLE_WORDS.get(word, word) for key in config.role if (word := pod.get(key, "").lower())]
    found = {
        "node": config.node,
        "pool": next((pod[key] for key in config.pool if pod.get(key)), ""),
        "hardware": next((pod[key] for key in config.hardware if pod.get(key)), ""),
        "role": next((role for role in roles if role in ROLES), ""),
    }
    return {name: value for name, value in found.items() if value}


def _is_unschedulable(pod: _Pod) -> bool:
    """Whether the scheduler found no node for it."""
    return any(
        (c.type, c.status, c.reason) == ("PodScheduled", "False", "Unschedulable") for c in pod.status.conditions or []
    )


def _facts(pod: _Pod) -> dict[str, float]:
    """The seconds that the API states of the start and end of a pod. A time that is missing or absurd is left out."""
    scheduled = next(
        (_time(c.last_transition_time) for c in pod.status.conditions or [] if (c.type, c.status) == _SCHEDULED), None
    )
    grace = pod.spec.grace_seconds
    facts = {
        "provision_seconds": _between(_time(pod.metadata.created), scheduled),
        "pull_seconds": _between(scheduled, _first_start(pod.status)),
        "drain_seconds": float(grace) if type(grace) is int and 0 <= grace <= MAX_SECONDS else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _first_start(status: _Status) -> datetime | None:
    """When the last container of the pod was started; None once one was restarted, which overwrites its first start."""
    containers = status.container_statuses or []
    if any(container.restart_count != 0 for container in containers):
        return None
    starts = [
        _time(c.state.running.started_at) for c in containers if c.state is not None and c.state.running is not None
    ]
    known = [start for start in starts if start is not None]
    return max(known) if known and len(known) == len(containers) else None


def _time(text: object) -> datetime | None:
    """A time of the API, which is RFC 3339; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds between two times; None where one is missing, or where they are not those of one start."""
    if start is None or end is None:
        return None
    try:
        seconds = (end - start).total_seconds()
    except OverflowError:
        return None
    return seconds if 0 <= seconds <= MAX_SECONDS else None
