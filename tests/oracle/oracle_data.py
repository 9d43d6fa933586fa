"""The samples that both sides read: everything that goes wrong in real series, small enough to load in a second.

Values are whole numbers and eighths, so that sums are exact whatever their order and a comparison of two
computed values does not hang on the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvitals.series.types import METRIC_NAME, STALE, Floats, Frame, Labels, Matcher

START = 1_700_000_000.0
COUNT = 220
STEP = 15.0
END = START + COUNT * STEP

BOUNDS = ("0.1", "0.5", "1", "2.5", "10", "+Inf")


class Memory:
    """A SeriesSource over frames in memory."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = list(frames)

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        found = []
        for frame in self._frames:
            columns = [i for i, x in enumerate(frame.labels) if all(m.matches(x) for m in matchers)]
            rows = (frame.times >= start) & (frame.times <= end)
            if columns and rows.any():
                labels = [frame.labels[i] for i in columns]
                found.append(Frame(frame.times[rows], frame.values[rows][:, columns], labels))
        return found


def labels(name: str, **others: str) -> Labels:
    return Labels({METRIC_NAME: name, **others})


def frames() -> list[Frame]:
    rng = np.random.default_rng(20230131)
    return [
        *(_engine(rng, i) for i in range(4)),
        _odd_gauges(rng),
        _sparse(rng),
        _odd_histograms(rng),
        _facts(),
    ]


def _times(phase: float, count: int = COUNT, step: float = STEP) -> Floats:
    return np.round(START + phase + np.arange(count) * step, 3)


def _engine(rng: np.random.Generator, index: int) -> Frame:
    """One scrape target: a healthy engine, except that it restarts and is sometimes not reached."""
    names, columns = [], []
    who = {"engine": f"e{index}", "model": f"m{index % 2}", "pool": "p"}
    restart = 60 + 37 * index
    for name in ("requests_total", "tokens_total"):
        names.append(labels(name, **who))
        columns.append(_counter(rng, restart, 40 if name == "tokens_total" else 3))
    buckets = np.cumsum([_counter(rng, restart, 2) for _ in BOUNDS], axis=0)
    for le, column in zip(BOUNDS, buckets, strict=True):
        names.append(labels("latency_seconds_bucket", le=le, **who))
        columns.append(column)
    names.append(labels("latency_seconds_count", **who))
    columns.append(buckets[-1])
    for name, scale in (("running", 16), ("waiting", 4)):
        names.append(labels(name, **who))
        columns.append(rng.integers(0, scale * 8, COUNT) / 8)
    values = np.stack(columns, axis=1)
    values[100 + 20 * index : 106 + 20 * index] = STALE  # not reached for a minute and a half
    if index == 3:
        values[180:] = STALE  # gone for good
    return Frame(_times(index * 3.217), values, names)


def _counter(rng: np.random.Generator, restart: int, rate: int) -> Floats:
    steps = rng.integers(0, 2 * rate + 1, COUNT).astype(np.float64)
    values = np.cumsum(steps)
    values[restart:] -= values[restart] - steps[restart]
    return values


def _odd_gauges(rng: np.random.Generator) -> Frame:
    """Gauges with every value that is no ordinary number, on a jittered time axis with a pause in it."""
    count = 160
    jitter = rng.integers(0, 5000, count) / 1000
    times = np.round(START + 200 + np.arange(count) * 15 + jitter, 3)
    times[120:] += 420
    walk = np.cumsum(rng.integers(-8, 9, (count, 8)), axis=0) / 8
    walk[:, 1] = np.where(rng.random(count) < 0.2, np.nan, walk[:, 1])
    walk[:, 2] = np.where(rng.random(count) < 0.2, np.inf, walk[:, 2])
    walk[:, 3] = np.where(rng.random(count) < 0.3, STALE, walk[:, 3])
    walk[:, 4] = 7.5
    walk[:, 5] = np.nan
    walk[:, 6] = np.where(rng.random(count) < 0.1, rng.choice([np.inf, -np.inf, np.nan], count), walk[:, 6])
    walk[:, 7] = 10.0 ** rng.integers(-3, 4, count) * np.sign(walk[:, 7] + 0.01)
    kinds = ("plain", "nan", "inf", "gaps", "constant", "allnan", "mixed", "wide")
    return Frame(times, walk, [labels("gauge", kind=k, engine=f"e{i % 4}") for i, k in enumerate(kinds)])


