"""What was wrong in verdicts on incidents that were made by others, shown on the recordings that ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.agent.records import FactsRecord, decode
from kvitals.app.pipeline import Pipeline
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.series.recordings import CaptureReader
from tests.captures.looks import cold_look, setup_of

ROOT = Path(__file__).parents[2]
INCIDENTS = ROOT / "tests" / "captures" / "incidents"


def cold(capture: Path) -> Triage:
    """A cold look at the end of a recording."""
    _, last = span_of(capture)
    return cold_look(capture, setup_of(capture), last).triage()


def cold_without_facts(capture: Path, seconds: float = 12.0) -> Triage:
    """The same of a bare metrics page: nobody has read the engine's command line."""
    _, last = span_of(capture)
    pipeline = Pipeline(setup_of(capture), DocumentSource("capture", capture.name))
    with CaptureReader.open(capture) as reader:
        pipeline.node.expect(reader.header.meta)
        pipeline.ingest_recorded(
            record
            for record in reader
            if last - seconds <= record.t <= last and not isinstance(decode(record), FactsRecord)
        )
    pipeline.observe(last, fast=seconds, cold=True)
    return pipeline.triage()


@pytest.mark.parametrize("name", ["prefill_saturated-1", "feeds_of_two_sizes-1", "feeds_of_two_sizes-2"])
def test_a_flood_of_prompts_is_known_without_the_flag_of_the_token_budget(name: str) -> None:
    document = cold_without_facts(INCIDENTS / f"{name}.kvcap")
    assert document.causes[0].code == "SCH05"
    assert document.verdict.startswith(document.causes[0].title)


@pytest.mark.parametrize("name", ["slots_few-1", "documents-1", "uneven-1", "busy_inside-1"])
def test_what_is_no_flood_of_prompts_is_none_without_the_flag_either(name: str) -> None:
    document = cold_without_facts(INCIDENTS / f"{name}.kvcap")
    assert "SCH05" not in {cause.code for cause in document.causes}


def test_a_dozen_requests_that_were_all_in_time_are_healthy() -> None:
    document = cold(INCIDENTS / "spec_good-1.kvcap")
    assert document.healthy is True
    assert document.verdict.startswith("No trouble found: 12 of 12 first tokens in time in 12 s, ")


@pytest.mark.parametrize("name", ["no_reuse_fine-1", "kv_full_fine-1"])
def test_an_information_is_never_the_headline_of_a_healthy_engine(name: str) -> None:
    document = cold(INCIDENTS / f"{name}.kvcap")
    assert document.healthy is True
    assert document.causes == []
    assert document.verdict.startswith("No trouble found: ")


@pytest.mark.parametrize("name", ["slots_few-1", "no_reuse_fine-1"])
def test_the_idle_time_of_a_quarter_of_an_hour_is_not_told_from_twelve_seconds(name: str) -> None:
    document = cold(INCIDENTS / f"{name}.kvcap")
    assert "EFF01" not in {finding.code for finding in document.notes}


def test_eight_bit_keys_are_not_offered_to_an_engine_on_a_cpu() -> None:
    first = cold(INCIDENTS / "kv_full_long_answers-1.kvcap").causes[0]
    assert first.code == "KVC01"
    restarting = [lever for lever in first.levers if lever.restart]
    assert restarting[0].lever == "raise-kv-budget"
    assert "kv-quantization" not in {lever.lever for lever in first.levers}
    setting = restarting[0].setting
    assert setting is not None
    assert (setting.flag, setting.now) == ("--num-gpu-blocks-override", "138")
    assert int(setting.to) > 1.25 * 138  # what those who wait need, at today's blocks of each


def test_clients_that_get_errors_are_seen_on_the_page_of_an_engine_that_looks_healthy() -> None:
    assert "ENG09" in {note.code for note in cold_without_facts(INCIDENTS / "too_long-1.kvcap").notes}


def test_a_restart_before_the_first_look_is_seen() -> None:
    notes = {note.code: note for note in cold(INCIDENTS / "restart_fine-1.kvcap").notes}
    assert "restarts seen: 0" in notes["ENG04"].conclusion
