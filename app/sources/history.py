"""Verdicts on moments that are past, from the history on disk: the rows go into the windows again, and the same judge
looks at them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from kvitals.agent.collectors.status import STATUS
from kvitals.app.pipeline import (
    FAST_SECONDS,
    SIGNALS,
    SLOW_SECONDS,
    Pipeline,
    Setup,
    read_seconds,
    row_times,
    watched_span,
)
from kvitals.app.sources.losses import SourceLoss
from kvitals.app.sources.recording import Moments, RecordingVerdict, with_window
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.diagnoser.judgement import Memory, needed_duration, seconds
from kvitals.diagnoser.review.incidents import TOLD
from kvitals.diagnoser.steps import row_gap
from kvitals.rules.finding import DocumentSource
from kvitals.series.history import event_log
from kvitals.series.history.damage import time_text
from kvitals.series.history.reader import HistoryReader
from kvitals.series.types import Frame, Labels
from kvitals.series.undecodable import UNDECODABLE
from kvitals.series.window import Window

MAX_CELLS = 20_000_000
"""That are read into memory, 8 bytes each."""
LOOKBACK_SECONDS = 300.0
BASELINE_SECONDS = 7200.0
RESUME_SECONDS = 1200.0
"""Of its last run that an agent goes on from: the longest window of a signal, and the time of a restart."""
CYCLE_SECONDS = 15.0
OFTEN_SECONDS, SELDOM_SECONDS = 300.0, 30.0
"""The last seconds before a moment, which are judged at every cycle, and how often those before them are."""
ROWS_LATE = 3
"""So many rows may be missing at the end before that counts as a gap."""
ROWS_IN_WINDOW = 5
"""Fewer of them say nothing: where rows are further apart, as those that are old, the window is longer."""


@dataclass
class EngineLimit:
    """most: engines whose series are read; this one is among them, and the others are those that are read first."""

    most: int
    engine: Labels
    kept: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.kept.add(self.engine.get("engine", ""))

    def takes(self, labels: Labels) -> bool:
        """Whether a series is read: it is of no engine, or of one of those."""
        name = labels.get("engine", "")
        if not name or name in self.kept:
            return True
        if name in self.left_out or len(self.kept) >= self.most:
            self.left_out.add(name)
            return False
        self.kept.add(name)
        return True


def judge_history(path: Path, setup: Setup, moments: Moments, engines: EngineLimit | None = None) -> RecordingVerdict:
    """The verdict at one moment of a history; without one, at its end. engines: not all are judged.

    Raises HistoryError, PromQLError, RecordingError where there is nothing to judge.
    """
    reader = HistoryReader(path, max_samples=MAX_CELLS)
    span = reader.span()
    if span is None:
        raise _without_rows(reader, float("-inf"), float("inf"), f"{path} holds nothing yet")
    asked_at = moments.at if moments.at is not None else span[1]
    if asked_at > span[1] + LOOKBACK_SECONDS:
        why = f"history has no data at {time_text(asked_at)}: its newest rows are of {time_text(span[1])}"
        raise _without_rows(reader, span[1], asked_at, why)
    at = min(asked_at, span[1])
    step = _step(reader, at, span[0])
    late = max(ROWS_LATE * step, CYCLE_SECONDS)
    at = _end_of_rows(reader, at, late)
    if moments.start is not None and moments.start >= at:
        why = f"history has no data between {time_text(moments.start)} and {time_text(asked_at)}: no agent wrote any"
        raise _without_rows(reader, moments.start, asked_at, why)
    asked = at - moments.start if moments.start is not None else FAST_SECONDS
    fast = max(asked, ROWS_IN_WINDOW * step)
    cycle = max(CYCLE_SECONDS, step)
    run_up = max(seconds(needed_duration(rule, proven=False)) for rule in setup.knowledge.rules.values()) + cycle
    first, now = _reported(reader, at - run_up), _reported(reader, at)
    lead = max(fast, SLOW_SECONDS) + LOOKBACK_SECONDS + run_up
    pipeline = Pipeline(with_window(setup, lead), DocumentSource("agent", f"history, {path}"))
    pipeline.operating = None  # what was computed then is among the rows
    cells = _fill(pipeline, reader, (at - lead, at, at - run_up), engines)
    if cells == 0:
        why = f"history has no data between {time_text(at - lead)} and {time_text(at)}"
        raise _without_rows(reader, at - lead, at, why)
    if engines is not None and engines.left_out:
        count = len(engines.kept) + len(engines.left_out)
        name = f"{pipeline.source.name}: {len(engines.kept)} of {count} engines"
        pipeline.source = msgspec.structs.replace(pipeline.source, name=name)
    judge = pipeline.judge
    judge.memory.update({key: one.memory(at - run_up) for key, one in first.items()})
    before = _with_rows(pipeline.node.window, _run_up(at, run_up, cycle), late)
    window = pipeline.node.window
    for _ in pipeline.observe_all([watched_span(span[0], t, read_seconds(window, t, fast, late)) for t in before]):
        pass
    last_true = {key: judge.memory[key].last_true for key in now if key in judge.memory}
    judge.memory.update({key: one.memory(last_true.get(key)) for key, one in now.items()})
    pipeline.observe_span(watched_span(span[0], at, read_seconds(window, at, fast, late)))
    pipeline.losses = [
        *_longer_window(step, fast, asked),
        *_no_rows(at, asked_at, late),
        *_damage(reader, at - lead, at, at == span[1]),
        *_not_shown(pipeline, now),
    ]
    return RecordingVerdict(pipeline, pipeline.triage())


def _longer_window(step: float, fast: float, asked: float) -> list[SourceLoss]:
    """That rows are too far apart. fast, asked: seconds of the window that is used, and that was asked for."""
    losses = []
    if fast > asked:
        apart = f"the rows of the history at that time are {step:.0f} s apart"
        losses.append(SourceLoss(f"{apart}: the window is {fast:.0f} s, not {asked:.0f} s", hides=False))
    return losses


def _end_of_rows(reader: HistoryReader, at: float, late: float) -> float:
    """The moment, or that of the last row before it where no agent ran since: its rows say nothing of later ones."""
    times = row_times(reader, at - LOOKBACK_SECONDS, at)
    return float(times[-1]) if len(times) and at - times[-1] > late else at


def _run_up(at: float, length: float, cycle: float) -> list[float]:
    """The moments before `at` that are judged, the same for whatever moment is asked for. Few rules wait for more than
    some minutes, and those do not need every cycle."""
    every = np.arange(math.ceil((at - length) / cycle) * cycle, at - cycle / 2, cycle)
    seldom = max(cycle, SELDOM_SECONDS)
    of_minutes = np.isclose(every % seldom, 0) | (every >= at - OFTEN_SECONDS)
    return [float(moment) for moment in every[of_minutes]]


def _with_rows(window: Window, moments: Sequence[float], late: float) -> list[float]:
    """Those of the moments at which an agent ran: what rows show of a time without any was not so."""
    times = row_times(window, moments[0] - late, moments[-1]) if moments else np.empty(0)
    places = np.searchsorted(times, moments, "right") - 1
    return [m for m, place in zip(moments, places, strict=True) if place >= 0 and m - times[place] <= late]


def _no_rows(at: float, asked_at: float, late: float) -> list[SourceLoss]:
    """That the rows end before the moment that was asked for: nobody knows what was true then."""
    if asked_at - at <= late:
        return []
    text = f"history has no rows between {time_text(at)} and {time_text(asked_at)}: no agent wrote any"
    return [SourceLoss(text, at, asked_at)]


def _damage(reader: HistoryReader, start: float, end: float, is_last: bool) -> list[SourceLoss]:
    """What of some time is damaged. is_last: the history has no row after it. What is lost behind it is then stated
    too: it is newer than all that is judged."""
    losses = reader.inspect(start, math.inf if is_last else end, thorough=False)
    if not losses:
        return []
    first, last = losses.span or (-math.inf, math.inf)
    return [SourceLoss(f"history: {losses.summary}", min(first, end), last)]


def _without_rows(reader: HistoryReader, start: float, end: float, why: str) -> RecordingError:
    """Why there are no rows at that time: they are damaged, or `why`."""
    losses = reader.inspect(start, end)
    return RecordingError(f"history has no readable data at that time: {losses.message}" if losses else why)


def _step(reader: HistoryReader, at: float, first: float) -> float:
    """Seconds between rows around a moment. Raises RecordingError where there are none."""
    gap = row_gap(reader, at - LOOKBACK_SECONDS, at) if at > first else None
    if gap is None:
        why = (
            f"history has no data at {time_text(at)}: it begins at {time_text(first)}, and has gaps while no agent ran"
        )
        raise _without_rows(reader, at - LOOKBACK_SECONDS, at, why)
    return gap


def _fill(
    pipeline: Pipeline, reader: HistoryReader, span: tuple[float, float, float], engines: EngineLimit | None
) -> int:
    """Put the rows of start <= t <= end into the windows, of signals those before `until`; how many cells they were.
    span: start, end, until.

    Raises RecordingError where they are too many.
    """
    cells = 0
    for group in _groups(pipeline, reader, span):
        cells += group.frame.values.size
        group.place(engines)
    return cells


def resume(pipeline: Pipeline, reader: HistoryReader, at: float) -> dict[str, float]:
    """Put what an agent wrote in the last `RESUME_SECONDS` before `at` into the windows of one that begins; not of
    targets that it does not have. Returns the time of each group's last row, by name in the history.

    Raises HistoryError, RecordingError where there is too much.
    """
    span = reader.span()
    if span is None or span[1] < at - RESUME_SECONDS:
        return {}
    known = set(reader.group_names().values())
    gone = {name for name in known if f"{name}{STATUS}" in known} - pipeline.node.window.groups.keys()

    def is_wanted(name: str) -> bool:
        return name not in gone and not name.endswith(STATUS)  # a target's first answer renames its status

    until = dict[str, float]()
    for group in _groups(pipeline, reader, (at - RESUME_SECONDS, at, at), is_wanted):
        if len(group.frame.times):
            group.place(None)
            until[group.stored] = float(group.frame.times[-1])
    return until


class _Group(NamedTuple):
    """Rows of a group of series. stored: its name in the history; name: that in the window that they belong to."""

    stored: str
    name: str
    window: Window
    frame: Frame

    def place(self, engines: EngineLimit | None) -> None:
        """Put the rows into the window."""
        group, frame = self.window.group(self.name), self.frame
        taken = (engines is None or engines.takes(labels) for labels in frame.labels)
        columns = [group.column(labels) if mine else None for labels, mine in zip(frame.labels, taken, strict=True)]
        kept = [place for place, column in enumerate(columns) if column is not None]
        numbers = [column for column in columns if column is not None]
        for t, row in zip(frame.times.tolist(), frame.values[:, kept], strict=True):
            group.append(t, numbers, row)
        group.end(numbers)  # those that are judged anew begin again


def _groups(
    pipeline: Pipeline,
    reader: HistoryReader,
    span: tuple[float, float, float],
    is_wanted: Callable[[str], bool] = lambda _: True,
) -> Iterator[_Group]:
    """The rows of start <= t <= end; of signals, whose baselines are long, those before `until`. span: start, end,
    until. is_wanted: of groups of what was measured, by name.

    Raises RecordingError where they are too many.
    """
    start, end, until = span
    cells = 0
    measured = reader.groups(start, end, lambda name: not name.startswith(SIGNALS) and is_wanted(name))
    judged = reader.groups(until - BASELINE_SECONDS, until, lambda name: name.startswith(SIGNALS))
    for stored, frame in chain(measured, judged):
        cells += frame.values.size
        if cells > MAX_CELLS:
            raise RecordingError(
                "the range has more data than kvitals can read at once: request a shorter one with --from and --to"
            )
        window = pipeline.judge.signals.store if stored.startswith(SIGNALS) else pipeline.node.window
        yield _Group(stored, stored.removeprefix(SIGNALS), window, frame)


class _SinceWhen(msgspec.Struct, frozen=True):
    """What of a finding's document is needed to go on from it."""

    since_at_least: bool = False
    kind: str = ""
    severity: str = ""
    muted: str = ""

    @property
    def is_trouble(self) -> bool:
        """Whether it is what a reader of the verdict would miss."""
        return self.kind in ("cause", "symptom") and self.severity in ("page", "ticket") and not self.muted


