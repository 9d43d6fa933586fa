"""Verdicts on recorded incidents: the same pipeline as live, on the recording's own clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import msgspec

from kvitals.agent.node import Node
from kvitals.app.pipeline import STEP_SECONDS, Pipeline, Setup, span_at
from kvitals.app.sources.earlier_pages import EarlierPages
from kvitals.app.sources.losses import SourceLoss
from kvitals.app.sources.recording_reader import RecordingError, RecordingSpan, no_record, open_recording, read_span
from kvitals.config import Config, Seconds
from kvitals.config.toml_tables import MAX_WINDOW_SECONDS
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.series.history.damage import time_text
from kvitals.series.recordings import Record

LEAST_SECONDS = 1.0
"""Of a window that can be judged."""
MIN_GAP_SECONDS = 0.5  # two cycles closer than this would be the same one
AT_ONCE = 60
"""Moments whose signals are evaluated together."""


@dataclass(frozen=True)
class RecordingVerdict:
    """What a recording says at one moment. The document states what could not be read."""

    pipeline: Pipeline
    document: Triage


@dataclass(frozen=True)
class RecordingEnd:
    """A recording that was read to its end, with nothing left to settle."""

    node: Node
    losses: tuple[SourceLoss, ...]  # what could not be read


@dataclass(frozen=True)
class Moments:
    """Which part of a recording is judged; None: its end, or the configured window before it. Where neither is given,
    the window begins no earlier than when load or latency last changed level (`diagnoser.regimes`)."""

    at: float | None = None
    start: float | None = None


NOW = Moments()


def ended_node(path: Path, config: Config, slo_sources: Mapping[str, str] | None = None) -> RecordingEnd:
    """What is known at a recording's end, where nothing is judged. slo_sources: as a node takes them.

    Raises CaptureError, ConfigError, RecordingError.
    """
    node, last = Node(config, slo_sources), -math.inf
    with open_recording(path) as reader:
        node.expect(reader.meta)
        for record in reader.decoded():
            node.ingest(record)
            last = max(last, record.t)
    if last == -math.inf:
        raise RecordingError(no_record(path, reader.losses()))
    node.flush(last)
    return RecordingEnd(node, reader.losses())


def recorded_pipeline(path: Path, setup: Setup, span: RecordingSpan, window: float) -> Pipeline:
    """A pipeline for the records of a recording that `read_span` has read. window: seconds that it holds at least."""
    pipeline = Pipeline(with_window(setup, window), DocumentSource("capture", path.name))
    pipeline.losses = span.losses
    return pipeline


def judge_recording(path: Path, setup: Setup, moments: Moments = NOW, step: float = STEP_SECONDS) -> RecordingVerdict:
    """The verdict at one moment of a recording, with the history that led up to it, judged every `step` seconds.

    At its end, what waits for more records is settled first: nothing more comes, and every surface shows that end.
    Raises CaptureError, and RecordingError where there is nothing to judge.
    """
    whole = read_span(path)
    first, last = whole.first, whole.last
    if last <= first:
        raise RecordingError(no_window(path.name, whole))
    at = min(moments.at, last) if moments.at is not None else last
    if at <= first:
        raise RecordingError(
            f"{path.name} has no data before the requested time, because it begins at {time_text(first)}; "
            "write 75s for a time after its start"
        )
    span = span_at(first, at, moments.start)
    if span.fast < LEAST_SECONDS:
        raise RecordingError(
            f"{path.name} has no window there: the window must begin at least a second before the recording ends"
        )
    pipeline = recorded_pipeline(path, setup, whole, setup.config.agent.window + AT_ONCE * step)
    with open_recording(path) as reader:
        pipeline.node.expect(reader.meta)
        earlier = EarlierPages()
        for moment in judged_before(at, pipeline, reader, step):
            earlier.add(moment, pipeline.judgements)
    if at == last:
        pipeline.flush(last)
    if moments.start is None and at == last:
        pipeline.observe_last_regime(first, at)
    else:
        pipeline.observe_span(span)
    if moments.start is None and pipeline.regime is None:  # a regime states what was before it
        pipeline.losses = [*pipeline.losses, *earlier.ended(pipeline.judgements)]
    return RecordingVerdict(pipeline, pipeline.triage())


def no_window(name: str, span: RecordingSpan) -> str:
    """Why a recording without two times in order cannot be judged, and what to do."""
    why = "".join(f" ({loss.text})" for loss in span.losses)
    return (
        f"{name} has no two scrapes in the order of time, so there is no window to evaluate{why}. "
        "Record for at least a second, and check the clock of the node that recorded it"
    )


def judged_before(
    at: float, pipeline: Pipeline, records: Iterable[Record], step: float = STEP_SECONDS
) -> Iterator[float]:
    """Take in the records until `at` and judge the moments before it, yielding each once it is judged.

    Each is judged over `span_at` it. Records are up to `AT_ONCE` steps further than the moment: the window is to hold
    as much more.
    """
    due = pipeline.replay((record for record in records if record.t <= at), step)
    first: float | None = None
    while some := list(islice(due, AT_ONCE)):
        first = some[0] - step if first is None else first
        yield from pipeline.observe_all([span_at(first, moment) for moment in some if moment < at - MIN_GAP_SECONDS])


def with_window(setup: Setup, least: float) -> Setup:
    """The same setup, with a window that holds so many seconds, at most the longest that a configuration may have."""
    window = Seconds(min(max(setup.config.agent.window, least), MAX_WINDOW_SECONDS))
    agent = msgspec.structs.replace(setup.config.agent, window=window)
    return replace(setup, config=msgspec.structs.replace(setup.config, agent=agent))


def replay_moments(path: Path, setup: Setup) -> Iterator[tuple[float, Pipeline]]:
    """Every moment of a recording that is judged, in order, and its end, each with the pipeline that just judged it.

    The pipeline's document is what `judge_recording` returns for that moment. Raises CaptureError, RecordingError.
    """
    whole = read_span(path)
    first, last = whole.first, whole.last
    pipeline = recorded_pipeline(path, setup, whole, setup.config.agent.window + AT_ONCE * STEP_SECONDS)
    with open_recording(path) as reader:
        pipeline.node.expect(reader.meta)
        for at in judged_before(last, pipeline, reader):
            yield at, pipeline
    if last > first:
        pipeline.flush(last)
        pipeline.observe_last_regime(first, last)
        yield last, pipeline


def verdicts(path: Path, setup: Setup) -> Iterator[tuple[float, Triage]]:
    """The document of every moment of `replay_moments`. Raises CaptureError, RecordingError."""
    for at, pipeline in replay_moments(path, setup):
        yield at, pipeline.triage()
