"""Recorded engines that go on for hours: the settled end of a recording, again and again.

Counters go on from lap to lap by what the recorded stretch added, gauges come around. So a looped engine's rates,
distributions and levels are the recorded ones at every moment, and nothing in them is invented.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.records import ScrapeRecord, decode
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config, SloTable
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import Knowledge, family_of, load
from kvitals.series.recordings import CaptureReader
from kvitals.series.types import METRIC_NAME, Floats, Labels, Matcher, MatchOp, is_stale

LAP_SECONDS = 55.0
"""Not a multiple of the scrape interval, so that each scrape meets another phase."""

STARTED_BEFORE = 3 * 86400.0
"""Seconds before the first sample at which the processes began, since none of the recorded ones was warming up."""

_CLOCKS = ("process_start_time_seconds",)


@dataclass(frozen=True)
class Course:
    """One series of a recording: times from the start of the lap, values at them. Seconds."""

    labels: Labels
    times: Floats
    values: Floats
    cumulative: bool
    lap: float = LAP_SECONDS

    @cached_property
    def gained(self) -> float:
        """What one lap adds."""
        return float(self.values[-1] - self.values[0]) if self.cumulative else 0.0

    def at(self, seconds: Floats) -> Floats:
        """The values so many seconds after the first lap's start."""
        laps, phase = np.divmod(seconds, self.lap)
        places = np.clip(np.searchsorted(self.times, phase, side="right") - 1, 0, None)
        found: Floats = self.values[places] + laps * self.gained
        return found


@dataclass(frozen=True)
class Loop:
    """A recording as a loop. `expect`: codes of which its first cause must be one; none for a healthy one."""

    name: str
    expect: tuple[str, ...]
    slo: Mapping[str, float]
    courses: list[Course]


def families(path: Path, wanted: frozenset[str], knowledge: Knowledge | None = None, lap: float = LAP_SECONDS) -> Loop:
    """The series of families that an agent would have exported, of the metrics that are wanted. lap: seconds of the
    recording's end that repeat."""
    known = knowledge or load()
    truth = _truth(path)
    slo = SloTable(ttft_p99_seconds=truth["slo"]["ttft_p99"], itl_p99_seconds=truth["slo"]["itl_p99"])
    pipeline = Pipeline(Setup(known, Config(slo=slo)), DocumentSource("capture", path.name))
    last = 0.0
    with CaptureReader.open(path) as reader:
        pipeline.node.expect(reader.header.meta)
        for record in reader:
            pipeline.ingest_recorded([record])
            last = record.t
    matchers = [Matcher(METRIC_NAME, MatchOp.RE, "kvitals_.+")]
    series: dict[Labels, tuple[list[float], list[float]]] = {}
    for frame in pipeline.node.window.select(matchers, last - lap, last):
        for column, labels in enumerate(frame.labels):
            there = ~is_stale(frame.values[:, column])
            if labels.name in wanted and there.any():
                times, values = series.setdefault(labels, ([], []))
                times += frame.times[there].tolist()
                values += frame.values[there, column].tolist()
    made = [_course(labels, *both, last - lap, _counts(labels.name, known), lap) for labels, both in series.items()]
    return Loop(path.stem, tuple(truth.get("expect", ())), truth["slo"], made)


def pages(path: Path, lap: float = LAP_SECONDS) -> Loop:
    """The raw series of the engine's own page, as a Prometheus would have scraped them; one target's. lap: seconds of
    the recording's end that repeat."""
    parser, truth = PageParser(), _truth(path)
    times: list[float] = []
    rows: list[dict[Labels, float]] = []
    cumulative: dict[Labels, bool] = {}
    values: dict[Labels, float] = {}
    with CaptureReader.open(path) as reader:
        for one in reader:
            record = decode(one)
            if not isinstance(record, ScrapeRecord) or record.reason != "ok":
                continue
            page = parser.parse(record.body, record.content_type)
            known = [Labels({METRIC_NAME: name, **dict(labels)}) for name, labels in page.layout.series]
            if page.fresh:
                cumulative |= {
                    labels: type_ in ("counter", "histogram")
                    for labels, type_ in zip(known, page.layout.types, strict=True)
                }
            values |= {known[i]: v for i, v in zip(page.indices.tolist(), page.values.tolist(), strict=True)}
            times.append(record.t)
            rows.append(dict(values))
    start = times[-1] - lap
    courses = []
    for labels in rows[-1]:
        points = [(t, row[labels]) for t, row in zip(times, rows, strict=True) if t >= start and labels in row]
        courses.append(_course(labels, *map(list, zip(*points, strict=True)), start, cumulative[labels], lap))
    return Loop(path.stem, tuple(truth.get("expect", ())), truth["slo"], courses)


def _course(
    labels: Labels, times: list[float], values: list[float], start: float, cumulative: bool, lap: float
) -> Course:
    return Course(labels, np.array(times) - start, np.array(values), cumulative, lap)


def is_clock(name: str) -> bool:
    """Whether a metric's value is a time of the process's start."""
    return name.endswith(_CLOCKS)


def _counts(metric: str, knowledge: Knowledge) -> bool:
    family = family_of(metric, knowledge.families)
    return family is not None and knowledge.families[family].type in ("counter", "histogram")


def _truth(path: Path) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads(path.with_suffix(".truth.json").read_text())
    return truth
