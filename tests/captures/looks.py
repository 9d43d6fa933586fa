"""Recordings of incidents as they are judged: with their truth, under their objectives, by a cold look."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from kvitals.agent.records import FactsRecord, decode
from kvitals.app.pipeline import SLOW_SECONDS, Pipeline, Setup
from kvitals.config import Config, SloTable
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.series.recordings import CaptureReader

COLD_S = 12.0
knowledge = cache(load)


def truth(capture: Path) -> dict[str, Any]:
    """What was done to the engine, and what its clients measured."""
    found: dict[str, Any] = json.loads(capture.with_suffix(".truth.json").read_text())
    return found


def setup_of(capture: Path) -> Setup:
    """The rules that ship, under the objectives of the recording's truth."""
    return setup(**truth(capture)["slo"])


def setup(ttft_p99: float, itl_p99: float) -> Setup:
    """The rules that ship, under these objectives, in seconds."""
    return Setup(knowledge(), Config(slo=SloTable(ttft_p99_seconds=ttft_p99, itl_p99_seconds=itl_p99)))


def cold_look(capture: Path, under: Setup, at: float, seconds: float = COLD_S) -> Pipeline:
    """A live triage that ends at `at` and knows nothing of before. What an engine says of its settings it is asked at
    once."""
    pipeline = Pipeline(under, DocumentSource("capture", capture.name))
    with CaptureReader.open(capture) as reader:
        pipeline.node.expect(reader.header.meta)
        records = [record for record in reader if record.t <= at]
        pipeline.ingest_recorded(r for r in records if r.t >= at - seconds or isinstance(decode(r), FactsRecord))
    list(pipeline.observe_all([EvaluationSpan(at, seconds, SLOW_SECONDS, cold=True)]))
    return pipeline
