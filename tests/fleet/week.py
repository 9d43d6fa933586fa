"""Weeks of engines, made of recordings of real ones: the recorded stretch again and again, another one when the
schedule says so, and at night the engine as it was recorded at a moment when nothing ran.

Counters go on from stretch to stretch by what the recording added, gauges come around. So rates, distributions and
levels are recorded ones at every moment; only that they last for hours is made up.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config, SloTable
from kvitals.diagnoser.review import review_steps
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import Knowledge, family_of
from kvitals.series.promql import Expr, Series, selectors
from kvitals.series.recordings import CaptureReader
from kvitals.series.types import METRIC_NAME, Bools, Floats, Labels, escape, is_stale

HOUR, DAY = 3600.0, 86400.0
BLOCK_SECONDS = 7200.0
_CLOCKS = ("process_start_time_seconds",)


@dataclass(frozen=True)
class Stretch:
    """A part of a recording: values of each series at times from its start. seconds: how long until it comes again."""

    name: str
    seconds: float
    times: Floats
    values: Mapping[Labels, Floats]
    counts: frozenset[Labels]  # those that are counters

    def at(self, since: Floats, labels: Labels) -> Floats:
        """The values of a series so many seconds after the stretch began for the first time."""
        values = self.values[labels]
        laps, phase = np.divmod(since, self.seconds)
        found = values[np.clip(np.searchsorted(self.times, phase, side="right") - 1, 0, None)]
        return found + laps * (values[-1] - values[0]) if labels in self.counts else found


@dataclass(frozen=True)
class Engine:
    """One engine: who it is, and what it does from when on (seconds after the beginning), until the next begins."""

    labels: Mapping[str, str]
    schedule: Sequence[tuple[float, Stretch]]
    absent: Sequence[tuple[float, float]] = ()  # nobody watched


def stretches(
    path: Path,
    slo: SloTable,
    knowledge: Knowledge,
    wanted: frozenset[str] | None = None,
    part: tuple[float, float] | None = None,
) -> tuple[Stretch, Stretch]:
    """What was recorded after the incident began, and the engine as it was when nothing ran. `part`: seconds of the
    recording instead, from and to."""
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    pipeline = Pipeline(Setup(knowledge, Config(slo=slo)), DocumentSource("capture", path.name))
    with CaptureReader.open(path) as reader:
        pipeline.node.expect(reader.header.meta)
        for record in reader:
            pipeline.ingest_recorded([record])
            last = record.t
    begun = next((one["start"] for one in truth["phases"] if one["name"] == "incident" and "start" in one), 0.0)
    rows = {}
    for frame in pipeline.node.window.select((), -np.inf, np.inf):
        for i, labels in enumerate(frame.labels):
            if labels.name.startswith("kvitals_") and (wanted is None or labels.name in wanted):
                there = ~is_stale(frame.values[:, i])
                rows[labels] = frame.times[there], frame.values[there, i]
    counts = frozenset(labels for labels in rows if _counts(labels.name, knowledge))
    running = next(labels for labels in rows if labels.name == "kvitals_requests_running")
    grid = rows[running][0]
    first, end = (grid[0] + part[0], grid[0] + part[1]) if part else (begun, last)
    chosen = grid[(grid >= first) & (grid <= end)]
    quiet = grid[rows[running][1] == 0]
    return (
        _stretch(path.stem, rows, counts, chosen),
        _stretch(f"{path.stem}, nothing running", rows, counts, quiet[-1:]),
    )


def _stretch(
    name: str, rows: Mapping[Labels, tuple[Floats, Floats]], counts: frozenset[Labels], times: Floats
) -> Stretch:
    values = {}
    for labels, (of, course) in rows.items():
        if len(of) and of[0] <= times[-1]:
            values[labels] = course[np.clip(np.searchsorted(of, times, side="right") - 1, 0, None)]
    seconds = float(times[-1] - times[0]) if len(times) > 1 else DAY
    return Stretch(name, seconds, times - times[0], values, counts & values.keys())


def courses(engine: Engine, times: Floats, begin: float) -> dict[Labels, Floats]:
    """The values of each of its series at times; NaN where there is none."""
    since = times - begin
    starts = [start for start, _ in engine.schedule]
    until = [*starts[1:], np.inf]
    keys: dict[Labels, list[tuple[Bools, float, Stretch, Labels]]] = {}
    for (start, stretch), end in zip(engine.schedule, until, strict=True):
        chosen = (since >= start) & (since < end)
        for labels in stretch.values:
            keys.setdefault(_placed(labels, engine.labels), []).append((chosen, start, stretch, labels))
    return {key: _course(parts, since, times, engine) for key, parts in keys.items()}


def _course(
    parts: Sequence[tuple[Bools, float, Stretch, Labels]], since: Floats, times: Floats, engine: Engine
) -> Floats:
    _, _, first, labels = parts[0]
    counts = labels in first.counts
    values = np.full(len(since), 0.0 if counts else np.nan)
    for chosen, start, stretch, own in parts:
        if not chosen.any():
            continue
        here = stretch.at(since[chosen] - start, own)
        if own.name.endswith(_CLOCKS):
            here = np.full(len(here), times[0] - 3 * DAY)
        if counts:
            values[chosen] += here - here[0]
            values[np.flatnonzero(chosen)[-1] + 1 :] += (
                stretch.at(np.array([since[chosen][-1] - start]), own)[0] - here[0]
            )
        else:
            values[chosen] = here
    for start, end in engine.absent:
        values[(since >= start) & (since < end)] = np.nan
    return values


def _placed(labels: Labels, own: Mapping[str, str]) -> Labels:
    return labels.with_(**{name: value for name, value in own.items() if name != "engine" or "engine" in labels})


def _counts(metric: str, knowledge: Knowledge) -> bool:
    family = family_of(metric, knowledge.families)
    return family is not None and knowledge.families[family].type in ("counter", "histogram")


def asked_for() -> frozenset[str]:
    """The names of all series that a review reads."""
    found: set[str] = set()

    def ask(expr: Expr, start: float, end: float, step: float) -> list[Series]:
        found.update(use.name for use in selectors(expr) if use.name)
        return []

    review_steps.gather(ask, 0.0, HOUR, HOUR, 60.0)
    return frozenset(found | {"kvitals_target_up", "kvitals_process_start_time_seconds"})


def backfill(engines: Sequence[dict[Labels, Floats]], times: Floats, folder: Path) -> int:
    """Write all series into `folder` as Prometheus' blocks, one of two hours after the other; returns the number of
    samples. Raises RuntimeError where promtool is not there or refuses."""
    promtool = shutil.which("promtool")
    if promtool is None:
        raise RuntimeError("the command `promtool` is not on PATH: install Debian's package prometheus")
    samples, text = 0, folder.with_suffix(".om")
    names = [[_series(labels) for labels in one] for one in engines]
    for start in np.arange(times[0], times[-1] + 1.0, BLOCK_SECONDS).tolist():
        chosen = np.flatnonzero((times >= start) & (times < start + BLOCK_SECONDS))
        part = slice(int(chosen[0]), int(chosen[-1]) + 1)
        stamps = [f" {t:.0f}\n" for t in times[part].tolist()]
        with text.open("w") as file:
            for of, series in zip(names, engines, strict=True):
                for name, values in zip(of, series.values(), strict=True):
                    lines = [
                        f"{name}{_text(v)}{t}" for v, t in zip(values[part].tolist(), stamps, strict=True) if v == v
                    ]
                    samples += len(lines)
                    file.writelines(lines)
            file.write("# EOF\n")
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"promtool refused the samples: {done.stderr[-1000:]}")
    text.unlink()
    return samples


def _series(labels: Labels) -> str:
    return labels.name + "{" + ",".join(f'{k}="{escape(v)}"' for k, v in labels.items() if k != METRIC_NAME) + "} "


def _text(value: float) -> str:
    return repr(value).removesuffix(".0") if abs(value) != float("inf") else ("+Inf" if value > 0 else "-Inf")


def nights(
    day: Stretch, night: Stretch, days: int, *, quiet: tuple[float, float] = (22.0, 6.0)
) -> Iterator[tuple[float, Stretch]]:
    """A schedule of days of work and nights without; hours of the day."""
    yield 0.0, night
    for number in range(days):
        yield number * DAY + quiet[1] * HOUR, day
        yield number * DAY + quiet[0] * HOUR, night
