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
import tomllib
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from agent.config import build

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/kvitals"
KUBERNETES = "1.34"
SECRET_BYTES = 1 << 20
"""Kubernetes' limit on a Secret, in which Helm keeps a release: the chart's files and what it made of them."""
TAKES_PARTS = '[agent]\nparts_token_file = "/run/secrets/kvitals/parts-token"\n[kubernetes]\nannotated = true\n'
ALL: dict[str, Any] = {
    "secret": "tokens",
    "tenantKey": "tenant-key",
    "config": TAKES_PARTS,
    "agent": {"hostPID": True, "runtimeClassName": "nvidia", "history": {"hostPath": "/var/lib/kvitals"}},
    "web": {"enabled": True, "prometheus": "http://prometheus:9090", "passwordSecret": "viewers"},
    "tap": {"enabled": True, "upstream": "http://engine:8000", "router": True},
    "review": {"enabled": True, "prometheus": "http://prometheus:9090", "claim": "reports"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "networkPolicy": {"enabled": True},
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
    assert len(found) == 4
    for container in found:
        context = container["securityContext"]
        assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"] and context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_the_page_s_commands_name_what_the_chart_makes() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    made = {d["metadata"]["name"] for d in rendered({}, name="kvitals") if d["kind"] == "DaemonSet"}
    assert "helm install kvitals " in page and set(re.findall(r"port-forward ds/(\S+)", page)) == made == {"kvitals"}


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
    assert f"--agent=http://{service['metadata']['name']}.serving.svc:9477" in container["args"]
    token = build(tomllib.loads(TAKES_PARTS), CHART).agent.parts_token_file
    assert f"--token-file={token}" in container["args"]
    (daemonset,) = (d for d in documents if d["kind"] == "DaemonSet")
    key = {"name": "KVITALS_TENANT_KEY_FILE", "value": "/run/secrets/kvitals/tenant-key"}
    assert key in container["env"] and key in containers(daemonset)[0]["env"]


@pytest.mark.parametrize("missing", ["secret", "tenantKey", "config"])
def test_a_tap_that_no_agent_would_listen_to_is_refused(missing: str) -> None:
    with pytest.raises(helm.HelmError):
        rendered({name: value for name, value in ALL.items() if name != missing})


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
    files = sorted((generated / "boards/agent").glob("*.json"))
    assert files
    for path in files:
        assert boards[f"kvitals-{path.name}"] == path.read_text()
    specs = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "PrometheusRule"}
    for path in sorted((generated / "prometheus/agents").glob("*.yaml")):
        assert specs[f"node-kvitals-{path.stem}"] == yaml.safe_load(path.read_text())


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
