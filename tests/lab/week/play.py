"""The days of the week, and how they are played."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from kvitals.app.history_recorder import Keeping
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.config import Config, HistoryTable, SloTable
from kvitals.rules.finding import DocumentSource
from kvitals.rules.loader import load
from kvitals.series.history import compact, schema, wal
from kvitals.series.history.writer import History
from kvitals.series.types import STALE, Floats, Labels
from tests.fleet.week import DAY, HOUR, Engine, Stretch, courses, stretches

ROOT = Path(__file__).parents[3]
SLO = SloTable(ttft_p99_seconds=0.1, itl_p99_seconds=0.5)
RECORDINGS = {
    "good": ("tests/captures/ledger/thrash.kvcap", (2.0, 24.0)),  # three tenants, whose prompts nearly fit
    "heavy": ("tests/captures/ledger/thrash.kvcap", (28.0, 50.0)),  # one more, whose prompts are never seen again
    "slots": ("app/demo/few_slots.kvcap", (65.0, 118.0)),  # the engine was started with two slots
}
"""Which seconds of which recording."""
WEEK = ("good", "good", "heavy", "good", "slots", "good", "good")
"""What each day is, from the first to the last."""
MORNING, EVENING = 6.0, 22.0
"""Hours between which there is work."""
ROW_SECONDS = 60.0
CYCLE_SECONDS = 1800.0
"""Between two judgements; for a quarter of an hour after each change of what is done it is a minute."""
CLOSE_SECONDS = 900.0
FAST_SECONDS = 480.0
OPERATING_SECONDS = 7200.0
COMMIT_SECONDS = 60.0
EVER = 1 << 40
GENERATION_TICKS = 12
"""After so many ticks they are sealed: a tick here has many rows."""


@dataclass(frozen=True)
class _Engine:
    """Where an engine's rows go."""

    group: str
    series: Sequence[Labels]
    rows: Floats  # [time, series]


def week(folder: Path, end: float, days: Sequence[str] = WEEK) -> int:
    """Write the history of the days before `end` into `folder`; how many moments were judged."""
    knowledge = load()
    wal.GENERATION_TICKS = GENERATION_TICKS
    config = Config(slo=SLO, history=HistoryTable(directory=folder))
    config = msgspec.structs.replace(config, agent=msgspec.structs.replace(config.agent, interval=ROW_SECONDS))
    found = {name: stretches(ROOT / path, SLO, knowledge, part=part) for name, (path, part) in RECORDINGS.items()}
    begin = end - len(days) * DAY
    times = np.arange(begin, end + ROW_SECONDS / 2, ROW_SECONDS)
    engines = [_engine(number, found, days, times, begin) for number in range(2)]
    pipeline = Pipeline(Setup(knowledge, config), DocumentSource("agent", "the lab's week"))
    keeping = Keeping(pipeline, print)
    keeping.start("of the lab")
    try:
        moments = _play(pipeline, keeping, engines, times)
    finally:
        keeping.close()
    _seal(folder / schema.FILE)
    return moments


def _seal(path: Path) -> None:
    """As an agent does over time; here there was none."""
    connection = schema.open_for_writing(path)
    sealer = compact.Sealer(connection)
    while sealer.step(EVER):
        pass
    connection.close()


def _engine(
    number: int, found: Mapping[str, tuple[Stretch, Stretch]], days: Sequence[str], times: Floats, begin: float
) -> _Engine:
    labels = {"engine": f"10.0.0.{number + 1}:8000", "node": f"lab-{number + 1}", "pool": "chat"}
    schedule = [(0.0, found["good"][1])]
    for day, name in enumerate(days):
        work, idle = found[name]
        schedule += [(day * DAY + MORNING * HOUR + 7.0 * number, work), (day * DAY + EVENING * HOUR, idle)]
    series = courses(Engine(labels, schedule), times, begin)
    rows = np.where(np.isnan(values := np.array(list(series.values())).T), STALE, values)
    return _Engine(f"engine {number}", list(series), rows)


def _play(pipeline: Pipeline, keeping: Keeping, engines: Sequence[_Engine], times: Floats) -> int:
    window, history, moments = pipeline.node.window, keeping._history, 0
    groups = [(window.group(one.group), one) for one in engines]
    columns = [np.array([group.column(labels) for labels in one.series]) for group, one in groups]
    operating, pipeline.operating = pipeline.operating, None
    assert operating is not None
    for row, t in enumerate(times.tolist()):
        for (group, one), places in zip(groups, columns, strict=True):
            group.append(t, places, one.rows[row])
        since = t - times[0]
        if row == 0 or since % _cycle(since):
            continue
        if since % OPERATING_SECONDS < (len(engines) + 1) * CYCLE_SECONDS:
            operating.cycle(t)
        pipeline.observe(t, fast=FAST_SECONDS, cold=bool(since < FAST_SECONDS))
        keeping.cycle(t, {})
        _written(history, t)
        moments += 1
    return moments


def _cycle(since: float) -> float:
    """Seconds between two judgements, then."""
    of_day = since % DAY
    close = any(0.0 <= of_day - hour * HOUR < CLOSE_SECONDS for hour in (MORNING, EVENING))
    return ROW_SECONDS if close else CYCLE_SECONDS


def _written(history: History, t: float) -> None:
    """Wait until what was offered is on the disk: here a day passes in a minute, and the writer may be behind."""
    until = time.monotonic() + COMMIT_SECONDS
    while (history.status.committed or 0.0) < t - 1.0:
        if time.monotonic() > until:
            raise RuntimeError(f"history does not go on: {history.status}")
        time.sleep(0.0005)