@dataclass(frozen=True)
class _Reported:
    """A finding that an agent reported at a moment."""

    code: str
    start: float
    document: _SinceWhen

    def memory(self, last_true: float | None) -> Memory:
        """What an agent remembered of it, if it was last true then."""
        return Memory(self.start, last_true, fired=True, from_start=self.document.since_at_least)


def _reported(reader: HistoryReader, at: float) -> dict[str, _Reported]:
    """What an agent reported at a moment, by key of what is remembered. An episode begins when its trouble did, and is
    reported later."""
    with reader.reading() as connection:
        known = event_log.open_at(connection, at)
        first = min((one.start for one in known), default=at)
        told = {event.key for event in event_log.events(connection, first, at, TOLD)}
    known = [one for one in known if one.key in told]
    found = {}
    for one in known:
        with contextlib.suppress(*UNDECODABLE):
            document = msgspec.json.decode(one.document, type=_SinceWhen)
            found[f"{one.code}{Labels(one.entity)}"] = _Reported(one.code, one.start, document)
    return found


def _not_shown(pipeline: Pipeline, reported: Mapping[str, _Reported]) -> list[SourceLoss]:
    """What an agent reported then and the rows do not show: it had more of them than are kept."""
    shown = {j.key for j in pipeline.judgements if j.outcome == "fired"}
    codes = {one.code for key, one in reported.items() if key not in shown and one.document.is_trouble}
    if not codes:
        return []
    listed = ", ".join(sorted(codes))
    return [SourceLoss(f"the agent reported {listed} at that time; the rows that are kept do not show it", hides=False)]
