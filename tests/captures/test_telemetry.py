"""Recordings in which not the engine is wrong but what is read of it."""

from pathlib import Path

from kvitals.app.sources.recording import judge_recording
from tests.captures.looks import setup_of

FOLDER = Path(__file__).parent / "telemetry"
INCIDENTS = Path(__file__).parent / "incidents"


def test_an_address_of_two_engines_has_no_other_verdict() -> None:
    """It was "No trouble found: 232 of 232 first tokens in time", or a cause made of the counters of both."""
    path = FOLDER / "service.kvcap"
    document = judge_recording(path, setup_of(path)).document
    (finding,) = document.telemetry
    assert (finding.code, document.healthy) == ("TEL12", False)
    assert document.verdict == f"Several processes answer at one address ({finding.entity.title})."
    assert [*document.causes, *document.symptoms, *document.notes] == []
    assert [lever.lever for lever in finding.levers] == ["scrape-each-replica"]


def test_values_that_cannot_be_true_are_warned_of() -> None:
    """SGLang reports a negative size of its weights there; no core check reads it."""
    path = INCIDENTS / "sglang_working_set-3.kvcap"
    (warning,) = judge_recording(path, setup_of(path)).document.coverage.warnings
    assert "reports values that cannot be used: weight_memory_usage_gb (below 0)" in warning


def test_the_row_of_a_late_frontend_names_the_workers_that_are_late_too() -> None:
    """It was "Cause unknown" beside the workers' cause."""
    path = INCIDENTS / "dynamo_kv_full-1.kvcap"
    rows = {row.entity.title: row.verdict for row in judge_recording(path, setup_of(path)).document.engines}
    assert rows["frontend"].endswith("above objective, as on worker-1, worker-2.")
