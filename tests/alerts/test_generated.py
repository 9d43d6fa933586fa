"""What is checked in is what promtool and amtool take."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kvitals.dashboards.generate import GENERATED

RULES = sorted((GENERATED / "prometheus").rglob("*.yaml"))


def said_by(*command: str) -> tuple[int, str]:
    assert shutil.which(command[0]), f"`{command[0]}` is not on PATH: install prometheus and prometheus-alertmanager"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("path", RULES, ids=lambda path: str(path.relative_to(GENERATED)))
def test_promtool_takes_the_rules(path: Path) -> None:
    status, said = said_by("promtool", "check", "rules", str(path))
    assert status == 0, said


def test_there_are_rules_of_both_flavours() -> None:
    assert {path.parent.name for path in RULES} == {"agents", "engines"}


def test_amtool_takes_the_configuration() -> None:
    status, said = said_by("amtool", "check-config", str(GENERATED / "alertmanager" / "alertmanager.yaml"))
    assert status == 0, said


@pytest.mark.parametrize(
    ("labels", "to"),
    [
        ("kvitals_code=LAT01 severity=page", "kvitals-page"),
        ("kvitals_code=KVC04 severity=ticket", "kvitals-ticket"),
        ("alertname=ApiServer5xx code=500 severity=page", "not-kvitals"),
    ],
)
def test_alerts_are_routed_by_severity(labels: str, to: str) -> None:
    config = str(GENERATED / "alertmanager" / "alertmanager.yaml")
    status, said = said_by("amtool", "config", "routes", "test", f"--config.file={config}", *labels.split())
    assert status == 0
    assert to in said.splitlines(), said  # beside a warning of amtool about itself


@pytest.mark.parametrize("flavour", ["agents", "engines"])
def test_the_manifest_has_the_rules_of_the_files(flavour: str, tmp_path: Path) -> None:
    objects = list(yaml.safe_load_all((GENERATED / "kubernetes" / f"rules-{flavour}.yaml").read_text()))
    groups = [group for one in objects for group in one["spec"]["groups"]]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    files = [GENERATED / "prometheus" / flavour / f"{name}.yaml" for name in ("recording", "alerts")]
    assert groups == [g for file in files for g in yaml.safe_load(file.read_text())["groups"]]
    status, said = said_by("promtool", "check", "rules", str(tmp_path / "rules.yaml"))
    assert status == 0, said
