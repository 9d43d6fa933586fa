"""What is deployed: the Helm chart by Helm itself and against Kubernetes' schemas, the container file by hadolint, the
units by systemd, the compose file by its parts.

    make ship
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml
from cryptography import x509

from kvitals.config import build
from kvitals.dashboards.manifests import MAX_OBJECT_BYTES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/kvitals"
KUBERNETES = "1.34"
SECRET_BYTES = 1 << 20
"""Kubernetes' limit on a Secret, in which Helm keeps a release: the chart's files and what it made of them."""
TAKES_PARTS = '[agent]\nparts_token_file = "/run/secrets/kvitals-remote/token"\n[kubernetes]\nannotated = true\n'
NOTIFY = """\
[notify]
token_file = "/run/secrets/kvitals-notify/token"

[[notify.slack]]
url_file = "/run/secrets/kvitals-notify/slack"
"""
ALL: dict[str, Any] = {
    "secret": "tokens",
    "tenantKey": "tenant-key",
    "config": TAKES_PARTS,
    "remote": {"enabled": True},
    "agent": {"hostPID": True, "runtimeClassName": "nvidia", "history": {"hostPath": "/var/lib/kvitals"}},
    "web": {"enabled": True, "prometheus": "http://prometheus:9090", "passwordSecret": "viewers"},
    "tap": {"enabled": True, "upstream": "http://engine:8000", "router": True},
    "review": {"enabled": True, "prometheus": "http://prometheus:9090", "claim": "reports"},
    "notify": {
        "enabled": True,
        "prometheus": "http://prometheus:9090",
        "config": NOTIFY,
        "secret": "alerts",
        "claim": "queue",
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}
OPERATOR = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator: their schemas are none of Kubernetes'."""


def pages_of(values: dict[str, Any], name: str = "node") -> dict[str, str]:
    with helm.Chart.load(str(CHART)) as chart:
        return dict(chart.render(values, name=name, namespace="serving"))


def rendered(values: dict[str, Any], name: str = "node") -> list[dict[str, Any]]:
    pages = pages_of(values, name)
    texts = [text for name, text in pages.items() if name.endswith((".yaml", ".yml"))]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document["spec"]
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return list(spec.get("template", {}).get("spec", {}).get("containers", []))


