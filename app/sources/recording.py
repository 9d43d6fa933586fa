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
from kvitals.config import Config, Seconds
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.series.recordings import CaptureReader, Record

LEAST_SECONDS = 1.0
"""Of a window that can be judged."""
MIN_GAP_SECONDS = 0.5  # two cycles closer than this would be the same one
MAX_SPAN_SECONDS = 25 * 3600.0
"""Of the records of one recording: a moment is judged every 5 s, also in gaps, at 2 ms each."""
AT_ONCE = 60
"""Moments whose signals are evaluated together."""


class RecordingError(Exception):
    """Nothing can be judged in this recording, and why."""


@dataclass(frozen=True)
class RecordingVerdict:
    """What a recording says at one moment."""

    pipeline: Pipeline
    document: Triage
    damage: str  # empty, or what is wrong with the file and that the rest was read


@dataclass(frozen=True)
class RecordingEnd:
    """A recording that was read to its end, with nothing left to settle."""

    node: Node
    damage: str  # empty, or what is wrong with the file and that the rest was read


@dataclass(frozen=True)
class Moments:
    """Which part of a recording is judged; None: its end, or the configured window before it. Where neither is given,
    the window begins no earlier than when load or latency last changed level (`diagnoser.regimes`)."""

    at: float | None = None
    start: float | None = None


NOW = Moments()


def span_of(path: Path) -> tuple[float, float]:
    """First and last time of a recording. Every view of a recording begins here.

    Raises CaptureError, and RecordingError where there is no record or they span more than `MAX_SPAN_SECONDS`.
    """
    first = last = None
    earliest, latest = math.inf, -math.inf
    with CaptureReader.open(path) as reader:
        for record in reader:
            first = record.t if first is None else first
            last = record.t
            earliest, latest = min(earliest, last), max(latest, last)
            if latest - earliest > MAX_SPAN_SECONDS:
                raise RecordingError(
                    f"{path.name} spans more than {MAX_SPAN_SECONDS / 3600:.0f} h, the longest that kvitals "
                    f"evaluates: record in parts (kvitals record --for 1d), and check the clock of the node "
                    f"that recorded it"
                )
        damage = f": {reader.problem}" if reader.problem else ""
    if first is None or last is None:
        raise RecordingError(f"{path.name} holds no record{damage}")
    return first, last


def ended_node(path: Path, config: Config, slo_sources: Mapping[str, str] | None = None) -> RecordingEnd:
    """What is known at a recording's end, where nothing is judged. slo_sources: as a node takes them.

    Raises CaptureError, ConfigError.
    """
    node, last = Node(config, slo_sources), 0.0
    with CaptureReader.open(path) as reader:
        node.expect(reader.header.meta)
        for record in reader:
            node.ingest_recorded(record)
            last = max(last, record.t)
        damage = reader.problem or ""
    node.flush(last)
    return RecordingEnd(node, damage)


def judge_recording(path: Path, setup: Setup, moments: Moments = NOW, step: float = STEP_SECONDS) -> RecordingVerdict:
    """The verdict at one moment of a recording, with the history that led up to it, judged every `step` seconds.

    At its end, what waits for more records is settled first: nothing more comes, and every surface shows that end.
    Raises CaptureError, and RecordingError where there is nothing to judge.
    """
    first, last = span_of(path)
    at = min(moments.at, last) if moments.at is not None else last
    if at <= first:
        raise RecordingError(
            f"{path.name} begins {first - at:.0f} s after the requested time; write +75s for a time after its start"
        )
    span = span_at(first, at, moments.start)
    if span.fast < LEAST_SECONDS:
        raise RecordingError(
            f"{path.name} has no window there: the window must begin at least a second before the recording ends"
        )
    pipeline = Pipeline(
        with_window(setup, setup.config.agent.window + AT_ONCE * step), DocumentSource("capture", path.name)
    )
    with CaptureReader.open(path) as reader:
        pipeline.node.expect(reader.header.meta)
        for _ in judged_before(at, pipeline, reader, step):
            pass
        damage = reader.problem or ""
    if at == last:
        pipeline.flush(last)
    if moments.start is None and at == last:
        pipeline.observe_last_regime(first, at)
    else:
        pipeline.observe_span(span)
    return RecordingVerdict(pipeline, pipeline.triage(), damage)


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
    """The same setup, with a window that holds so many seconds."""
    window = Seconds(max(setup.config.agent.window, least))
    agent = msgspec.structs.replace(setup.config.agent, window=window)
    return replace(setup, config=msgspec.structs.replace(setup.config, agent=agent))


def replay_moments(path: Path, setup: Setup) -> Iterator[tuple[float, Pipeline]]:
    """Every moment of a recording that is judged, in order, and its end, each with the pipeline that just judged it.

    The pipeline's document is what `judge_recording` returns for that moment. Raises CaptureError, RecordingError.
    """
    first, last = span_of(path)
    pipeline = Pipeline(
        with_window(setup, setup.config.agent.window + AT_ONCE * STEP_SECONDS), DocumentSource("capture", path.name)
    )
    with CaptureReader.open(path) as reader:
        pipeline.node.expect(reader.header.meta)
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
