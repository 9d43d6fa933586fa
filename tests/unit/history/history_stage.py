"""A telemetry that never was, for the tests of history: groups of series that count, fall, swing, come and go."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from kvitals.series.history import compact, downsample, schema, wal
from kvitals.series.history.new_rows import RowIntake, Tick
from kvitals.series.history.retention import RetentionLimits
from kvitals.series.history.writer import History, HistorySettings, HistoryStatus
from kvitals.series.types import STALE, Frame, Labels, Matcher
from kvitals.series.window import Window

START = 1_800_000_000.0
STEP = 5.0


def kind_of(name: str) -> downsample.Kind:
    return "counter" if name.endswith(("_total", "_bucket", "_count", "_sum")) else "gauge"


def labels(name: str, **more: str) -> Labels:
    return Labels({"__name__": name, **more})


class Play:
    """Writes the same random rows to each of some windows. `row` is one moment of all groups."""

    def __init__(self, seed: int, windows: Sequence[Window], groups: int = 3) -> None:
        self.random = random.Random(seed)
        self.windows = windows
        self.series = {
            f"g{g}": [
                *(labels("requests_total", engine=f"e{g}", outcome=o) for o in ("ok", "bad")),
                *(labels("wait_bucket", engine=f"e{g}", le=le) for le in ("0.1", "0.5", "1.0", "+Inf")),
                labels("wait_sum", engine=f"e{g}"),
                labels("running", engine=f"e{g}"),
                labels("usage", engine=f"e{g}"),
                labels("seldom", engine=f"e{g}"),
            ]
            for g in range(groups)
        }
        self.values = {name: np.zeros(len(some)) for name, some in self.series.items()}
        self.there = {name: {*range(len(some) - 1)} for name, some in self.series.items()}

    def row(self, t: float) -> None:
        for name, some in self.series.items():
            chance = self.random.random()
            if chance < 0.01:
                self._everywhere(name, t, None)
                continue
            if chance < 0.02:
                self.values[name][:] = 0.0  # a restart
            self._move(name)
            row = self.values[name].copy()
            gone = [i for i in range(len(some)) if i not in self.there[name]]
            row[gone] = STALE
            self._everywhere(name, t + self.random.random() / 50, row)

    def _move(self, name: str) -> None:
        rng, values = self.random, self.values[name]
        values[0] += rng.randrange(4)
        values[1] += rng.random() < 0.05
        observed = sorted(rng.randrange(4) for _ in range(rng.randrange(3)))
        for bucket in observed:
            values[2 + bucket : 6] += 1
        values[6] += sum(rng.expovariate(2.0) for _ in observed)
        values[7] = rng.randrange(20)
        values[8] = rng.choice([values[8], rng.random(), float("nan"), 1.0])
        values[9] = rng.random()
        if rng.random() < 0.1:
            self.there[name] ^= {9}
        if rng.random() < 0.02:
            self.there[name] ^= {8}

    def _everywhere(self, name: str, t: float, row: np.ndarray | None) -> None:
        for window in self.windows:
            group = window.group(name)
            if row is None:
                group.append_gap(t)
                continue
            columns = [group.column(one) for one in self.series[name]]
            ended = [c for c, v in zip(columns, row.tolist(), strict=True) if c is not None and is_gone(v)]
            group.end([c for c in ended if c is not None])
            kept = [(c, v) for c, v in zip(columns, row, strict=True) if c is not None and c not in ended]
            group.append(t, [c for c, _ in kept], [v for _, v in kept])


def is_gone(value: float) -> bool:
    return bool(np.array([value]).view(np.uint64)[0] == np.array([STALE]).view(np.uint64)[0])


class Synchronous:
    """A writer without its thread: ticks go straight to the file, and sealing is done at once."""

    def __init__(self, path: Path, window: Callable[[], Window]) -> None:
        self.connection = schema.open_for_writing(path)
        self.log = wal.Log(self.connection)
        self.sealer = compact.Sealer(self.connection)
        self.intake = RowIntake({"": window})

    def tick(self, t: float) -> None:
        tick = self.intake.take(t)
        if tick is not None:
            self.log.write(tick)
            while self.sealer.step(self.log.generation):
                pass

    def restart(self) -> None:
        self.log = wal.Log(self.connection)

    def thin(self, before: float) -> None:
        while due := downsample.due(self.connection, round(before * 1000)):
            downsample.thin(self.connection, due, kind_of)


class Live:
    """A window as `Joined` asks it."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def recent(self, matchers: Sequence[Matcher], start: float, end: float) -> tuple[list[Frame], float]:
        return self.window.select(matchers, start, end), self.window.whole_since


def history(directory: Path, **settings: object) -> History:
    """A writer with its thread, that has begun."""
    kept = RetentionLimits(**{k: v for k, v in settings.items() if k in ("full", "thinned", "most")})  # type: ignore[arg-type]
    least = settings.get("least_free", 0)
    assert isinstance(least, int)
    made = History(HistorySettings(directory, kept, least), kind_of)
    made.start()
    return made


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for something. Raises AssertionError where it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def written(made: History, tick: Tick) -> HistoryStatus:
    """Offer a tick and wait until it is written."""
    assert made.offer(tick)
    until(lambda: made.status.committed == tick.t, f"tick not written: {made.status}")
    return made.status


def ticks(count: int, start: float = START, seed: int = 1) -> Iterator[Tick]:
    """Ticks of a random telemetry."""
    window = Window(3600.0, 10_000)
    play, intake = Play(seed, [window]), RowIntake({"": lambda: window})
    for number in range(count):
        t = start + number * STEP
        play.row(t)
        tick = intake.take(t + 0.5)
        assert tick is not None
        yield tick


def flip(path: Path, bit: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_in(path: Path, table: str, column: str, key: str, at: int = -9) -> None:
    """Flip a bit of one cell, past SQLite: of its bytes number `at`."""
    connection = sqlite3.connect(path)
    (cell,) = connection.execute(f"SELECT CAST({column} AS BLOB) FROM {table} WHERE {key}").fetchone()
    connection.close()
    data, whole = path.read_bytes(), bytes(cell)
    part = whole if whole in data else whole[-200:]  # the rest is on other pages
    assert data.count(part) >= 1
    flip(path, 8 * (data.rindex(part) + at % len(part)) + 3)
