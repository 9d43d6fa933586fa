"""What a cluster takes: objects of a size that the Prometheus Operator and kubectl allow, and one monitor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvitals.dashboards import manifests
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.generate import GENERATED
from kvitals.rules.loader import load

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = GENERATED / "kubernetes"
ANNOTATION_BYTES = 262_144
"""kubectl's limit on the annotation that holds the last applied object."""


def objects(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


@pytest.mark.parametrize("path", sorted(KUBERNETES.rglob("*.yaml")), ids=lambda p: p.relative_to(KUBERNETES).as_posix())
def test_every_object_is_small_enough_to_be_applied(path: Path) -> None:
    for one in objects(path.read_text()):
        assert len(json.dumps(one)) < 0.95 * ANNOTATION_BYTES, one["metadata"]["name"]


@pytest.mark.parametrize("flavour", ["agents", "engines"])
def test_the_objects_of_rules_have_names_of_their_own(flavour: str) -> None:
    names = [one["metadata"]["name"] for one in objects((KUBERNETES / f"rules-{flavour}.yaml").read_text())]
    assert len(names) == len(set(names)) > 10
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 63 for name in names)


def test_every_part_of_the_chart_is_small_enough() -> None:
    """The chart makes an object of each group."""
    template = (DEPLOY / "helm/kvitals/templates/monitoring.yaml").read_text()
    assert "range $group := (fromYaml" in template and "list $group" in template
    for path in sorted((GENERATED / "prometheus").rglob("*.yaml")):
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]:
            assert len(json.dumps(group)) < manifests.MAX_OBJECT_BYTES, (path.name, group["name"])


def test_a_group_that_is_too_large_is_an_error_that_names_it() -> None:
    group = {"name": "kvitals-own", "rules": [{"record": "r", "expr": "x" * manifests.MAX_OBJECT_BYTES}]}
    with pytest.raises(manifests.ManifestError, match="kvitals-own has 20"):
        manifests.files(load(), {"agents": [group]})


def test_only_the_chart_has_monitors() -> None:
    """Two that select the same pods scrape each agent twice and double every sum; one without the port, the
    certificate and the token of the chart scrapes nothing."""
    kinds = [one["kind"] for path in KUBERNETES.rglob("*.yaml") for one in objects(path.read_text())]
    assert kinds and not [one for one in kinds if one.endswith("Monitor")]


def test_everything_that_scrapes_uses_the_interval_that_the_rules_are_made_for() -> None:
    interval = f"{Options().scrape_seconds:g}s"
    compose = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())["global"]
    assert (compose["scrape_interval"], compose["evaluation_interval"]) == (interval, interval)
    values = yaml.safe_load((DEPLOY / "helm/kvitals/values.yaml").read_text())
    assert values["serviceMonitor"]["interval"] == interval
    template = (DEPLOY / "helm/kvitals/templates/monitoring.yaml").read_text()
    assert f'ne .Values.serviceMonitor.interval "{interval}"' in template
    heads = [path.read_text()[:400] for path in (GENERATED / "prometheus").rglob("recording.yaml")]
    assert len(heads) == 2 and all(f"Scrape every {Options().scrape_seconds:g} s" in head for head in heads)
