"""A fleet of looped recordings, written into a real Prometheus' storage with promtool."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvitals.series.types import METRIC_NAME, Floats, escape
from tests.fleet.loops import STARTED_BEFORE, Course, Loop, is_clock

BEGIN = 1_767_225_600.0
"""The first sample: 2026-01-01T00:00:00Z, at which a block of two hours begins."""

ENGINES_A_NODE = 8
ENGINES_A_BATCH = 250


@dataclass(frozen=True)
class Engine:
    """One engine of the fleet: what it does until its fault begins, and from then on."""

    number: int
    usual: Loop
    fault: Loop | None = None
    team: str = ""  # a label that is no part of the engine's identity

    @property
    def node(self) -> str:
        return f"node-{self.number // ENGINES_A_NODE:03}"

    @property
    def address(self) -> str:
        n = self.number
        return f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:8000"


@dataclass(frozen=True)
class Fleet:
    """Engines that are sampled every `interval` seconds. Faults last for the last `fault_seconds`."""

    engines: Sequence[Engine]
    seconds: float = 7200.0
    interval: float = 60.0
    fault_seconds: float = 1800.0
    raw: bool = False  # the engines' own pages, scraped by a Prometheus, and not an agent's families
    begin: float = BEGIN

    @property
    def times(self) -> Floats:
        return self.begin + np.arange(0.0, self.seconds, self.interval)

    @property
    def end(self) -> float:
        """The time of the last sample."""
        return float(self.times[-1])

    @property
    def planted(self) -> dict[str, tuple[str, ...]]:
        """The engines with a fault, by address, and the codes of which the first cause must be one."""
        return {engine.address: engine.fault.expect for engine in self.engines if engine.fault is not None}


def fleet(size: int, healthy: Sequence[Loop], faults: Sequence[Loop], planted: int, **more: float | bool) -> Fleet:
    """`size` engines, `planted` of which have one of the faults in turn, spread over the fleet's nodes."""
    places = {round((i + 0.5) * size / planted): faults[i % len(faults)] for i in range(planted)}
    engines = []
    for number in range(size):
        fault = places.get(number)
        like = [loop for loop in healthy if fault is None or _system(loop) == _system(fault)]
        engines.append(Engine(number, like[number % len(like)] if fault is None else like[0], fault))
    return Fleet(engines, **more)  # type: ignore[arg-type]


def backfill(fleet: Fleet, folder: Path) -> int:
    """Write the fleet into `folder` as Prometheus' blocks; returns the number of samples. Takes a while.

    Raises RuntimeError where promtool is not there or refuses.
    """
    promtool = shutil.which("promtool")
    if promtool is None:
        raise RuntimeError("the command `promtool` is not on PATH: install Debian's package prometheus")
    samples = 0
    text = folder.with_suffix(".om")
    for start in range(0, len(fleet.engines), ENGINES_A_BATCH):
        with text.open("w") as file:
            for lines in _lines(fleet, fleet.engines[start : start + ENGINES_A_BATCH]):
                samples += len(lines)
                file.writelines(lines)
            file.write("# EOF\n")
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text.unlink()
        if done.returncode:
            raise RuntimeError(f"promtool refused the samples: {done.stderr[-1000:]}")
    return samples


def _lines(fleet: Fleet, engines: Sequence[Engine]) -> Iterator[list[str]]:
    """The samples of one series after another, as OpenMetrics has them."""
    stamps = [f" {t:.0f}\n" for t in fleet.times.tolist()]
    for engine in engines:
        for labels, values in _series(fleet, engine):
            if labels := _placed(labels, fleet, engine):
                name = labels.pop(METRIC_NAME)
                labels |= {"team": engine.team} if engine.team else {}
                series = name + "{" + ",".join(f'{k}="{escape(v)}"' for k, v in labels.items()) + "} "
                yield [f"{series}{_text(v)}{stamp}" for v, stamp in zip(values.tolist(), stamps, strict=True) if v == v]


def _series(fleet: Fleet, engine: Engine) -> Iterator[tuple[dict[str, str], Floats]]:
    """The series of an engine with its values at the fleet's times; NaN where it has none."""
    since = fleet.times - fleet.begin + 7.0 * engine.number  # each engine in another phase
    if fleet.raw:
        yield {METRIC_NAME: "up"}, np.ones(len(since))  # as a Prometheus says of what it scrapes
        yield {METRIC_NAME: "up", "job": "probe"}, np.ones(len(since))  # a probe names what it looks at the same way
    if engine.fault is None:
        for course in engine.usual.courses:
            yield dict(course.labels), _values(course, since, fleet.begin)
        return
    before = fleet.times < fleet.times[-1] - fleet.fault_seconds
    both = [{course.labels.drop("engine"): course for course in loop.courses} for loop in (engine.usual, engine.fault)]
    for key in both[0].keys() | both[1].keys():
        usual, fault = (courses.get(key) for courses in both)
        values = np.full(len(since), np.nan)
        if usual is not None:
            values[before] = _values(usual, since, fleet.begin)[before]
        if fault is not None:
            later = _values(fault, since, fleet.begin)
            if usual is not None and fault.cumulative and before.any():  # it counts on from where it was
                later = later + _values(usual, since, fleet.begin)[before][-1] - later[before][-1]
            values[~before] = later[~before]
        labels = (usual or fault or engine.usual.courses[0]).labels
        yield dict(labels), values


def _values(course: Course, since: Floats, begin: float) -> Floats:
    if is_clock(course.labels.name):
        return np.full(len(since), begin - STARTED_BEFORE)
    return course.at(since)


def _placed(labels: dict[str, str], fleet: Fleet, engine: Engine) -> dict[str, str]:
    """The labels of an engine's series where it runs; empty for what its node has said of itself already."""
    if fleet.raw:
        return {"job": "engines", **labels, "instance": engine.address, "node": engine.node}
    if "engine" in labels:
        _, slash, rank = labels["engine"].partition("/")
        labels["engine"] = f"{engine.address}{slash}{rank}"
    elif engine.number % ENGINES_A_NODE:
        return {}
    return {**labels, "node": engine.node, "pool": "chat", "instance": f"{engine.node}:9477", "job": "kvitals"}


def _text(value: float) -> str:
    return repr(value).removesuffix(".0") if abs(value) != float("inf") else ("+Inf" if value > 0 else "-Inf")


def _system(loop: Loop) -> str:
    """Which engine a recording is of, by its name."""
    return "sglang" if loop.name.startswith("sglang") else "vllm"
