"""The time that a recording may span: each view of it judges a moment every few seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import judge_recording
from kvitals.app.sources.recording_reader import MAX_SPAN_SECONDS, RecordingError, span_of
from kvitals.config import Config, Seconds
from kvitals.config.toml_tables import MAX_WINDOW_SECONDS, AgentTable
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureWriter, Record


def recording(path: Path, times: list[float]) -> Path:
    with CaptureWriter(path, version="0") as writer:
        for t in times:
            writer.write(Record(t, "page", "engine", b""))
    return path


@pytest.mark.parametrize(
    "times",
    [
        [1e9 + i * 365 * 86400 for i in range(500)],
        [1e9, 1e9 + MAX_SPAN_SECONDS + 1],
        [1e9, 1e9 + MAX_SPAN_SECONDS + 1, 1e9 + 5],  # the last record is not the latest
    ],
)
def test_a_recording_of_too_long_a_time_is_rejected(tmp_path: Path, times: list[float]) -> None:
    with pytest.raises(RecordingError, match=r"more than 25 h.*record in parts"):
        span_of(recording(tmp_path / "a.kvcap", times))


def test_a_recording_of_a_day_is_read(tmp_path: Path) -> None:
    assert span_of(recording(tmp_path / "a.kvcap", [1e9, 1e9 + MAX_SPAN_SECONDS])) == (1e9, 1e9 + MAX_SPAN_SECONDS)


def test_a_recording_is_judged_with_the_longest_window() -> None:
    """What is held beside the window is no longer than a configuration allows."""
    config = Config(agent=AgentTable(window=Seconds(MAX_WINDOW_SECONDS)))
    assert judge_recording(HEAVY_TENANT, Setup(load(), config)).document.causes
