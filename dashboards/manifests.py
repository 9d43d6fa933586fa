"""Manifests for Kubernetes: rules, boards, and autoscalers on signals that lead. Monitors for the Prometheus Operator
are the chart's: they need its port, certificate and token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from kvitals.dashboards.alerts_yaml import dump
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge

FOLDER = "kubernetes"
NAMESPACE = "monitoring"
SELECTED = {"app.kubernetes.io/name": "kvitals"}
BOARD_LABEL = {"grafana_dashboard": "1"}
"""What the sidecar of Grafana's chart looks for."""

MAX_OBJECT_BYTES = 200_000
"""Of one object as JSON. `kubectl apply` keeps an object in an annotation of 262,144 bytes; the Prometheus Operator
refuses rules above 524,288 bytes."""

_RULES_NOTE = """\
For the Prometheus Operator: one object for each group of rules. Add the labels that the ruleSelector of your Prometheus
selects. Apply with: kubectl apply --server-side -f FILE"""
_SCALER_NOTE = """\
An example for KEDA: replace the names and numbers with your own.

Calculate what a trigger can achieve. A new replica serves `cold` seconds after the request for it: scheduling, image,
weights, captured graphs, and a first cache. A signal that leads by `lead` seconds saves that time. The rest is
  gap = cold - lead
During the gap the existing replicas must carry the rise. So choose the threshold by free capacity, not by the
objective:
  threshold = limit - slope * gap
where `limit` is the level at which the objective breaks, and `slope` is the speed of your steepest rise towards it.
{lead}
Measure `cold` once: from the pod's creation to its first request within the objective. If the gap is
longer than a threshold can cover, keep spare replicas (minReplicaCount): no trigger replaces them.
pollingInterval and your rules' evaluation interval are both part of `cold`."""
_MEASURED = """\
Measured on a real vLLM (docs/measured.md, five runs): the first stage of a cascade was detectable 16 to 22 s before
the objective for first tokens was missed. The second stage, on which this trigger scales, was detectable 8 to 21 s
before. A gap of cold - 8 is short enough to shed load, or to use replicas that are already warm. If cold is minutes,
the gap is too long."""
_UNMEASURED = """\
The lead depends on how fast your load rises; it was not measured."""


class ManifestError(Exception):
    """An object that a cluster does not take."""


def files(knowledge: Knowledge, rules: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Every manifest but the boards', by its path. `rules`: flavour -> groups. Raises ManifestError."""
    found = {f"{FOLDER}/{name}": text for name, text in scalers(knowledge).items()}
    for flavour, groups in rules.items():
        objects = [_rule(flavour, group) for group in groups]
        found[f"{FOLDER}/rules-{flavour}.yaml"] = dump(*objects, note=_RULES_NOTE)
    return found


def boards(made: Mapping[str, str]) -> dict[str, str]:
    """Boards as ConfigMaps, one each: together they are larger than one may be. `made`: path -> text."""
    found = {}
    for path in map(PurePosixPath, made):
        found[f"{FOLDER}/boards/{path.stem}.yaml"] = dump(_board(path.stem, made[str(path)]))
    return found


def _board(name: str, text: str) -> dict[str, Any]:
    about = _meta(f"kvitals-board-{name}", BOARD_LABEL)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {f"{name}.json": text}}


def _meta(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE, "labels": {**SELECTED, **(labels or {})}}


def _rule(flavour: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """A group of rules as an object, named for the group. Raises ManifestError where it is too large to be applied."""
    made = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _meta(f"kvitals-{flavour}-{group['name'].removeprefix('kvitals-')}"),
        "spec": {"groups": [group]},
    }
    if (size := len(json.dumps(made))) > MAX_OBJECT_BYTES:
        raise ManifestError(
            f"group {group['name']} has {size} bytes, but an object may have {MAX_OBJECT_BYTES}: move some of its"
            " signals or rules to another group"
        )
    return made


def scalers(knowledge: Knowledge) -> dict[str, str]:
    """One autoscaler for each signal that says early that more is needed."""
    queue = knowledge.rules["SCH10"]
    full = knowledge.rules["KVC01"].params["kv_high"].default
    examples = {
        "keda-queue.yaml": (
            "drain_seconds",
            "max",
            "1",
            _UNMEASURED,
            f"how long the queue takes to drain; {queue.title}",
        ),
        "keda-kv.yaml": ("kv_usage_p90", "avg", f"{full:g}", _UNMEASURED, "how much of the KV cache is pinned"),
        "keda-cascade.yaml": ("cascade_stage", "max", "2", _MEASURED, "the stage of an eviction cascade"),
    }
    found = {}
    for name, (signal, fold, threshold, lead, what) in examples.items():
        assert signal in knowledge.signals
        query = f'{fold}({SIGNAL_PREFIX}{signal} and on (cluster, node, engine) kvitals_target_up{{pool="chat"}})'
        found[name] = dump(
            _scaled(signal.replace("_", "-"), query, threshold),
            note=f"On {what}.\n{_SCALER_NOTE.format(lead=lead)}",
        )
    return found


def _scaled(name: str, query: str, threshold: str) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": f"vllm-on-{name}", "namespace": "serving"},
        "spec": {
            "scaleTargetRef": {"name": "vllm"},
            "pollingInterval": 5,
            "cooldownPeriod": 600,
            "minReplicaCount": 2,
            "maxReplicaCount": 8,
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "Value",
                    "metadata": {
                        "serverAddress": "http://prometheus-operated.monitoring:9090",
                        "query": query,
                        "threshold": threshold,
                        "ignoreNullValues": "false",
                    },
                }
            ],
        },
    }
