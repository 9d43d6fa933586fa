"""Pods as targets, from a stand-in of the API over TLS with a certificate authority of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvitals.agent import kubernetes
from kvitals.agent.collectors.boundary import CollectorError
from kvitals.agent.kubernetes import KubernetesError, Pods
from kvitals.agent.node import Node
from kvitals.agent.pending_pods_collector import PendingPodsCollector
from kvitals.agent.records import PendingPodsRecord
from kvitals.config import AgentTable, Config, Kubernetes, Seconds
from kvitals.series.promql import evaluate

AUTHORITY = trustme.CA()
SERVER = AUTHORITY.issue_cert("127.0.0.1")


def pod(name: str, ip: str = "10.0.0.1", **more: Any) -> dict[str, Any]:
    """A pod as the API has it, with the parts that a listing always has. Ports: name -> number."""
    ports = [{"name": n, "containerPort": p, "protocol": "TCP"} for n, p in more.get("ports", {"http": 8000}).items()]
    return {
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": "0",
            "labels": more.get("labels", {}),
            "annotations": {f"prometheus.io/{key}": value for key, value in more.get("annotations", {}).items()},
        },
        "spec": {
            "nodeName": "gpu-7",
            "containers": [{"name": "engine", "image": "x", "ports": ports}],
            "initContainers": more.get("init", []),
        },
        "status": {"phase": more.get("phase", "Running"), "podIP": ip},
    }


class Api:
    """The stand-in: pages of pods by the namespace asked for, or a refusal."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.page = 100
        self.token = "first"
        self.asked: list[web.Request] = []
        self.answer: web.Response | None = None
        self.gone_once = False
        self.delay = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        await asyncio.sleep(self.delay)
        if request.headers["Authorization"] != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if self.answer is not None:
            return web.Response(
                body=self.answer.body, status=self.answer.status, headers={"Location": "https://127.0.0.1:1"}
            )
        begin = int(request.query.get("continue", "0"))
        if begin and self.gone_once:
            self.gone_once = False
            return web.json_response({"kind": "Status", "reason": "Expired"}, status=410)
        end = begin + min(self.page, int(request.query["limit"]))
        listed = {"kind": "PodList", "items": self.pods[begin:end], "metadata": {"resourceVersion": "1"}}
        if end < len(self.pods):
            listed["metadata"] = {"continue": str(end)}
        return web.json_response(listed)


@pytest.fixture
def api() -> Iterator[Api]:
    yield Api()


@pytest.fixture
async def config(api: Api, tmp_path: Path) -> AsyncIterator[Kubernetes]:
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    SERVER.configure_cert(context)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("first\n")
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    yield Kubernetes(
        node="gpu-7",
        selector="app=vllm",
        server=str(server.make_url("/")),
        server_ca_file=tmp_path / "ca.crt",
        token_file=tmp_path / "token",
        timeout=Seconds(5),
    )
    await server.close()


def changed(config: Kubernetes, **more: Any) -> Kubernetes:
    return msgspec.structs.replace(config, **more)


async def test_what_is_asked(api: Api, config: Kubernetes) -> None:
    await Pods(config).list()
    (asked,) = api.asked
    assert asked.path == "/api/v1/pods"
    assert asked.query["fieldSelector"] == "spec.nodeName=gpu-7,status.phase=Running"
    assert asked.query["labelSelector"] == "app=vllm"
    await Pods(changed(config, namespaces=("a", "b"), selector="")).list()
    assert [one.path for one in api.asked[1:]] == ["/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods"]
    assert "labelSelector" not in api.asked[1].query


async def test_a_pod_becomes_a_target(api: Api, config: Kubernetes) -> None:
    sidecar = {"restartPolicy": "Always", "ports": [{"containerPort": 1, "name": "http"}]}
    api.pods = [
        pod("chat-0", labels={"app.kubernetes.io/instance": "chat", "llm-d.ai/role": "decode"}),
        pod("chat-1", "fd00::1", annotations={"port": "9000", "path": "engine/metrics", "scheme": "https"}),
        pod("pending", "", phase="Pending"),
        pod("failed", phase="Failed"),
        pod("no-address", ""),
        pod("not-this-one", annotations={"scrape": "false"}),
        pod("sidecar", "10.0.0.4", ports={}, init=[{"ports": [{"containerPort": 2}]}, sidecar]),
    ]
    found = await Pods(changed(config, insecure=True, bearer_file=Path("/t"))).list()
    first, second, third = found.targets
    assert (first.url, first.name) == ("http://10.0.0.1:8000", "serving/chat-0")
    assert first.labels == {"node": "gpu-7", "pool": "chat", "role": "decode"}
    assert second.url == "https://[fd00::1]:9000/engine/metrics"
    assert second.insecure and second.bearer_file == Path("/t")
    assert third.url == "http://10.0.0.4:1"
    assert found.notes == ()


