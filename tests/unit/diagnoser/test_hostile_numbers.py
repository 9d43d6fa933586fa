"""Pages whose numbers no engine should report: the verdict stands, and a good engine beside it is judged as ever."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.records import ScrapeRecord, decode, encode
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.recording import judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.config import Config
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureReader, CaptureWriter

PAGE = (Path(__file__).parents[2] / "fixtures" / "exposition" / "vllm-0.32-loaded.prom").read_text()
GOOD, BAD = "http://good:8000/metrics", "http://bad:8000/metrics"
SECONDS = 30
OVERLOADED = Path(__file__).parents[2] / "captures" / "incidents" / "overload_open-1.kvcap"
VALUE = re.compile(r"(?m)^([^#\s]\S*(?:\{[^}]*\})?) \S+$")
NUMBERS = ("NaN", "+Inf", "-Inf", "1e308", "-1e308", "4e-320", "0", "-1", "9007199254740993")


def judged(number: str, growth: bool) -> Triage:
    """Thirty seconds of a good engine, and of one of whose values all, or all in turn, are `number`."""
    pipeline = Pipeline(Setup(load(), Config()), DocumentSource("capture", "hostile"))
    pipeline.node.expect({"targets": [{"url": GOOD}, {"url": BAD}]})
    for second in range(SECONDS):
        bad = PAGE if growth and second % 2 else VALUE.sub(rf"\1 {number}", PAGE)
        for url, page in ((GOOD, PAGE), (BAD, bad)):
            record = ScrapeRecord(t=1000.0 + second, target=url, status=200, body=page.encode(), duration=0.01)
            pipeline.ingest_recorded([encode(record)])
    pipeline.observe(1000.0 + SECONDS - 1, fast=float(SECONDS))
    return pipeline.triage()


@pytest.mark.parametrize("growth", [False, True], ids=["always", "every other second"])
@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_stops_the_verdict(number: str, growth: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = judged(number, growth)
    assert msgspec.json.decode(msgspec.json.encode(document))  # JSON knows no NaN
    assert not document.coverage.crashed
    assert len(document.coverage.engines) == 2
    assert not [c.code for c in document.causes if c.entity.labels.get("engine", "").startswith("good")]


IMPOSSIBLE = ("NaN", "+Inf", "-Inf", "1e308", "-1e308", "-1", "-50")
LOAD = re.compile(
    r"(?m)^(vllm:(?:num_requests_\w+|(?:time_to_first_token_seconds|e2e_request_latency_seconds)_\w+)\{[^}]*\}) \S+$"
)


def alone(pages: Iterable[str]) -> Triage:
    """An engine whose pages, a second apart, are these."""
    pipeline = Pipeline(Setup(load(), Config()), DocumentSource("capture", "hostile"))
    pipeline.node.expect({"targets": [{"url": BAD}]})
    at = 1000.0
    for page in pages:
        at += 1.0
        record = ScrapeRecord(t=at, target=BAD, status=200, body=page.encode(), duration=0.01)
        pipeline.ingest_recorded([encode(record)])
    pipeline.observe(at, fast=at - 1000.0, cold=True)
    return pipeline.triage()


@pytest.mark.parametrize("number", IMPOSSIBLE)
def test_an_engine_whose_values_cannot_be_true_is_not_healthy(number: str) -> None:
    document = alone([VALUE.sub(rf"\1 {number}", PAGE)] * 20)
    assert document.healthy is None
    assert (
        "core checks could not be decided. The engine reports values that cannot be used: num_requests_"
        in document.verdict
    )
    assert "`kvitals check` lists these metrics" in document.verdict
    assert "values that can be used" in [lacking.what for lacking in document.lacking]
    assert not document.notes  # least of all that the hardware was idle


def test_an_engine_that_stops_sending_true_values_is_not_idle() -> None:
    idle = re.sub(r"(?m)^(vllm:num_requests_\w+\{[^}]*\}) \S+$", r"\1 0", PAGE)
    assert alone([idle] * 20).verdict.startswith("No trouble found: no requests in 20 s, ")
    document = alone([*[idle] * 15, *[LOAD.sub(r"\1 -5", PAGE)] * 5])
    assert document.healthy is None and "num_requests_running (below 0)" in document.verdict


@pytest.mark.parametrize("there", ["", "1"], ids=["the same values", "other values"])
def test_pages_of_two_programs_in_one_are_not_healthy(there: str) -> None:
    """Each series stands twice on the page, and the first one was believed."""
    idle = re.sub(r"(?m)^(vllm:num_requests_\w+\{[^}]*\}) \S+$", r"\1 0", PAGE)
    document = alone([idle + VALUE.sub(rf"\1 {there}0", idle)] * 20)
    assert document.healthy is None
    assert "(twice on the page)" in document.verdict


def test_one_scrape_without_a_value_leaves_an_idle_engine_healthy() -> None:
    idle = re.sub(r"(?m)^(vllm:num_requests_\w+\{[^}]*\}) \S+$", r"\1 0", PAGE)
    none = re.sub(r"(?m)^(vllm:num_requests_\w+\{[^}]*\}) \S+$", r"\1 NaN", PAGE)
    assert alone([*[idle] * 19, none]).healthy


def test_a_gauge_without_a_value_leaves_a_verdict() -> None:
    """NaN is what a gauge has that nothing was observed of."""
    idle = re.sub(r"(?m)^(vllm:num_requests_\w+\{[^}]*\}) \S+$", r"\1 0", PAGE)
    extra = '# TYPE vllm:estimated gauge\nvllm:estimated{engine="0"} NaN\n'
    unused = re.sub(r"(?m)^(vllm:gpu_memory\w*\{[^}]*\}) \S+$", r"\1 NaN", idle)
    assert alone([unused + extra] * 20).healthy


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    number=st.sampled_from(IMPOSSIBLE),
    share=st.sampled_from([0.0, 0.2, 0.8]),
    seed=st.integers(min_value=0, max_value=999),
)
def test_no_values_of_load_are_never_health(number: str, share: float, seed: int) -> None:
    """Whatever else a page has: it does not stop the verdict, and without usable load there is none of health."""
    drawn = random.Random(seed)

    def hostile(match: re.Match[str]) -> str:
        return f"{match[1]} {drawn.choice(NUMBERS)}" if drawn.random() < share else match[0]

    pages = [LOAD.sub(rf"\1 {number}", VALUE.sub(hostile, PAGE)) for _ in range(3)]
    document = alone(pages[i % 3] for i in range(15))
    assert document.healthy is not True, document.verdict
    assert not document.coverage.crashed


@pytest.mark.parametrize("number", IMPOSSIBLE)
def test_values_that_become_unusable_within_the_window_are_not_health(tmp_path: Path, number: str) -> None:
    """Ten good seconds with requests say nothing about the thirty after them."""
    path = tmp_path / "late.kvcap"
    first, last = span_of(OVERLOADED)
    with (
        CaptureReader.open(OVERLOADED) as reader,
        CaptureWriter(path, version="0", meta=reader.header.meta) as writer,
    ):
        for record in reader:
            known = decode(record)
            if isinstance(known, ScrapeRecord) and record.t > first + 0.25 * (last - first):
                body = LOAD.sub(rf"\1 {number}", known.body.decode()).encode()
                record = encode(msgspec.structs.replace(known, body=body))
            writer.write(record)
    document = judge_recording(path, Setup(load(), Config())).document
    assert document.healthy is None
    assert "values that cannot be used: time_to_first_token_seconds" in document.verdict
