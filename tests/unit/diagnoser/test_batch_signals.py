"""Signals that are evaluated at many moments at once are those that each moment has by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvitals.app.demo import incidents
from kvitals.app.pipeline import STEP_SECONDS, Pipeline, Setup, span_at
from kvitals.app.sources.recording import AT_ONCE, judged_before
from kvitals.app.sources.recording_reader import span_of
from kvitals.config import Config
from kvitals.diagnoser import batch_signals
from kvitals.rules.finding import DocumentSource, encode
from kvitals.rules.loader import load
from kvitals.series.promql import PromQLError
from kvitals.series.recordings import CaptureReader

SETUP = Setup(load(), Config())
STOPPED_SHARING = next(path for path in incidents() if path.stem == "unique_prompts")
"""What is wrong is seen only by who knows how it was before."""


def one_by_one(at: float, pipeline: Pipeline, records: Iterable[Any]) -> Iterator[float]:
    first: float | None = None
    for due in pipeline.replay(records):
        first = due - STEP_SECONDS if first is None else first
        if due < at - 0.5:
            pipeline.observe_span(span_at(first, due))
            yield due


def judged(path: Path, way: Callable[..., Iterator[float]], seconds: float = 1e9) -> tuple[list[Any], bytes]:
    """All that was judged on the way, and the document at the end."""
    first, last = span_of(path)
    last = min(last, first + seconds)
    pipeline, found = Pipeline(SETUP, DocumentSource("capture", path.name)), []
    with CaptureReader.open(path) as reader:
        pipeline.node.expect(reader.header.meta)
        for _ in way(last, pipeline, reader):
            found += [(pipeline.span, j.rule.code, j.entity, j.outcome, j.since) for j in pipeline.judgements]
    pipeline.observe(last)
    return found, encode(pipeline.triage())


@pytest.fixture(scope="module")
def singly() -> tuple[list[Any], bytes]:
    return judged(STOPPED_SHARING, one_by_one)


@pytest.mark.parametrize("at_once", [AT_ONCE, 7])
def test_moments_that_are_judged_together_are_judged_alike(
    singly: tuple[list[Any], bytes], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvitals.app.sources.recording.AT_ONCE", at_once)
    assert judged(STOPPED_SHARING, judged_before) == singly
    assert b"Prompts no longer share their beginning" in singly[1]


def test_what_is_too_much_at_once_is_asked_at_single_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PromQLError("too many samples")

    singly = judged(STOPPED_SHARING, one_by_one, seconds=110)
    monkeypatch.setattr(batch_signals, "evaluate_range", refuses)
    assert judged(STOPPED_SHARING, judged_before, seconds=110) == singly
