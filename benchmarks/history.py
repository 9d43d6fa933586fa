"""History: bytes a day, CPU a tick, queries, beside Prometheus' own storage of the same samples, and kills.

    python -m benchmarks.history [--series 5000] [--hours 26] [--kills 10] [--prometheus-hours 2]

What is stored are the families and signals of the recorded incidents (app/demo, tests/captures), replayed through the
whole pipeline and looked at every 5 seconds. Each recording is played by as many engines as it takes for so many
series, one step after the other, in another order each time, so that nothing repeats: counters rise by what they rose
by, gauges have what they had. The ticks go through the writer's own parts: what is counted is CPU time of taking,
writing, sealing and thinning.

Prometheus gets the same samples by `promtool tsdb create-blocks-from openmetrics`, for some hours, and the bytes of its
blocks are held against ours for as many. Then a process that writes is killed again and again: what it had said to be
on the disk has to be there, to the bit. Exits with 1 where a budget does not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvitals.series.history import compact, downsample, retention, schema, wal
from kvitals.series.history.export import export
from kvitals.series.history.new_rows import GroupRows, RowIntake, Tick
from kvitals.series.history.reader import HistoryReader
from kvitals.series.promql import QueryLimits, evaluate_range
from kvitals.series.types import METRIC_NAME, STALE, Bools, Floats, Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

DAY_BUDGET = 250e6  # bytes on disk after a day
STEP_SECONDS = 5.0
BEGIN = 1_790_000_000.0 - 1_790_000_000.0 % 7200
ROOT = Path(__file__).parent.parent
RECORDINGS = sorted([*ROOT.glob("app/demo/*.kvcap"), *ROOT.glob("tests/captures/others/*.kvcap")])


@dataclass
class Recorded:
    """One recording's series, every five seconds."""

    name: str
    labels: list[Labels]
    counts: Bools  # of each series whether it is a counter
    first: Floats
    rises: Floats  # [steps, series]
    values: Floats  # [steps, series]


class Engine:
    """Somebody who plays a recording without end."""

    def __init__(self, recorded: Recorded, number: int, window: Window) -> None:
        self._recorded = recorded
        self._random = random.Random(number)
        self._order: list[int] = []
        self._now = recorded.first.copy()
        self._group = window.group(f"{recorded.name} {number}")
        names = [one.with_(engine=f"engine-{number}") for one in recorded.labels]
        self._columns = np.array([self._group.column(one) for one in names])

    def row(self, t: float) -> None:
        """The next five seconds."""
        if not self._order:
            self._order = list(range(len(self._recorded.values)))
            self._random.shuffle(self._order)
        step, counts = self._order.pop(), self._recorded.counts
        self._now[counts] += self._recorded.rises[step, counts]
        row = np.where(counts, self._now, self._recorded.values[step])
        self._group.append(t + self._random.uniform(0.0, 0.02), self._columns, row)


def kind_of(name: str) -> downsample.Kind:
    """By the knowledge, as the agent does."""
    from kvitals.agent.history.kinds import kind_of as known
    from kvitals.rules.loader import load

    global _KNOWN
    if _KNOWN is None:
        _KNOWN = known(load().families)
    return _KNOWN(name)


_KNOWN: downsample.KindOf | None = None


def recorded() -> list[Recorded]:
    """What the recordings say, through the whole pipeline."""
    from kvitals.app.pipeline import Pipeline, Setup
    from kvitals.config import Config
    from kvitals.rules.finding import DocumentSource
    from kvitals.rules.loader import load
    from kvitals.series.recordings import CaptureReader

    setup, found = Setup(load(), Config()), []
    for path in RECORDINGS:
        pipeline = Pipeline(setup, DocumentSource("capture", path.name))
        with CaptureReader.open(path) as reader:
            pipeline.node.expect(reader.header.meta)
            times = []
            for due in pipeline.replay(reader, STEP_SECONDS):
                pipeline.observe(due)
                times.append(due)
        found += list(_of(path.stem, pipeline, np.array(times)))
    return found


