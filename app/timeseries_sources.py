"""Where it can be read what engines did over time: a history, a recording, a running agent or a Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvitals.app.derived_metrics.operating_families import LOOK_SECONDS, ask_source
from kvitals.app.pipeline import Setup
from kvitals.app.sources.merged_engines import merged_text
from kvitals.app.sources.prometheus_fleet import dialect, engines_of_several_sources
from kvitals.app.sources.recording import recorded_pipeline
from kvitals.app.sources.recording_reader import RecordingError, open_recording, read_span
from kvitals.diagnoser.sources.prometheus import Prometheus, PrometheusAccess
from kvitals.diagnoser.sources.served import FamilyDialect, ServedFamilies
from kvitals.diagnoser.sources.survey import NothingScrapedError, Survey, last_scraped, survey
from kvitals.diagnoser.steps import Ask, row_gap
from kvitals.series.history.damage import time_text
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.set_aside_files import set_aside_files, set_aside_text
from kvitals.series.promql import Expr, Series, selectors
from kvitals.series.types import Labels, SeriesSource

DAY_SECONDS = 86400.0
MAX_SAMPLES = 10_000_000
ALERTS = "ALERTS"
"""What the names of a server's series of alerts begin with."""


@dataclass(frozen=True)
class TimeseriesSource:
    """What can be asked about a time. name: for people. start, end: seconds since the epoch. gap: between two rows.
    first: before it there is nothing. notes: what could not be read of it."""

    name: str
    ask: Ask
    start: float
    end: float
    gap: float
    first: float = float("-inf")
    notes: Sequence[str] = ()


@contextmanager
def of_history(path: Path, start: float | None, end: float | None) -> Iterator[TimeseriesSource]:
    """A history on disk; the last day of it, where nothing else is said. Raises HistoryError, RecordingError."""
    reader = HistoryReader(path, max_samples=MAX_SAMPLES)
    try:
        span = reader.span()
        if span is None:
            raise RecordingError(f"{path} holds nothing yet")
        until = min(span[1], end) if end is not None else span[1]
        since = max(span[0], start if start is not None else until - DAY_SECONDS)
        losses = reader.inspect(min(since, until), math.inf if until == span[1] else until, thorough=False)
        if since >= until:
            there = f"its rows are of {time_text(span[0])} to {time_text(span[1])}"
            lost = f"; history: {losses.summary}" if losses else ""
            raise RecordingError(f"{path} has no data of that time; {there}{lost}")
        notes = [f"history: {losses.summary}"] if losses else []
        notes += filter(None, [set_aside_text(set_aside_files(path))])
        yield TimeseriesSource(
            f"history, {path}", ask_source(reader), since, until, _gap(reader, until), span[0], notes
        )
    finally:
        reader.close()


@contextmanager
def of_recording(path: Path, setup: Setup) -> Iterator[TimeseriesSource]:
    """A recording, whole. Raises CaptureError, RecordingError."""
    span = read_span(path)
    pipeline = recorded_pipeline(path, setup, span, span.last - span.first + LOOK_SECONDS)
    with open_recording(path) as reader:
        pipeline.node.expect(reader.meta)
        pipeline.ingest_recorded(reader)
    window = pipeline.node.window
    yield TimeseriesSource(
        f"recording, {path.name}", ask_source(window), span.first, span.last, _gap(window, span.last),
        notes=[loss.text for loss in span.losses],
    )  # fmt: skip


@contextmanager
def of_server(
    access: PrometheusAccess, setup: Setup, start: float | None, end: float, first: float = float("-inf")
) -> Iterator[TimeseriesSource]:
    """A Prometheus, or an agent, which answers as one; the day before `end`, where nothing else is said. `first`: it is
    known to have nothing before.

    Targets need not have been scraped at `end`: the last moment at which they were tells what the server has. Raises
    ServerError.
    """
    with Prometheus(access) as server:
        since = max(start or end - DAY_SECONDS, first)
        found = _survey(server, since, end, first)
        served = ServedFamilies(server, dialect(server, found, setup))
        merged = merged_text(engines_of_several_sources(server, found, served.dialect), found.agents)
        alerts = ServedFamilies(server, FamilyDialect(()))  # the server's own, which no dialect has other names for
        name = f"{access.url} ({server.left_out})" if server.left_out else access.url
        notes = [merged] if merged else []
        yield TimeseriesSource(name, _asking(served, alerts), since, end, found.interval, first, notes=notes)


def _survey(server: Prometheus, start: float, end: float, first: float) -> Survey:
    try:
        return survey(server, end, first=first)
    except NothingScrapedError:
        last = last_scraped(server, start, end)
        if last is None:
            raise
        return survey(server, last, first=first)


def _asking(served: ServedFamilies, alerts: ServedFamilies) -> Ask:
    def ask(expr: Expr, start: float, end: float, step: float) -> list[Series]:
        asked = alerts if all(use.name.startswith(ALERTS) for use in selectors(expr)) else served
        times = [start + i * step for i in range(round((end - start) / step) + 1)]
        points: dict[Labels, list[tuple[float, float]]] = {}
        for t, rows in asked.course([expr], times)[expr].items():
            for labels, value in rows:
                points.setdefault(labels, []).append((t, value))
        columns = ((labels, np.array(course).T) for labels, course in points.items())
        return [Series(labels, at, values) for labels, (at, values) in columns]

    return ask


def _gap(source: SeriesSource, end: float) -> float:
    """Seconds between rows. Raises RecordingError where there are none."""
    gap = row_gap(source, end - LOOK_SECONDS, end)
    if gap is None:
        raise RecordingError("no engine was watched in the last five minutes of that time")
    return gap
