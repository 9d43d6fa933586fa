"""A recording, replayed once by the same pipeline as live; what it said at each cycle is remembered."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from agent.config import Seconds
from agent.requests.store import MAX_RECORDS
from agent.requests.tail import OFS, Recent
from rules.finding import Finding, Outcome, Source, Triage
from series.capture import CaptureError, CaptureReader, Record
from series.promql import Limits, PromQLError, evaluate_range, parse
from series.types import Labels
from ui.cache import Known as Blocks
from ui.ledger import Known as Lookups
from ui.pipeline import COLD_SECONDS, FAST_SECONDS, Pipeline, Setup
from ui.recorded import MIN_GAP_SECONDS, Moments, RecordingError, judge_recording, span_of
from ui.requests import Asked, Found, Told
from ui.web.failure import Failure, UnansweredError
from ui.web.sources.base import MAX_LINES, Extent, Happening, Line, Look, Past, step_of
from ui.web.sources.marks import marks

MAX_SECONDS = 6 * 3600.0
"""A longer recording is shown in parts: cut it, or ask the terminal for a moment."""

REPLAY_SECONDS = 120.0
"""CPU time that replaying may take."""

LIMITS = Limits(samples=5_000_000, series=20_000, seconds=5.0)


Said = tuple[float, bool | None, str, list[Finding]]
"""What was said at a cycle: when, whether all was well, the verdict, and what had fired."""


class Recording:
    """Answers from one file. Made by `replay`, and asked from several threads."""

    kind: Literal["recording"] = "recording"
    live = False

    def __init__(self, path: Path, name: str, setup: Setup) -> None:
        """Replay it. Raises UnansweredError where there is nothing to be shown."""
        self.path, self.name = path, name
        self._setup = setup
        self._lock = threading.Lock()
        self._said: list[Said] = []
        self._outcomes: set[tuple[str, Labels, Outcome]] | None = None
        self.damage = ""
        try:
            self._replay()
        except (CaptureError, RecordingError) as error:
            raise UnansweredError(unusable(name, str(error))) from error
        except PromQLError as error:
            raise UnansweredError(unusable(name, f"it could not be judged: {error}")) from error

    def _replay(self) -> None:
        first, last = span_of(self.path)
        if not math.isfinite(last - first) or last - first > MAX_SECONDS:
            raise RecordingError(f"it is longer than {MAX_SECONDS / 3600:.0f} hours")
        if last <= first:
            raise RecordingError("it holds a single moment")
        until = time.thread_time() + REPLAY_SECONDS
        pipeline = Pipeline(_remembering(self._setup, last - first), Source("capture", self.name))
        with CaptureReader.open(self.path) as reader:
            pipeline.node.expect(reader.header.meta)
            for due in pipeline.replay(_within(reader, until)):
                if due < last - MIN_GAP_SECONDS:
                    pipeline.observe(due)
                    self._note(due, pipeline)
            self.damage = reader.problem or ""
        self._start, self._end = first, last
        pipeline.observe(last, fast=min(FAST_SECONDS, last - first), cold=last - first < COLD_SECONDS)
        self._last = pipeline.triage()
        pipeline.node.requests.flush()
        if pipeline.node.ledger is not None:
            pipeline.node.ledger.flush(last)
        self._pipeline = pipeline

    def _note(self, t: float, pipeline: Pipeline) -> None:
        """What was said at a cycle. The document, which takes as long as judging, is made when an outcome changed."""
        outcomes = {(j.rule.code, j.entity, j.outcome) for j in pipeline.judgements}
        if outcomes == self._outcomes:
            self._said.append((t, *self._said[-1][1:]))
            return
        self._outcomes = outcomes
        document = pipeline.triage()
        fired = [*document.causes, *document.symptoms, *document.telemetry, *document.notes]
        said = [msgspec.structs.replace(f, evidence=[], levers=[], ruled_out=[], unknowns=[]) for f in fired]
        self._said.append((t, document.healthy, document.verdict, said))

    def findings(self, look: Look | None) -> Triage:
        """The verdict at the end of a window, as `kvitals triage FILE --from --to` has it."""
        if look is None:
            return self._last
        try:
            judged = judge_recording(self.path, self._setup, Moments(at=look.end, start=look.start))
        except (CaptureError, RecordingError, PromQLError) as error:
            raise UnansweredError(
                Failure(
                    "Nothing can be judged in this window",
                    str(error),
                    "Choose a longer window, or a later one.",
                )
            ) from error
        return msgspec.structs.replace(judged.document, source=self._last.source)

    def extent(self) -> Extent:
        return Extent(self._start, self._end, min(FAST_SECONDS, self._end - self._start))

    def series(self, query: str, start: float, end: float) -> list[Line]:
        try:
            expr = parse(query)
            with self._lock:
                found = evaluate_range(expr, self._pipeline, start, end, step_of(start, end), limits=LIMITS)
        except PromQLError as error:
            raise UnansweredError(no_answer(query, str(error))) from error
        lines = []
        for one in found[:MAX_LINES]:
            points = [(t, v) for t, v in zip(one.times.tolist(), one.values.tolist(), strict=True) if math.isfinite(v)]
            if points:
                lines.append(Line(dict(one.labels), points))
        return lines

    def past(self, start: float, end: float) -> Past:
        with_marks = marks(lambda query: self.series(query, self._start, self._end))
        happened = [*_verdicts(self._said, self._end), *episodes(self._said, self._end), *with_marks]
        return Past([one for one in happened if one.start <= end and (one.end or one.start) >= start])

    def blocks(self) -> Blocks:
        ledger = self._pipeline.node.ledger
        return Blocks() if ledger is None else Blocks(ledger.report(), ledger.cascades.report())

    def requests(self, asked: Asked) -> Found:
        node, tenant = self._pipeline.node, asked.tenant or None
        store = node.requests.store
        if asked.name:
            records = store.find(asked.name)
        elif asked.slowest:
            records = store.slowest(asked.slowest, tenant)
        else:
            records = store.newest(asked.newest, tenant)
        tails = []
        if asked.slowest and not asked.name and not asked.tenant and (every := store.newest(MAX_RECORDS)):
            recent = Recent(every, min(r.end for r in every), max(r.end for r in every))
            tails = [recent.explain(of, node.requests.objective, over={"scope": "node"}) for of in OFS]
        return Found([Told(record) for record in records], tails, {})

    def lookups(self) -> Lookups:
        ledger = self._pipeline.node.ledger
        accesses = ledger.accesses() if ledger is not None else None
        if ledger is None or accesses is None or not len(accesses):
            raise UnansweredError(NO_LOOKUPS)
        pool = max((w.ledger.pool for w in ledger.engines.values() if w.ledger.pool), default=None)
        return Lookups(accesses, pool)


NO_LOOKUPS = Failure(
    "No look-up of a cache is known",
    "What-if replays look-ups, and those come from the KV events that engines publish.",
    "Switch KV events on (kvitals check says how), and record anew or let the agent listen.",
    ("kvitals check",),
)


def unusable(name: str, why: str) -> Failure:
    """A file that can not be shown."""
    return Failure(
        "This recording can not be shown",
        f"{name}: {why}.",
        "Choose another one under Sources. A recording is made with kvitals record.",
        ("kvitals record http://HOST:8000 --out incident.kvcap --for 60s",),
    )


def no_answer(query: str, why: str) -> Failure:
    """A query that was refused."""
    return Failure("A query has no answer", f"{query[:200]}: {why}", "Choose fewer series, or a shorter window.")


def episodes(said: Sequence[Said], last: float) -> list[Happening]:
    """Findings from when they were told until they were told no more; those of the last cycle go on to `last`."""
    open_: dict[str, Happening] = {}
    done: list[Happening] = []
    for t, _, _, fired in said:
        now = {finding.id: finding for finding in fired}
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
    begun: tuple[float, bool | None, str] | None = None
    for t, healthy, text, _ in said:
        if begun is None or (healthy, text) != begun[1:]:
            if begun is not None:
                yield _verdict(begun, t)
            begun = (t, healthy, text)
    if begun is not None:
        yield _verdict(begun, last)


def _verdict(begun: tuple[float, bool | None, str], end: float) -> Happening:
    start, healthy, text = begun
    return Happening("verdict", text, start, end, {True: "healthy", False: "unhealthy", None: "unknown"}[healthy])


def _within(records: CaptureReader, until: float) -> Iterator[Record]:
    for record in records:
        if time.thread_time() > until:
            raise RecordingError(
                f"replaying takes more than {REPLAY_SECONDS:.0f} s of CPU; ask the terminal: kvitals triage FILE --at"
            )
        yield record


def _remembering(setup: Setup, length: float) -> Setup:
    """The same setup, with a window that holds all of a recording."""
    window = Seconds(max(setup.config.agent.window, length + 2 * FAST_SECONDS))
    agent = msgspec.structs.replace(setup.config.agent, window=window)
    return replace(setup, config=msgspec.structs.replace(setup.config, agent=agent))
