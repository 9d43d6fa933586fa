"""A mute is shown, never silent."""

import json
from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.ui.cli.main import main

pytestmark = pytest.mark.usefixtures("shared_verdicts")

MUTE = """
[[mute]]
rule = "KVC01"
reason = "known, ticket 4711"
"""


def triage(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(["triage", str(HEAVY_TENANT), *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code, capsys.readouterr().out


def test_a_muted_cause_is_no_cause_and_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kvitals.toml").write_text(MUTE)
    code, out = triage(capsys, "--config", str(tmp_path / "kvitals.toml"), "--json")
    document = json.loads(out)
    assert "KVC01" not in {c["code"] for c in document["causes"]}
    assert [(f["code"], f["muted"]) for f in document["muted"]] == [("KVC01", "known, ticket 4711")]
    assert code == 1  # the symptom stays open
    _, text = triage(capsys, "--config", str(tmp_path / "kvitals.toml"))
    assert "Muted: KVC01 " in text and "known, ticket 4711" in text
    assert "known, ticket 4711" in " ".join(text.split())


def test_a_mute_that_has_run_out_mutes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kvitals.toml").write_text(MUTE + "until = 2001-01-01T00:00:00Z\n")
    _, out = triage(capsys, "--config", str(tmp_path / "kvitals.toml"), "--json")
    assert json.loads(out)["causes"][0]["code"] == "KVC01"


def test_a_mute_of_a_rule_that_does_not_exist_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kvitals.toml").write_text(MUTE.replace("KVC01", "KVC99"))
    with pytest.raises(SystemExit):
        main(["triage", str(HEAVY_TENANT), "--config", str(tmp_path / "kvitals.toml")])
    assert "KVC99" in capsys.readouterr().err


def test_a_parameter_can_be_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kvitals.toml").write_text("[params.KVC01]\nkv_high = 2.0\nkv_some = 2.0\n")
    _, out = triage(capsys, "--config", str(tmp_path / "kvitals.toml"), "--json")
    assert "KVC01" not in {c["code"] for c in json.loads(out)["causes"]}
