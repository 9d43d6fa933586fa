"""A recording, replayed once by the same pipeline as live; what it said at each cycle is remembered."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.cache import of_node as blocks_of
from kvitals.app.lookups import Lookups, ledger_lookups
from kvitals.app.pipeline import FAST_SECONDS, Pipeline, Setup
from kvitals.app.request_sources import RequestAnswer, RequestQuery
from kvitals.app.request_sources import of_node as requests_of
from kvitals.app.sources.recording import Moments, judge_recording, judged_before, no_window, recorded_pipeline
from kvitals.app.sources.recording_reader import RecordingError, RecordingSpan, open_recording, read_span
from kvitals.diagnoser.triage import Brief
from kvitals.rules.finding import DocumentSource, Finding, Outcome, Triage
from kvitals.series.promql import PromQLError, QueryLimits, evaluate_range, parse
from kvitals.series.recordings import CaptureError, Record
from kvitals.series.types import Labels
from kvitals.ui.web.failure import Failure, NotYetError, UnansweredError
from kvitals.ui.web.sources.base import MAX_LINES, ChartLine, Extent, Happening, PageWindow, PastEvents, step_of
from kvitals.ui.web.sources.marks import marks

MAX_SECONDS = 6 * 3600.0
"""A longer recording is shown in parts: cut it, or ask the terminal for a moment."""

REPLAY_SECONDS = 120.0
"""CPU time that replaying may take."""

TOO_LONG = f"replaying takes more than {REPLAY_SECONDS:.0f} s of CPU; use a terminal: kvitals triage FILE --at"

LIMITS = QueryLimits(samples=5_000_000, series=20_000, seconds=5.0)


PATIENCE_SECONDS = 1.0
"""How long an answer waits for the replay to end, before whoever asks is told how far it is."""

YIELD_SECONDS = 0.0005
"""A pause after each moment, in which pages that are asked for meanwhile come to run."""

Outcomes = set[tuple[str, Labels, Outcome]]
Said = tuple[float, Brief]
"""What was said at a cycle, and when."""


class Recording:
    """Answers from one file, which a thread replays: until it is done every question raises NotYetError, but for
    the extent. Asked from several threads."""

    kind: Literal["recording"] = "recording"
    live = False

    def __init__(self, path: Path, name: str, setup: Setup) -> None:
        """Begin to replay it. Raises UnansweredError where there is nothing to be shown."""
        self.path, self.name = path, name
        self._setup = setup
        self._lock = threading.Lock()
        self._said: list[Said] = []
        try:
            self._span = _extent(path)
        except (CaptureError, RecordingError) as error:
            raise UnansweredError(unusable(name, str(error))) from error
        self._start, self._end = self._span.first, self._span.last
        self._at = self._start
        self._done, self._closed = threading.Event(), False
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="replay", daemon=True).start()

    def close(self) -> None:
        """Nobody will ask it again: no more of it is replayed."""
        self._closed = True

    def replayed(self) -> float:
        """The share of it that was judged; 1 where it can be asked, or says why not."""
        share = (self._at - self._start) / (self._end - self._start)
        return 1.0 if self._done.is_set() else min(share, 0.99)

    def _run(self) -> None:
        try:
            self._replay()
        except (CaptureError, RecordingError) as error:
            self._error = UnansweredError(unusable(self.name, str(error)))
        except PromQLError as error:
            self._error = UnansweredError(unusable(self.name, f"it could not be diagnosed: {error}"))
        except Exception as error:  # told to whoever asks: nobody else looks at this thread
            self._error = error
        self._done.set()

    def _replay(self) -> None:
        until = time.thread_time() + REPLAY_SECONDS
        seconds = self._end - self._start
        pipeline = recorded_pipeline(self.path, self._setup, self._span, seconds + 2 * FAST_SECONDS)
        pipeline.source = DocumentSource("capture", self.name)
        outcomes: Outcomes | None = None
        said: Brief | None = None
        with open_recording(self.path) as reader:
            pipeline.node.expect(reader.meta)
            for at in judged_before(self._end, pipeline, self._within(reader, until)):
                before, outcomes = outcomes, _outcomes(pipeline)
                if said is None or outcomes != before:
                    said = pipeline.brief(said)
                self._said.append((at, said))
                self._at = at
                time.sleep(YIELD_SECONDS)
        pipeline.flush(self._end)
        pipeline.observe_last_regime(self._start, self._end)
        self._said.append((self._end, pipeline.brief(said)))
        self._last = pipeline.triage()
        self._pipeline = pipeline

    def _within(self, records: Iterable[Record], until: float) -> Iterator[Record]:
        """The records, while somebody wants them and there is time. Raises RecordingError."""
        for record in records:
            if self._closed or time.thread_time() > until:
                raise RecordingError(TOO_LONG)
            yield record

    def _replayed(self) -> Pipeline:
        """What was replayed, once it is. Raises NotYetError, UnansweredError."""
        if not self._done.wait(PATIENCE_SECONDS):
            raise NotYetError(share=self.replayed())
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._pipeline

    def empty_pages(self) -> frozenset[str]:
        """A recording has no week; once it is replayed it is known whether it has KV events and requests."""
        empty = {"efficiency"}
        if self._done.is_set() and self._error is None:
            node = self._pipeline.node
            if node.ledger is None or not node.ledger.engines:
                empty |= {"cache", "cascades"}
            if not node.requests.store.newest(1, None):
                empty.add("requests")
        return frozenset(empty)

    def findings(self, look: PageWindow | None) -> Triage:
        """The verdict at the end of a window, as `kvitals triage FILE --from --to` has it."""
        self._replayed()
        if look is None:
            return self._last
        try:
            judged = judge_recording(self.path, self._setup, Moments(at=look.end, start=look.start))
        except (CaptureError, RecordingError, PromQLError) as error:
            raise UnansweredError(
                Failure(
                    "This window cannot be diagnosed",
                    str(error),
                    "Choose a longer window, or a later one.",
                )
            ) from error
        return msgspec.structs.replace(judged.document, source=self._last.source)

    def extent(self) -> Extent:
        return Extent(self._start, self._end, min(FAST_SECONDS, self._end - self._start))

    def series(self, query: str, start: float, end: float) -> list[ChartLine]:
        pipeline = self._replayed()
        try:
            expr = parse(query)
            with self._lock:
                found = evaluate_range(expr, pipeline, start, end, step_of(start, end), limits=LIMITS)
        except PromQLError as error:
            raise UnansweredError(no_answer(query, str(error))) from error
        lines = []
        for one in found[:MAX_LINES]:
            points = [(t, v) for t, v in zip(one.times.tolist(), one.values.tolist(), strict=True) if math.isfinite(v)]
            if points:
                lines.append(ChartLine(dict(one.labels), points))
        return lines

    def past(self, start: float, end: float) -> PastEvents:
        with_marks = marks(lambda query: self.series(query, self._start, self._end))
        happened = [*_verdicts(self._said, self._end), *episodes(self._said, self._end), *with_marks]
        return PastEvents([one for one in happened if one.start <= end and (one.end or one.start) >= start])

    def blocks(self) -> Blocks:
        return blocks_of(self._replayed().node)

    def requests(self, asked: RequestQuery) -> RequestAnswer:
        return requests_of(self._replayed().node, asked)

    def lookups(self) -> Lookups:
        ledger = self._replayed().node.ledger
        lookups = ledger_lookups(ledger, self.name) if ledger is not None else None
        if lookups is None:
            raise UnansweredError(NO_LOOKUPS)
        return lookups


NO_LOOKUPS = Failure(
    "No cache lookups are known",
    "What-if replays lookups, which come from the KV events that engines publish.",
    "Enable KV events (kvitals check names the flag), then record again or let the agent listen.",
    ("kvitals check",),
)


def unusable(name: str, why: str) -> Failure:
    """A file that can not be shown."""
    return Failure(
        "This recording cannot be shown",
        f"{name}: {why}.",
        "Choose another recording under Sources. kvitals record makes a recording.",
        ("kvitals record http://HOST:8000 --out incident.kvcap --for 60s",),
    )


def no_answer(query: str, why: str) -> Failure:
    """A query that was refused."""
    return Failure("A query has no answer", f"{query[:200]}: {why}", "Choose fewer series, or a shorter window.")


def episodes(said: Sequence[Said], last: float) -> list[Happening]:
    """Findings from when they were told until they were told no more; those of the last cycle go on to `last`."""
    open_: dict[str, Happening] = {}
    done: list[Happening] = []
    for t, brief in said:
        now = {finding.id: finding for finding in brief.open}
        done += [replace(open_.pop(key), end=t) for key in list(open_) if key not in now]
        for key, finding in now.items():
            if key not in open_:
                open_[key] = happening_of(finding, t)
    return [*done, *(replace(one, end=last) for one in open_.values())]


def happening_of(finding: Finding, at: float, end: float | None = None) -> Happening:
    """A finding on the time axis."""
    since = finding.since if finding.since is not None else at
    return Happening(
        "finding", finding.title, since, end, finding.severity, finding.entity.title, finding.code, finding.conclusion
    )


def _verdicts(said: Sequence[Said], last: float) -> Iterator[Happening]:
    """The verdict over time, as stretches in which it was the same."""
    for (healthy, text), several in groupby(said, key=lambda one: (one[1].healthy, one[1].verdict)):
        times = [t for t, _ in several]
        end = next((t for t, _ in said if t > times[-1]), last)
        yield Happening("verdict", text, times[0], end, {True: "healthy", False: "unhealthy", None: "unknown"}[healthy])


def _outcomes(pipeline: Pipeline) -> Outcomes:
    """What the beginning of a document rests on: while it stays the same, so does what is said."""
    return {
        (j.rule.code, j.entity, j.outcome)
        for j in pipeline.judgements
        if j.outcome == "fired" or j.rule.core or j.is_pending
    }


def _extent(path: Path) -> RecordingSpan:
    """The first and the last moment, and what cannot be read. Raises CaptureError, RecordingError."""
    span = read_span(path)
    if not math.isfinite(span.last - span.first) or span.last - span.first > MAX_SECONDS:
        raise RecordingError(f"it is longer than {MAX_SECONDS / 3600:.0f} hours")
    if span.last <= span.first:
        raise RecordingError(no_window("it", span))
    return span
