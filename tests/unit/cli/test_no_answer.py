"""What commands say, and end with, where there is no answer."""

from pathlib import Path

import pytest

from kvitals.app.demo import FOLDER
from kvitals.ui.cli.launch import interrupted_code
from tests.support.command import answer


@pytest.mark.parametrize("command", ["triage", "cache", "trace", "whatif"])
def test_a_recording_without_a_record_is_called_so(command: str, tmp_path: Path) -> None:
    """Some advised to restart the engine with a flag."""
    cut = tmp_path / "cut.kvcap"
    cut.write_bytes((FOLDER / "healthy.kvcap").read_bytes()[:300])
    said = answer([command, str(cut)])
    assert said.code == 2
    assert "cut.kvcap has no record that can be read: the recording is cut off" in " ".join(said.err.split())


def test_a_grafana_that_cannot_be_reached_is_unknown() -> None:
    said = answer(["lint", "http://127.0.0.1:9"])
    assert said.code == 3
    assert "http://127.0.0.1:9 cannot be reached (Connection refused)" in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["record", "--replay", "a.kvcap"], 130),
        (["record", "--replay", "a.kvcap", "--serve"], 0),
        (["record", "http://127.0.0.1:8000", "--out", "a.kvcap"], 0),
        (["web"], 0),
        (["triage"], 130),
    ],
)
def test_ctrl_c_is_no_verdict(words: list[str], code: int) -> None:
    assert interrupted_code(words) == code