def _sparse(rng: np.random.Generator) -> Frame:
    """Series with one sample, two samples, a late start, an early end; a second name with equal labels."""
    values = np.full((COUNT // 4, 7), STALE)
    values[20, 0] = 3.0
    values[[20, 21], 1] = [4.0, 6.5]
    values[[5, 30], 2] = [1.0, 2.0]
    values[25:, 3] = rng.integers(0, 50, COUNT // 4 - 25)
    values[:25, 4] = rng.integers(0, 50, 25)
    values[:, 5] = np.arange(COUNT // 4) % 9
    values[:, 6] = np.arange(COUNT // 4) % 7 + 0.5
    kinds = ("one", "two", "far", "late", "early")
    names = [labels("sparse", kind=k) for k in kinds]
    names += [labels("twin_a", engine="e0"), labels("twin_b", engine="e0")]
    return Frame(_times(1.5, COUNT // 4, 60.0), values, names)


def _odd_histograms(rng: np.random.Generator) -> Frame:
    """Histograms that are not as they should be, one kind each."""
    names: list[Labels] = []
    columns: list[Floats] = []

    def add(kind: str, bounds: Sequence[str], counts: Sequence[Floats], name: str = "odd_bucket") -> None:
        for le, column in zip(bounds, counts, strict=True):
            names.append(labels(name, kind=kind, le=le))
            columns.append(np.array(column, dtype=np.float64))

    def rising(size: int) -> list[Floats]:
        return list(np.cumsum(np.cumsum(rng.integers(0, 4, (size, COUNT)), axis=1), axis=0).astype(float))

    add("no_inf", ("1", "2", "4"), rising(3))
    add("only_inf", ("+Inf",), rising(1))
    add("falling", ("1", "2", "4", "+Inf"), rising(4)[::-1])
    add("negative", ("-2", "-1", "0", "3", "+Inf"), rising(5))
    add("twice", ("1", "1.0", "2", "+Inf"), rising(4))
    add("zeros", ("1", "2", "+Inf"), [np.zeros(COUNT)] * 3)
    add("no_number", ("1", "x", "", "+Inf"), rising(4))
    holes = rising(5)
    for column in holes[:4]:
        column[rng.random(COUNT) < 0.3] = STALE
    add("holes", ("0.5", "1", "2", "4", "+Inf"), holes)
    nans = rising(4)
    for column in nans:
        column[rng.random(COUNT) < 0.2] = np.nan
    add("nan", ("1", "2", "4", "+Inf"), nans)
    infinite = rising(3)
    infinite[2][50:] = np.inf
    add("infinite", ("1", "2", "Inf"), infinite)
    late = rising(3)
    late[2][:100] = STALE
    add("late_inf", ("1", "2", "+Inf"), late)
    add("no_inf", ("1", "+Inf"), rising(2), name="odd2_bucket")
    return Frame(_times(7.001), np.stack(columns, axis=1), names)


def _facts() -> Frame:
    """What joins are made with: one series an engine, one for two engines, a version that changed."""
    names = [labels("info", engine=f"e{i}", version=f"v{i % 2}", zone="z") for i in range(3)]
    names += [labels("slots", engine=f"e{i}") for i in range(4)]
    names += [labels("price", model=f"m{i}", currency="x") for i in range(2)]
    names += [labels("info", engine="e3", version="v1"), labels("info", engine="e3", version="v2")]
    values = np.ones((COUNT, len(names)))
    values[:, 3:7] = [8, 16, 16, 4]
    values[:, 7:9] = [0.5, 2]
    values[110:, 9] = STALE
    values[:110, 10] = STALE
    return Frame(_times(0.0), values, names)
