"""`kvitals knee` and `kvitals knee --audit` as a user would type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvitals.app.pipeline import FAST_SECONDS
from kvitals.diagnoser.operating_point import NOW_SECONDS, Bin
from kvitals.ui.cli import knee
from kvitals.ui.cli.knee import _nearest
from kvitals.ui.cli.main import main

ROOT = Path(__file__).parents[3]
RECORDING = str(ROOT / "app/demo/few_slots.kvcap")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    told = capsys.readouterr()
    return stop.value.code, told.out, told.err


def test_a_recording_has_its_curve_and_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "knee", RECORDING, "--slo", "ttft=500ms")
    assert code == 0
    assert "at a time" in out
    assert "C_max" in out
    assert "slots" in out
    assert "not known: the knee" in out


def test_more_steps_than_fit_into_memory_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """6,000 engines of a Prometheus took 4.6 GB."""
    monkeypatch.setattr(knee, "MAX_STEPS", 1)
    code, _, err = run(capsys, "knee", RECORDING)
    assert code == 2 and "1 engines in" in err and "a longer --step" in err


def test_json_has_numbers_or_null(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "knee", RECORDING, "--json")
    (point,) = json.loads(out)
    assert code == 0
    assert point["knee"] is None
    assert point["entity"]["engine"]
    assert point["unit"] == "tokens"
    assert [one["concurrency"] for one in point["bins"]] == sorted(one["concurrency"] for one in point["bins"])
    assert "NaN" not in out


def test_an_audit_of_one_miss_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "audit", RECORDING)
    assert code == 0
    assert "1 times, and at least 3 are needed" in out
    assert "Ready time: unknown" in out
    code, out, _ = run(capsys, "audit", RECORDING, "--json")
    assert json.loads(out)["audits"][0]["leads"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("knee", "/nowhere.kvcap"), "no file or directory"),
        (("knee", RECORDING, "--history"), "one of"),
        (("knee", RECORDING, "--step", "1s"), "rows are"),
        (("knee", RECORDING, "--from=-1h", "--to=-2h"), "--from must lie before --to"),
        (("audit", "/nowhere.kvcap"), "no file or directory"),
    ],
)
def test_what_can_not_be_done_is_said(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert said in err


def test_without_a_history_it_says_how_one_comes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "kvitals.toml"
    config.write_text(f'[history]\ndirectory = "{tmp_path}"\n')
    code, _, err = run(capsys, "knee", "--config", str(config))
    assert code == 2
    assert "`kvitals run` keeps one" in err


def test_the_load_now_is_that_of_the_window_of_triage_and_stands_at_the_nearest_load() -> None:
    assert NOW_SECONDS == FAST_SECONDS
    bins = [Bin(load, load, load, load, 0.0, None, None, 1, {}) for load in (8.3, 40.0)]
    assert _nearest(33.1, bins) == 1
    assert _nearest(9.0, bins) == 0