def test_helm_lint_has_nothing_to_say() -> None:
    told = helm.lint(str(CHART))
    assert told["errors"] == []
    assert [m["error"] for m in told["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("values", [{}, ALL], ids=["as it comes", "everything on"])
def test_what_the_chart_makes_is_valid_in_strict_mode(values: dict[str, Any]) -> None:
    documents = rendered(values)
    assert documents
    for document in documents:
        if document["kind"] not in OPERATOR:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_a_release_with_everything_on_fits_into_its_secret_with_room_to_grow() -> None:
    ignored = [line for line in (CHART / ".helmignore").read_text().splitlines() if not line.startswith("#")]
    folders = [CHART / "templates", *(CHART / "generated").resolve().iterdir()]
    kept = [one for one in folders if f"generated/{one.name}/" not in ignored]
    assert {one.name for one in kept} == {"templates", "boards", "prometheus"}
    files = [path.read_bytes() for folder in kept for path in folder.rglob("*") if path.is_file()]
    release = {
        "files": [base64.b64encode(file).decode() for file in files],
        "manifest": "\n".join(pages_of(ALL).values()),
    }
    secret = base64.b64encode(gzip.compress(json.dumps(release).encode()))
    assert len(secret) < 0.75 * SECRET_BYTES


@pytest.mark.parametrize("over", ["agents", "engines"])
def test_the_rules_are_objects_that_the_operator_takes(over: str) -> None:
    documents = rendered({"prometheusRule": {"enabled": True, "over": over}})
    rules = [document for document in documents if document["kind"] == "PrometheusRule"]
    names = {document["metadata"]["name"] for document in rules}
    assert len(names) == len(rules) > 10
    assert max(len(json.dumps(document)) for document in rules) < MAX_OBJECT_BYTES


def test_an_interval_that_the_rules_are_not_made_for_is_refused() -> None:
    values = {"remote": {"enabled": True}, "prometheusRule": {"enabled": True}}
    with pytest.raises(helm.HelmError, match=r"serviceMonitor\.interval"):
        rendered({**values, "serviceMonitor": {"enabled": True, "interval": "15s"}})


def test_a_wrong_manifest_would_be_noticed() -> None:
    daemonset = next(d for d in rendered({}) if d["kind"] == "DaemonSet")
    daemonset["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemonset, KUBERNETES, strict=True)


@pytest.mark.parametrize("wrong", [{"agnet": {}}, {"web": {"prometheus": "prometheus:9090"}}, {"tap": {"replicas": 0}}])
def test_values_that_are_not_meant_are_refused(wrong: dict[str, Any]) -> None:
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(wrong)


def test_nobody_has_rights_that_are_not_needed() -> None:
    documents = rendered(ALL)
    rules = [rule for d in documents if d["kind"] == "ClusterRole" for rule in d["rules"]]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    found = [c for d in documents if d["kind"] in {"DaemonSet", "Deployment", "CronJob"} for c in containers(d)]
    assert len(found) == 5
    for container in found:
        context = container["securityContext"]
        assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"] and context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_the_page_s_commands_name_what_the_chart_makes() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    made = {d["metadata"]["name"] for d in rendered({}, name="kvitals") if d["kind"] == "DaemonSet"}
    assert "helm install kvitals " in page and set(re.findall(r"port-forward ds/(\S+)", page)) == made == {"kvitals"}


def test_a_team_without_agents_installs_none() -> None:
    """The rules over engines' own metrics came with a DaemonSet that nobody had asked for."""
    documents = rendered(
        {
            "agent": {"enabled": False},
            "notify": {**ALL["notify"], "claim": ""},
            "web": ALL["web"],
            "prometheusRule": {"enabled": True, "over": "engines"},
        }
    )
    kinds = {d["kind"] for d in documents}
    assert not kinds & {"DaemonSet", "ClusterRole", "ClusterRoleBinding", "ServiceAccount"}
    assert {"Deployment", "PrometheusRule", "NetworkPolicy"} <= kinds
    with pytest.raises(helm.HelmError, match="agent"):
        rendered({"agent": {"enabled": False}, "remote": {"enabled": True}})


def test_notify_reads_the_configuration_and_the_files_that_the_values_name() -> None:
    documents = [d for d in rendered(ALL) if d["metadata"]["name"] == "node-kvitals-notify"]
    made = {d["kind"]: d for d in documents}
    table = build(tomllib.loads(made["ConfigMap"]["data"]["kvitals.toml"]), CHART).notify
    assert table is not None
    spec = made["Deployment"]["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert str(table.token_file) == f"{mounts['secret']}/token"
    assert mounts["state"] == "/var/lib/kvitals"
    assert made["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert made["Service"]["spec"]["ports"][0]["port"] == 9479


@pytest.mark.parametrize("wrong", [{"config": "[notify]"}, {"secret": ""}, {"prometheus": ""}])
def test_a_notify_that_nobody_could_send_to_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        rendered({"notify": {**ALL["notify"], **wrong}})


def test_only_who_makes_the_history_s_folder_ours_is_root_and_may_do_nothing_else() -> None:
    (daemonset,) = (d for d in rendered(ALL) if d["kind"] == "DaemonSet")
    (first,) = daemonset["spec"]["template"]["spec"]["initContainers"]
    assert first["command"] == ["chown", "10001:10001", "/var/lib/kvitals"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    (plain,) = (d for d in rendered({}) if d["kind"] == "DaemonSet")
    assert "initContainers" not in plain["spec"]["template"]["spec"]


def test_the_agent_gets_to_nodes_that_are_kept_for_gpus() -> None:
    (daemonset,) = (d for d in rendered({}) if d["kind"] == "DaemonSet")
    tolerated = daemonset["spec"]["template"]["spec"]["tolerations"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in tolerated


def test_the_tap_tells_the_agent_of_its_node_with_the_token_that_the_agent_takes() -> None:
    documents = rendered(ALL)
    (tap,) = (d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"].endswith("-tap"))
    (container,) = containers(tap)
    (service,) = (d for d in documents if d["kind"] == "Service" and d["spec"].get("internalTrafficPolicy") == "Local")
    assert f"--agent=https://{service['metadata']['name']}.serving.svc:9443" in container["args"]
    token = build(tomllib.loads(TAKES_PARTS), CHART).agent.parts_token_file
    assert f"--token-file={token}" in container["args"]
    (daemonset,) = (d for d in documents if d["kind"] == "DaemonSet")
    key = {"name": "KVITALS_TENANT_KEY_FILE", "value": "/run/secrets/kvitals/tenant-key"}
    assert key in container["env"] and key in containers(daemonset)[0]["env"]


@pytest.mark.parametrize("missing", ["secret", "tenantKey", "config", "remote"])
def test_a_tap_that_no_agent_would_listen_to_is_refused(missing: str) -> None:
    with pytest.raises(helm.HelmError):
        rendered({name: value for name, value in ALL.items() if name != missing})


def agent_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (daemonset,) = (d for d in documents if d["kind"] == "DaemonSet")
    (container,) = containers(daemonset)
    return container


@pytest.mark.parametrize("values", [{}, ALL], ids=["as it comes", "everything on"])
def test_the_agent_s_api_without_tls_is_on_loopback_alone(values: dict[str, Any]) -> None:
    container = agent_of(rendered(values))
    assert "--listen=127.0.0.1:9477" in container["args"]  # before the environment and the file
    assert "KVITALS_LISTEN" not in {one["name"] for one in container["env"]}
    assert all(one["containerPort"] != 9477 for one in container.get("ports", []))
    probes = [container[name]["exec"]["command"][-1] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    asked = [re.search(r"http://127\.0\.0\.1:9477(/-/\w+)", probe) for probe in probes]
    assert [one and one[1] for one in asked] == ["/-/healthy", "/-/healthy", "/-/ready"]


def test_a_probe_s_command_fails_where_the_agent_is_not_ready() -> None:
    class Unready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/-/healthy" else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    container = agent_of(rendered({}))
    with ThreadingHTTPServer(("127.0.0.1", 0), Unready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        statuses = []
        for name in ("livenessProbe", "readinessProbe"):
            _, *arguments = container[name]["exec"]["command"]
            command = [sys.executable, *arguments[:-1], arguments[-1].replace(":9477", f":{server.server_port}")]
            statuses.append(subprocess.run(command, stderr=subprocess.DEVNULL, timeout=30).returncode)
        server.shutdown()
    assert statuses == [0, 1]


def test_nothing_of_the_chart_is_reachable_as_it_comes() -> None:
    documents = rendered({})
    assert not [d for d in documents if d["kind"] in {"Service", "Secret"}]
    policies = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "NetworkPolicy"}
    assert policies["node-kvitals-agent"]["ingress"] == []
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies.values())


def test_every_pod_of_the_chart_has_a_policy_that_opens_only_the_ports_it_serves() -> None:
    documents = rendered(ALL)
    policies = [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]
    pods = [d["spec"].get("jobTemplate", d)["spec"]["template"] for d in documents if "spec" in d and containers(d)]
    opened = {}
    for pod in pods:
        labels = pod["metadata"]["labels"]
        (policy,) = (p for p in policies if p["podSelector"]["matchLabels"].items() <= labels.items())
        ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        assert all(rule["from"] for rule in policy["ingress"])
        opened[labels["app.kubernetes.io/component"]] = ports
    assert opened == {"agent": {9443}, "tap": {8100, 9478}, "web": {8501}, "review": set(), "notify": {9479}}


def test_who_may_reach_what_is_what_the_values_name() -> None:
    named = {"from": "monitoring", "clients": "gateway", "viewers": "ingress", "alertmanagers": "alerts"}
    policy: dict[str, Any] = {key: [{"podSelector": {"matchLabels": {"app": app}}}] for key, app in named.items()}
    policy["agents"] = [{"ports": [{"port": 4317}], "from": [{"podSelector": {}}]}]
    specs = {
        d["metadata"]["name"]: d["spec"] for d in rendered({**ALL, "networkPolicy": policy}) if "ingress" in str(d)
    }
    by_port = {
        port["port"]: [str(peer["podSelector"].get("matchLabels", {}).get("app")) for peer in rule["from"]]
        for name, spec in specs.items()
        if name.startswith("node-kvitals-")
        for rule in spec.get("ingress", [])
        for port in rule["ports"]
    }
    assert by_port == {
        9443: ["monitoring", "None"],
        4317: ["None"],
        8100: ["gateway"],
        9478: ["monitoring"],
        8501: ["ingress"],
        9479: ["alerts"],
    }


def test_the_remote_api_has_a_certificate_for_its_services_and_a_token() -> None:
    documents = rendered(ALL)
    (secret,) = (d for d in documents if d["kind"] == "Secret")
    data = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    assert set(data) == {"tls.crt", "tls.key", "ca.crt", "token"} and re.fullmatch(rb"\w{48}", data["token"])
    certificate, ca = (x509.load_pem_x509_certificate(data[key]) for key in ("tls.crt", "ca.crt"))
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    services = {d["metadata"]["name"] for d in documents if d["kind"] == "Service" and "agent" in str(d["spec"])}
    assert services == {"node-kvitals", "node-kvitals-node"}
    assert {f"{name}.serving.svc" for name in services} <= set(names.get_values_for_type(x509.DNSName))
    (monitor,) = (d for d in documents if d["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"]["serverName"] == "node-kvitals.serving.svc"
    assert endpoint["authorization"]["credentials"] == {"name": secret["metadata"]["name"], "key": "token"}
    text = next(d for d in documents if d["kind"] == "ConfigMap" and "kvitals.toml" in d["data"])["data"][
        "kvitals.toml"
    ]
    remote = build(tomllib.loads(text), CHART).remote
    assert remote is not None and remote.address == ("", 9443)
    (mount,) = (m for m in agent_of(documents)["volumeMounts"] if m["name"] == "remote")
    files = {remote.cert_file: "tls.crt", remote.key_file: "tls.key", remote.token_file: "token"}
    assert {str(file): f"{mount['mountPath']}/{key}" for file, key in files.items()} == {
        str(file): str(file) for file in files
    }


def test_a_secret_of_one_s_own_takes_the_place_of_the_chart_s() -> None:
    documents = rendered({**ALL, "remote": {"enabled": True, "secret": "mine"}})
    assert not [d for d in documents if d["kind"] == "Secret"]
    volumes = [v for d in documents if d["kind"] == "DaemonSet" for v in d["spec"]["template"]["spec"]["volumes"]]
    assert "mine" in {v["secret"]["secretName"] for v in volumes if "secret" in v}


@pytest.mark.parametrize(
    "values",
    [{"serviceMonitor": {"enabled": True}}, {"config": '[remote]\nlisten = ":9443"\n', "remote": {"enabled": True}}],
    ids=["a monitor of an API on loopback", "the table twice"],
)
def test_what_would_not_work_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        rendered(values)


def test_prometheus_finds_each_agent_once() -> None:
    documents = rendered(ALL)
    (monitor,) = (d for d in documents if d["kind"] == "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [d for d in documents if d["kind"] == "Service" and wanted <= d["metadata"]["labels"].items()]
    assert [one["spec"].get("clusterIP") for one in services] == ["None"]


def test_boards_and_rules_of_the_chart_are_the_generated_ones() -> None:
    documents = rendered(ALL)
    generated = ROOT / "dashboards/generated"
    boards = {name: text for d in documents if d["kind"] == "ConfigMap" for name, text in d["data"].items()}
    files = sorted((generated / "boards").glob("*.json"))
    assert files
    for path in files:
        assert boards[f"kvitals-{path.name}"] == path.read_text()
    rules = {d["metadata"]["name"]: d["spec"]["groups"] for d in documents if d["kind"] == "PrometheusRule"}
    paths = sorted((generated / "prometheus/agents").glob("*.yaml"))
    groups = [group for path in paths for group in yaml.safe_load(path.read_text())["groups"]]
    assert rules == {f"node-kvitals-{one['name'].removeprefix('kvitals-')}": [one] for one in groups}


def test_the_chart_is_of_the_product_s_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version


def test_hadolint_has_nothing_to_say_of_the_container_file() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "container/Containerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_would_notice(tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text("FROM debian:latest\nRUN cd /tmp && sudo apt-get install curl\n")
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, tmp_path / "Containerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "DL3004" in done.stdout


def units(tmp_path: Path) -> list[Path]:
    """The units with a program that is there in place of /opt/kvitals/bin/kvitals, which systemd looks for."""
    program = shutil.which("true")
    for path in (DEPLOY / "systemd").iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/kvitals/bin/kvitals", str(program)))
    return sorted(tmp_path.iterdir())


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", *map(str, units(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "kvitals" in line]
    assert done.returncode == 0 and ours == [], done.stderr


def test_systemd_would_notice(tmp_path: Path) -> None:
    service = next(path for path in units(tmp_path) if path.name == "kvitals.service")
    service.write_text(service.read_text().replace("ProtectClock=yes", "ProtectTheClock=yes"))
    command = ["systemd-analyze", "verify", "--man=no", str(service)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "ProtectTheClock" in done.stderr


@pytest.mark.parametrize("unit", ["kvitals.service", "kvitals-tap@.service", "kvitals-review.service"])
def test_systemd_calls_the_units_safe(unit: str, tmp_path: Path) -> None:
    path = next(path for path in units(tmp_path) if path.name == unit)
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stdout[-500:] + done.stderr
    assert float(exposure[1]) < 3.0


def test_every_file_that_the_compose_file_mounts_is_there() -> None:
    place = DEPLOY / "compose"
    compose = yaml.safe_load((place / "docker-compose.yaml").read_text())
    mounts = [m.split(":")[0] for s in compose["services"].values() for m in s["volumes"] if m.startswith(".")]
    assert mounts
    for mount in mounts:
        assert (place / mount).exists(), mount
    build = compose["services"]["kvitals"]["build"]
    assert (place / build["context"] / build["dockerfile"]).is_file()
    for service in compose["services"].values():
        assert service["network_mode"] == "host" and "ports" not in service


def test_compose_s_configuration_is_taken() -> None:
    file = DEPLOY / "compose/kvitals.toml"
    text = file.read_text()
    assert build(tomllib.loads(text), file).notify is None
    example = text.partition("\n# [notify]\n")[2].replace("# ", "")
    assert build(tomllib.loads(f"[notify]\n{example}"), file).notify is not None


def test_what_compose_starts_listens_on_loopback_alone() -> None:
    compose = yaml.safe_load((DEPLOY / "compose/docker-compose.yaml").read_text())["services"]
    assert compose["kvitals"]["environment"]["KVITALS_LISTEN"].startswith("127.0.0.1:")
    assert compose["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    for name in ("prometheus", "alertmanager"):
        assert any(word.startswith("--web.listen-address=127.0.0.1:") for word in compose[name]["command"])


def test_prometheus_takes_compose_s_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "compose/prometheus.yaml").read_text()
    rules = ROOT / "dashboards/generated/prometheus/agents"
    (tmp_path / "prometheus.yaml").write_text(text.replace("/etc/prometheus/kvitals", str(rules)))
    promtool = shutil.which("promtool")
    assert promtool is not None, "Debian: apt-get install prometheus"
    done = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