STARTED: dict[str, dict[str, Any]] = {
    "metadata": {"creationTimestamp": "2026-11-23T02:00:00Z"},
    "spec": {"terminationGracePeriodSeconds": 30},
    "status": {
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-11-23T02:03:00Z"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-23T02:02:10Z"},
        ],
        "containerStatuses": [
            {"name": "proxy", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-23T02:03:05Z"}}},
            {"name": "engine", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-23T02:03:40Z"}}},
        ],
    },
}
"""The fields of a started pod, as in the API reference of Pod v1."""


def started(**changes: dict[str, Any]) -> dict[str, Any]:
    """A pod with the fields of `STARTED`, some of them changed."""
    made = pod("chat-0")
    for part, fields in STARTED.items():
        made[part] |= {**fields, **changes.get(part, {})}
    return made


async def facts(api: Api, config: Kubernetes, *pods: dict[str, Any]) -> list[dict[str, float]]:
    api.pods = [*pods]
    return [target.facts for target in (await Pods(config).list()).targets]


async def test_a_pod_s_start_and_grace_period_are_facts_of_its_engine(api: Api, config: Kubernetes) -> None:
    assert await facts(api, config, started()) == [
        {"provision_seconds": 130, "pull_seconds": 90, "drain_seconds": 30},
    ]


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"metadata": {"creationTimestamp": "yesterday"}}, {"pull_seconds", "drain_seconds"}),
        ({"metadata": {"creationTimestamp": "2026-11-23T02:00:00"}}, {"pull_seconds", "drain_seconds"}),
        ({"metadata": {"creationTimestamp": 5}}, {"pull_seconds", "drain_seconds"}),
        ({"metadata": {"creationTimestamp": "2027-01-01T00:00:00Z"}}, {"pull_seconds", "drain_seconds"}),
        ({"metadata": {"creationTimestamp": "0001-01-01T00:00:00Z"}}, {"pull_seconds", "drain_seconds"}),
        ({"status": {"conditions": None}}, {"drain_seconds"}),
        ({"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}, {"drain_seconds"}),
        ({"status": {"containerStatuses": None}}, {"provision_seconds", "drain_seconds"}),
        ({"status": {"containerStatuses": [{"restartCount": 3}]}}, {"provision_seconds", "drain_seconds"}),
        ({"status": {"containerStatuses": [{"state": {"waiting": {}}}]}}, {"provision_seconds", "drain_seconds"}),
        ({"spec": {"terminationGracePeriodSeconds": -1}}, {"provision_seconds", "pull_seconds"}),
        ({"spec": {"terminationGracePeriodSeconds": 10**30}}, {"provision_seconds", "pull_seconds"}),
        ({"spec": {"terminationGracePeriodSeconds": "30"}}, {"provision_seconds", "pull_seconds"}),
        ({"spec": {"terminationGracePeriodSeconds": True}}, {"provision_seconds", "pull_seconds"}),
    ],
)
async def test_a_time_that_makes_no_sense_is_no_fact(
    api: Api, config: Kubernetes, changes: dict[str, dict[str, Any]], left: set[str]
) -> None:
    (stated,) = await facts(api, config, started(**changes))
    assert stated.keys() == left


def pending(name: str, pool: str, reason: str = "Unschedulable") -> dict[str, Any]:
    made = pod(name, "", phase="Pending", labels={"app.kubernetes.io/instance": pool} if pool else {})
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": reason}]
    return made


async def test_pods_that_find_no_node_are_counted_by_pool(api: Api, config: Kubernetes) -> None:
    loading = pod("loading", phase="Pending", labels={"app.kubernetes.io/instance": "chat"})
    api.pods = [
        pending("a", "chat"),
        pending("b", "chat"),
        pending("c", ""),
        pending("d", "x", "SchedulingGated"),
        loading,
    ]
    assert await Pods(config).unschedulable() == {"chat": 2, "": 1}
    assert api.asked[0].query["fieldSelector"] == "status.phase=Pending"
    assert api.asked[0].query["labelSelector"] == "app=vllm"


async def test_the_agent_reports_them_for_its_pools_and_others(api: Api, config: Kubernetes) -> None:
    node = Node(Config(kubernetes=config))
    (collector,) = [one for one in node.registry if isinstance(one, PendingPodsCollector)]
    assert collector.supported
    api.pods = [pending("a", "chat")]
    ((_, run),) = collector.reads(()).items()
    (record,) = await run.read()
    assert collector.reads(()) == {}, "it is not due again"
    for t, more in ((1.0, record), (2.0, PendingPodsRecord(t=2.0, pools=("chat",)))):
        node.ingest(msgspec.structs.replace(more, t=t))
        found = evaluate('max by (pool) (kvitals_replicas_unschedulable{pool="chat"})', node.window, t)
        assert not isinstance(found, float)
        assert list(found.values) == [1.0 if t == 1.0 else 0.0]
    api.answer = web.Response(status=403)
    with pytest.raises(CollectorError, match="may not list pods"):
        await run.read()
    await node.close()