def _of(name: str, pipeline: object, times: Floats) -> Iterator[Recorded]:
    from kvitals.app.pipeline import Pipeline

    assert isinstance(pipeline, Pipeline)
    for kind, window in (("families", pipeline.node.window), ("signals", pipeline.judge.signals.store)):
        labels: list[Labels] = []
        columns = []
        for frame in window.select((), -np.inf, np.inf):
            rows = np.maximum(frame.times.searchsorted(times, "right") - 1, 0)
            labels += frame.labels
            columns.append(frame.values[rows])
        values = np.hstack(columns)[len(times) // 4 :]  # when it has begun
        counts = np.array([kind_of(one.name) == "counter" for one in labels])
        with np.errstate(invalid="ignore"):
            rises = np.diff(values, axis=0)
        rises = np.where(np.isfinite(rises) & (rises > 0), rises, 0.0)
        first = np.where(is_stale(values[0]), 0.0, values[0])
        yield Recorded(f"{name} {kind}", labels, counts, first, rises, np.ascontiguousarray(values[1:]))


@dataclass
class Measured:
    ticks: int = 0
    series: int = 0
    samples: int = 0
    take: float = 0.0
    write: float = 0.0
    slowest: float = 0.0  # wall seconds of one commit
    seal: float = 0.0
    thin: float = 0.0
    written: int = 0  # bytes that went to the disk
    day: int = 0  # bytes of the file after a day
    log: int = 0  # of which in ticks
    hours: int = 0  # bytes after --prometheus-hours, sealed
    thinned: int = 0  # bytes of a day of thinned rows


def play(directory: Path, series: int, hours: float, early: float) -> Measured:
    """Write so many hours, and what it took. early: hours after which the size is looked at for the first time."""
    path = directory / schema.FILE
    window, known, engines = Window(60.0, 10 * series), recorded(), []
    while window.series < series:
        engines.append(Engine(known[len(engines) % len(known)], len(engines), window))
    connection = schema.open_for_writing(path)
    writer, intake, found = wal.Log(connection), RowIntake({"": lambda: window}), Measured(series=window.series)
    sealer, began = compact.Sealer(connection), _written()
    for number in range(round(hours * 3600 / STEP_SECONDS)):
        t = BEGIN + number * STEP_SECONDS
        for engine in engines:
            engine.row(t)
        clock = [time.process_time()]
        tick = intake.take(t + 0.1)
        clock.append(time.process_time())
        assert tick is not None
        wall = time.monotonic()
        writer.write(tick)
        found.slowest = max(found.slowest, time.monotonic() - wall)
        clock.append(time.process_time())
        while sealer.step(writer.generation):
            pass
        clock.append(time.process_time())
        found.ticks += 1
        found.take += clock[1] - clock[0]
        found.write += clock[2] - clock[1]
        found.seal += clock[3] - clock[2]
        if found.ticks == round(early * 3600 / STEP_SECONDS):
            found.hours = retention.used_bytes(connection)
        if found.ticks == round(24 * 3600 / STEP_SECONDS):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            found.day, found.written = schema.size_of(path), _written() - began
            found.log = connection.execute("SELECT sum(length(data)) FROM ticks").fetchone()[0]
    connection.close()
    return found


def thinned(path: Path, found: Measured) -> None:
    """Thin everything but the last two hours, and say what is left of a day."""
    connection = schema.open_for_writing(path)
    (end,) = connection.execute("SELECT max(end_ms) FROM segments").fetchone()
    before = retention.used_bytes(connection)
    began = time.process_time()
    removed = 0.0
    while due := downsample.due(connection, end - 2 * 3600 * 1000 + downsample.SPAN_MS):
        due = [one for one in due if one.end < end - 2 * 3600 * 1000]
        if not due:
            break
        removed += sum(one.end - one.start for one in due)
        downsample.thin(connection, due, kind_of)
    found.thin = time.process_time() - began
    (left,) = connection.execute(
        "SELECT sum(length(c.data) + length(c.series) + 24) FROM chunks c JOIN segments s ON s.id = c.id >> 20"
        " WHERE s.step_ms > 0"
    ).fetchone()
    (groups,) = connection.execute("SELECT count(DISTINCT grp) FROM segments").fetchone()
    found.thinned = round(left / (removed / groups / 86_400_000)) if removed else 0
    print(f"thinned: {before / 1e6:.0f} MB of which {retention.used_bytes(connection) / 1e6:.0f} MB are left")
    connection.close()


def queries(path: Path) -> dict[str, float]:
    """Wall seconds of questions about a day, by what is asked; the second time of two."""
    reader = HistoryReader(path)
    span = reader.span()
    assert span is not None
    end = span[1]
    asked = {
        "24 h of one gauge, all engines": "sum(kvitals_requests_running)",
        "24 h of a counter's rate": "sum by (engine) (rate(kvitals_generation_tokens_total[5m]))",
        "24 h of a histogram's p99": "histogram_quantile(0.99, sum by (le) (rate(kvitals_ttft_seconds_bucket[5m])))",
        "1 h of a histogram's p99": "histogram_quantile(0.99, sum by (le) (rate(kvitals_ttft_seconds_bucket[5m])))",
    }
    took = {}
    for name, query in asked.items():
        seconds = 3600.0 if name.startswith("1 h") else 24 * 3600.0
        for _ in range(2):
            began = time.monotonic()
            rows = evaluate_range(query, reader, end - seconds, end, seconds / 300, limits=QueryLimits(seconds=60.0))
            took[name] = time.monotonic() - began
        assert rows, query
    return took


def beside_prometheus(directory: Path, hours: float) -> tuple[int, int]:
    """Samples in the first hours, and bytes of Prometheus' blocks of them. (0, 0) where promtool is not installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return 0, 0
    text, blocks = directory / "openmetrics", directory / "blocks"
    everything = [Matcher(METRIC_NAME, MatchOp.RE, ".+")]
    with text.open("wb") as out:
        count = export(
            HistoryReader(directory / schema.FILE), everything, BEGIN, BEGIN + hours * 3600 - 0.001, "openmetrics", out
        )
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(blocks)], check=True, capture_output=True
    )
    return count, sum(file.stat().st_size for file in blocks.rglob("*") if file.is_file())


def _written() -> int:
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("write_bytes"):
            return int(line.split()[1])
    return 0


def kill_child(directory: Path) -> None:
    """Write without end, and say of each tick when it is committed, until killed."""
    from kvitals.series.history.writer import History, HistorySettings

    wal.GENERATION_TICKS = 7  # so that it may be killed while it seals
    history = History(HistorySettings(directory, least_free=0), kind_of=lambda name: "counter")
    history.start()
    number = last = 0
    while True:
        tick = counted(number)
        if history.offer(tick):
            number += 1
        committed = history.status.committed
        if committed is not None and committed != last:
            last = committed
            print(f"{committed!r}", flush=True)


def counted(number: int) -> Tick:
    """A tick whose values tell which it is."""
    t = BEGIN + number * STEP_SECONDS
    values = np.full((1, len(_COUNTED)), float(number))
    values[0, number % len(_COUNTED)] = STALE
    return Tick(t, [GroupRows("counted", np.array([t]), values, _COUNTED)])


_COUNTED = [Labels({METRIC_NAME: "counted_total", "n": str(n)}) for n in range(40)]


def killed(directory: Path, kills: int, longest: float = 2.0) -> tuple[int, int]:
    """Kill a writer so often, each after `longest` seconds at most, while a reader reads. Ticks that had been shown to
    the killer, and how many of those are lost or wrong."""
    rng, shown, lost = random.Random(1), 0, 0
    for number in range(kills):
        place = directory / f"kill-{number}"
        command = [sys.executable, "-m", "benchmarks.history", "--kill-child", str(place)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            last = float(child.stdout.readline())
            os.set_blocking(child.stdout.fileno(), False)
            deadline, reader = time.monotonic() + rng.uniform(0.0, longest), HistoryReader(place / schema.FILE)
            told = b""
            while time.monotonic() < deadline:
                reader.select([Matcher(METRIC_NAME, MatchOp.EQ, "counted_total")], last - 500.0, last + 500.0)
                told += child.stdout.read() or b""
            child.send_signal(signal.SIGKILL)
            os.set_blocking(child.stdout.fileno(), True)
            told += child.stdout.read()
        complete = told[: told.rfind(b"\n") + 1].split()
        last = float(complete[-1]) if complete else last
        ticks = round((last - BEGIN) / STEP_SECONDS) + 1
        shown += ticks
        lost += _missing(place / schema.FILE, ticks)
    return shown, lost


def _missing(path: Path, count: int) -> int:
    """How many of the first ticks are not there as they were written. Opened for writing too, as by the next agent."""
    schema.open_for_writing(path).close()
    reader = HistoryReader(path, max_samples=1 << 30)
    frames = reader.select([Matcher(METRIC_NAME, MatchOp.EQ, "counted_total")], BEGIN, BEGIN + count * STEP_SECONDS)
    rows = {t: row for frame in frames for t, row in zip(frame.times.tolist(), frame.values, strict=True)}
    order = [_COUNTED.index(one) for one in frames[0].labels] if frames else []
    wrong = 0
    for number in range(count):
        row = rows.get(BEGIN + number * STEP_SECONDS)
        expected = np.ascontiguousarray(counted(number).parts[0].values[0, order]).view(np.uint64)
        if row is None or not np.array_equal(np.ascontiguousarray(row).view(np.uint64), expected):
            wrong += 1
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=5000)
    parser.add_argument("--hours", type=float, default=26.0)
    parser.add_argument("--prometheus-hours", type=float, default=2.0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--kill-child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kill_child:
        kill_child(options.kill_child)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        found = play(directory, options.series, options.hours, options.prometheus_hours)
        took = queries(directory / schema.FILE)
        samples, theirs = beside_prometheus(directory, options.prometheus_hours)
        thinned(directory / schema.FILE, found)
        shown, lost = killed(directory, options.kills)
    return report(found, took, (samples, theirs), (shown, lost, options.kills))


def report(found: Measured, took: dict[str, float], beside: tuple[int, int], kills: tuple[int, int, int]) -> int:
    """Print it; 1 where a budget does not hold."""
    day = found.day or round(found.hours)
    print(f"\n{found.series} series, {found.ticks} ticks")
    print(f"after a day        {day / 1e6:8.1f} MB on disk, {found.log / 1e6:.1f} MB of it not sealed yet")
    print(f"written in it      {found.written / 1e6:8.1f} MB")
    print(f"a day, thinned     {found.thinned / 1e6:8.1f} MB")
    for name, seconds in (("take, on the loop", found.take), ("write", found.write), ("seal", found.seal)):
        print(f"{name:18} {seconds / found.ticks * 1000:8.2f} ms of CPU a tick")
    print(f"slowest commit     {found.slowest * 1000:8.0f} ms")
    print(f"thin               {found.thin:8.1f} s of CPU for all")
    for name, seconds in took.items():
        print(f"{name:34} {seconds * 1000:6.0f} ms")
    samples, theirs = beside
    if samples:
        ours = found.hours
        print(
            f"beside Prometheus: {samples} samples, {ours / samples:.2f} bytes each, Prometheus {theirs / samples:.2f}"
        )
    shown, lost, times = kills
    print(f"{times} kills: {shown} ticks had been shown, {lost} of them lost")
    holds = (not found.day or found.day < DAY_BUDGET) and not lost
    print("ok" if holds else "NOT within the budget")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
