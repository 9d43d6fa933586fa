"""`kvitals whatif SOURCE --set` on recorded changes of a real vLLM."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvitals.app import engine_twin
from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.engine_twin import advised_settings
from kvitals.app.timeseries_sources import of_recording
from kvitals.diagnoser.twin.settings import changes_of, settings_now
from kvitals.ui.cli.main import main
from tests.support.recordings import judge, setup

CHANGES = Path(__file__).parents[2] / "captures" / "changes"
LOWERED = str(CHANGES / "slots_lowered.kvcap")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    out = capsys.readouterr()
    return stop.value.code, out.out, out.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = run(capsys, "whatif", *arguments, "--json")
    (only,) = json.loads(out)
    assert isinstance(only, dict)
    assert code == (3 if only["no_prediction"] else 0)
    return only


def test_more_slots_shorten_the_queue(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, LOWERED, "--set", "max-num-seqs=8")
    rows = {row["name"]: row for row in told["quantities"]}
    assert told["no_prediction"] == ""
    assert told["changes"] == [{"flag": "max-num-seqs", "now": 2.0, "to": 8.0}]
    assert rows["ttft_p50_seconds"]["predicted"] < 0.3 * rows["ttft_p50_seconds"]["measured"]
    assert rows["finished_per_second"]["predicted"] > rows["finished_per_second"]["measured"]
    for row in rows.values():
        if row["predicted"] is not None:
            assert row["low"] <= row["predicted"] <= row["high"]
    assert document(capsys, LOWERED, "--set", "max-num-seqs=8") == told


def test_a_table_has_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "whatif", "--capture", LOWERED, "--set", "max-num-seqs=8")
    assert code == 0
    assert "--max-num-seqs 2 → 8" in out
    assert "90% range" in out
    assert "--max-num-batched-tokens is not reported: 2048 is assumed" in out


def test_the_settings_that_a_triage_advises(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, LOWERED, "--set", "advised")
    (change,) = told["changes"]
    assert change["flag"] == "max-num-seqs"
    assert change["to"] > 2
    code, _, err = run(capsys, "whatif", "--history", "--set", "advised")
    assert code == 2
    assert err


def test_an_unknown_cache_is_not_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, LOWERED, "--set", "num-gpu-blocks-override=4096")
    assert "--kv-events-config" in told["no_prediction"]
    assert all(row["predicted"] is None for row in told["quantities"])
    assert told["quantities"][0]["measured"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LOWERED, "--set", "gpu=1"), "does not know --gpu"),
        ((LOWERED, "--set", "max-num-seqs=many"), "a whole number above 0"),
        ((LOWERED, "--set", "enable-prefix-caching=2x"), "true or false"),
        (("--trace", "t.jsonl", "--set", "max-num-seqs=4"), "a trace contains no step times"),
        ((LOWERED, "--set", "max-num-seqs=4", "--curve"), "only one of them"),
        ((), "name the lookups to replay"),
    ],
)
def test_bad_use_is_explained(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run(capsys, "whatif", *arguments)
    assert code == 2
    assert message in " ".join(err.split())


FEW_SLOTS = str(Path(__file__).parents[3] / "app" / "demo" / "few_slots.kvcap")
CASCADE = str(Path(__file__).parents[3] / "app" / "demo" / "with_kv_events" / "eviction_cascade.kvcap")


@pytest.mark.parametrize(
    ("source", "setting"),
    [
        (FEW_SLOTS, "max-num-seqs=2"),
        (FEW_SLOTS, "enable-prefix-caching=true"),
        (CASCADE, "num-gpu-blocks-override=192"),
    ],
)
def test_the_present_setting_predicts_the_measured_present(
    capsys: pytest.CaptureFixture[str], source: str, setting: str
) -> None:
    """25.3 requests waiting were predicted for the slots in force, with which 6.5 were measured."""
    told = document(capsys, source, "--set", setting)
    assert told["no_prediction"] == ""
    for row in told["quantities"]:
        assert row["predicted"] == pytest.approx(row["measured"]), row["name"]
        assert row["low"] <= row["predicted"] <= row["high"]
    assert any("The setting is the present one" in note for note in told["notes"])


@pytest.mark.parametrize("slots", [3, 4, 64])
def test_no_more_requests_finish_than_arrive(capsys: pytest.CaptureFixture[str], slots: int) -> None:
    """9.5/s were predicted where 8.7/s arrived."""
    told = document(capsys, FEW_SLOTS, "--set", f"max-num-seqs={slots}")
    rows = {row["name"]: row for row in told["quantities"]}
    assert rows["finished_per_second"]["measured"] <= rows["finished_per_second"]["predicted"] <= 8.72
    (note,) = told["notes"]
    assert note.startswith("8.69 requests/s arrive: no more than these finish")


def test_a_switch_is_shown_as_true_or_false(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "whatif", FEW_SLOTS, "--set", "enable-prefix-caching=false")
    assert "--enable-prefix-caching true → false" in out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("max-num-seqs=4", "max-num-seqs=8"), "the same setting is given twice"),
        (("max-num-seqs=4", "max-num-active-seqs=8"), "the same setting is given twice"),
        (("max-num-seqs=4096", "max-num-batched-tokens=64"), "vLLM does not start with more slots (4,096) than tokens"),
        (("max-num-seqs=9999999",), "set max-num-batched-tokens to at least max-num-seqs"),
    ],
)
def test_settings_with_which_no_engine_starts_are_refused(
    capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], message: str
) -> None:
    """They had a full prediction without a note."""
    asked = [word for one in settings for word in ("--set", one)]
    code, _, err = run(capsys, "whatif", LOWERED, *asked)
    assert code == 2 and message in err


def test_a_cache_that_no_prompt_fits_in_is_not_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """It was predicted to finish 0 requests per second with 0 that wait, while 13.7 arrived."""
    told = document(capsys, CASCADE, "--set", "num-gpu-blocks-override=2")
    assert "the longest prompt has" in told["no_prediction"]


def test_what_is_only_noted_advises_no_setting() -> None:
    """`whatif --set advised` simulated a flag of a note that the triage does not print."""
    document = judge(HEAVY_TENANT.with_name("few_slots.kvcap"), setup()).document
    assert [one.code for one in advised_settings(document)]
    noted = replace(document, causes=[], symptoms=[], notes=[*document.causes, *document.notes])
    assert advised_settings(noted) == []


def test_an_engine_without_the_setting_does_not_refuse_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One engine of a fleet had no known system: "the twin of this engine does not know it: choose one of none"."""
    with of_recording(Path(LOWERED), setup()) as source:
        (subject,) = engine_twin.twin_subjects(source)
        other = dataclasses.replace(subject, title="other", system="")
        monkeypatch.setattr(engine_twin, "twin_subjects", lambda *_: [other, subject])
        told, refused = engine_twin.forecasts(source, ["max-num-seqs=16"])
    assert told.title == subject.title and not told.no_prediction
    assert (refused.title, refused.changes) == ("other", [])
    assert refused.no_prediction == "there is no twin of an engine whose system is unknown"


def test_assumed_slots_stand_in_no_refusal() -> None:
    """ "vLLM does not start with more slots (1,073,741,824) than tokens of a step (4,096)": nobody had set so many."""
    known = settings_now({"token_budget": 8192.0}, 3.0, waited=False, largest_step=100.0)
    assert [one.to for one in changes_of(["max-num-batched-tokens=4096"], "vllm", known)] == [4096.0]
