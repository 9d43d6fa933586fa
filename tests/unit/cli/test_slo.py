"""Objectives as a user sets them: by model, by class, and on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.ui.cli.main import main

pytestmark = pytest.mark.usefixtures("shared_verdicts")


def triage(capsys: pytest.CaptureFixture[str], config: Path, *arguments: str) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        main(["triage", str(HEAVY_TENANT), "--config", str(config), "--json", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def said(document: dict[str, Any]) -> list[tuple[str, float, str]]:
    return [(one["name"], one["seconds"], one["source"]) for one in document["slo"]]


def symptoms(document: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in document["symptoms"]}


def test_an_objective_of_the_engines_model_judges_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kvitals.toml"
    config.write_text("[slo]\nttft_p99_seconds = 500\nitl_p99_seconds = 50\n")
    assert "LAT01" not in symptoms(triage(capsys, config))
    config.write_text(config.read_text() + "[[objective]]\nmodel = '*[a-z]*'\nttft_p99_seconds = 0.5\n")
    document = triage(capsys, config)
    assert "LAT01" in symptoms(document)
    assert said(document) == [("ttft_p99", 0.5, "configuration"), ("itl_p99", 50.0, "configuration")]


def test_a_class_does_not_judge_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kvitals.toml"
    config.write_text(
        "[slo]\nttft_p99_seconds = 500\nitl_p99_seconds = 50\n[[objective]]\nclass = 'gold'\nttft_p99_seconds = 0.5\n"
    )
    document = triage(capsys, config)
    assert "LAT01" not in symptoms(document)
    assert said(document)[0] == ("ttft_p99", 500.0, "configuration")


def test_the_command_line_comes_before_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kvitals.toml"
    config.write_text("[[objective]]\nttft_p99_seconds = 500\nitl_p99_seconds = 50\n")
    document = triage(capsys, config, "--slo", "ttft=0.5s")
    assert "LAT01" in symptoms(document)
    assert said(document) == [("ttft_p99", 0.5, "command line"), ("itl_p99", 50.0, "configuration")]