def test_without_a_selector_pending_pods_are_not_listed(config: Kubernetes) -> None:
    node = Node(Config(kubernetes=changed(config, selector="")))
    assert not any(one.supported for one in node.registry if isinstance(one, PendingPodsCollector))


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"llm-d.ai/role": "both"}, "unified"),
        ({"llm-d.ai/role": "prefill-decode"}, "unified"),
        ({"nvidia.com/dynamo-component-type": "worker"}, ""),
        ({"nvidia.com/dynamo-component-type": "frontend"}, "frontend"),
        ({"nvidia.com/dynamo-component-type": "worker", "nvidia.com/dynamo-sub-component-type": "Prefill"}, "prefill"),
        ({"rolebasedgroup.workloads.x-k8s.io/role": "scheduler"}, "router"),
        ({"llm-d.ai/role": "encode", "app.kubernetes.io/component": "router"}, "router"),
    ],
)
async def test_roles(api: Api, config: Kubernetes, labels: dict[str, str], role: str) -> None:
    api.pods = [pod("p", labels=labels)]
    (target,) = (await Pods(config).list()).targets
    assert target.labels.get("role", "") == role


@pytest.mark.parametrize(
    ("ports", "declared", "port"),
    [
        (("metrics", "http"), {"http": 8000, "metrics": 9090}, 9090),
        (("metrics", "http"), {"http": 8000}, 8000),
        ((8200, "http"), {"http": 8000}, 8200),
        (("grpc",), {"http": 8000}, None),
    ],
)
async def test_ports(
    api: Api, config: Kubernetes, ports: tuple[str | int, ...], declared: dict[str, int], port: int | None
) -> None:
    api.pods = [pod("p", ports=declared)]
    found = await Pods(changed(config, ports=ports)).list()
    assert [t.url for t in found.targets] == ([f"http://10.0.0.1:{port}"] if port else [])
    assert len(found.notes) == (port is None)


async def test_without_a_selector_only_what_is_annotated_is_meant(api: Api, config: Kubernetes) -> None:
    api.pods = [pod("plain"), pod("asked", "10.0.0.2", annotations={"scrape": "true"})]
    assert [t.name for t in (await Pods(changed(config, selector="")).list()).targets] == ["serving/asked"]
    assert [t.name for t in (await Pods(changed(config, annotated=True)).list()).targets] == ["serving/asked"]
    assert len((await Pods(config).list()).targets) == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"annotations": {"port": "http"}}, "prometheus.io/port must be a number"),
        ({"annotations": {"port": "99999"}}, "is not a URL"),
        ({"annotations": {"scheme": "file", "port": "1"}}, "is not the URL"),
        ({"annotations": {"path": "/x?y=1"}}, "must end with the path"),
        ({"annotations": {"path": "@evil/"}}, "contains a password"),
        ({"ip": "evil.example"}, "does not appear to be an IPv4 or IPv6 address"),
        ({"ports": {}}, "no port named metrics, http"),
        ({"labels": {"app": "x\n"}}, "must be one line"),
    ],
)
async def test_a_strange_pod_stops_nothing(api: Api, config: Kubernetes, more: dict[str, Any], says: str) -> None:
    api.pods = [pod("strange", **more), pod("good", "10.0.0.9")]
    found = await Pods(config).list()
    assert found.targets[-1].name == "serving/good"
    assert all(t.url.startswith("http://10.0.0.") for t in found.targets)
    assert says in found.notes[0] and "serving/strange" in found.notes[0]


async def test_many_strange_pods_are_told_of_shortly(api: Api, config: Kubernetes) -> None:
    api.pods = [pod(f"p{n}", ports={}) for n in range(30)]
    notes = (await Pods(config).list()).notes
    assert len(notes) == kubernetes.MAX_NOTES + 1
    assert notes[-1] == "and 20 more pods that cannot be targets"


async def test_pages_are_followed_and_a_lost_place_is_begun_again(api: Api, config: Kubernetes) -> None:
    api.pods, api.page = [pod(f"p{n}", f"10.0.0.{n}") for n in range(7)], 3
    assert len((await Pods(config).list()).targets) == 7
    assert [one.query.get("continue") for one in api.asked] == [None, "3", "6"]
    api.gone_once = True
    assert len((await Pods(config).list()).targets) == 7


async def test_the_token_is_read_for_every_listing(api: Api, config: Kubernetes) -> None:
    pods = Pods(config)
    await pods.list()
    api.token = "second"
    with pytest.raises(KubernetesError, match=r"HTTP 401: the token in .* has expired or belongs to another cluster"):
        await pods.list()
    config.token_file.write_text("second")
    await pods.list()


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, b"", "does not understand the selector 'app=vllm'"),
        (
            403,
            b"{}",
            "kvitals may not list pods; give its service account a Role or ClusterRole that allows the verb list",
        ),
        (404, b"", "check server"),
        (410, b"", "changes faster than kvitals can list it"),
        (429, b"", "overloaded"),
        (302, b"", "HTTP 302"),
        (500, b"", "HTTP 500"),
        (200, b"<html>", "did not answer with a list of pods"),
        (200, b'{"items": [{"metadata": {}}]}', "did not answer with a list of pods"),
        (200, b'{"items": [' + b" " * (kubernetes.MAX_PAGE_BYTES + 1), "more than 8388608 bytes"),
        (200, b"[" * 100_000, "did not answer with a list of pods"),
        (200, b'{"items": [], "metadata": {"continue": "1"}}', "more than 1000 pods"),
        (200, json.dumps({"items": [pod("p")] * 1001}).encode(), "more than 1000 pods"),
    ],
)
async def test_refusals_say_what_to_do(api: Api, config: Kubernetes, status: int, body: bytes, says: str) -> None:
    api.answer = web.Response(status=status, body=body)
    with pytest.raises(KubernetesError, match=says.replace("(", r"\(")):
        await Pods(config).list()


async def test_nothing_there(config: Kubernetes, tmp_path: Path) -> None:
    other = trustme.CA()
    other.cert_pem.write_to_path(tmp_path / "other.crt")
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    for changes, says in (
        ({"server": "https://127.0.0.1:1"}, "cannot be reached"),
        ({"server_ca_file": tmp_path / "other.crt"}, "check server_ca_file"),
        ({"server_ca_file": tmp_path / "none"}, "no certificates in server_ca_file"),
        ({"server_ca_file": tmp_path / "token"}, "no certificates in server_ca_file"),
        ({"token_file": tmp_path / "none"}, "automountServiceAccountToken"),
        ({"token_file": tmp_path / "empty"}, "no token: .*empty is empty"),
        ({"token_file": tmp_path / "binary"}, "no token: .*binary cannot be read: not plain text"),
    ):
        with pytest.raises(KubernetesError, match=says):
            await Pods(changed(config, **changes)).list()
    with pytest.raises(KubernetesError, match="this is not a pod"):
        await Pods(changed(config, server=""), env={}).list()


async def test_in_a_pod_the_server_is_that_of_the_environment(api: Api, config: Kubernetes) -> None:
    _, _, address = config.server.partition("//")
    host, _, port = address.rstrip("/").partition(":")
    env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    await Pods(changed(config, server=""), env).list()
    assert len(api.asked) == 1


async def test_a_slow_answer_is_given_up(api: Api, config: Kubernetes) -> None:
    api.delay = 5.0
    with pytest.raises(KubernetesError, match=r"did not answer within 0\.2 s"):
        await Pods(changed(config, timeout=Seconds(0.2))).list()


async def test_a_node_follows_its_pods_and_keeps_them_while_the_api_fails(api: Api, config: Kubernetes) -> None:
    api.pods = [pod("a", "127.0.0.1", ports={"http": 9}), pod("b", "127.0.0.1", ports={"http": 10})]
    node = Node(Config(agent=AgentTable(), kubernetes=config))
    await node.open()
    try:
        assert node.targets == ["http://127.0.0.1:9", "http://127.0.0.1:10"]
        api.pods = api.pods[1:]
        assert await node.refresh() == ["http://127.0.0.1:9: no longer named, forgotten"]
        api.answer = web.Response(status=403)
        (line,) = await node.refresh()
        assert "may not list pods" in line and line.endswith("the agent keeps the 1 pods that it knows")
        assert node.targets == ["http://127.0.0.1:10"]
        assert node.sources.failing == ("kubernetes",)
        assert await node.refresh() == []  # said once
        api.answer = None
        api.pods = []
        assert await node.refresh() == ["http://127.0.0.1:10: no longer named, forgotten"]
        assert node.sources.failing == ()
    finally:
        await node.close()


async def test_an_agent_waits_for_pods_and_a_triage_does_not(api: Api, config: Kubernetes) -> None:
    node = Node(Config(kubernetes=config))
    assert await node.open(patient=True) == ["no targets yet; the agent watches them when they appear"]
    api.answer = web.Response(status=403)
    with pytest.raises(Exception, match="may not list pods"):
        await Node(Config(kubernetes=config)).open()
    await node.close()
