"""The running agent sees engines' configurations change, writes that down, and some minutes later what came of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from kvitals.app.bounded_process import WorkLimitError, WorkLimits, WorkRefusedError, run_bounded
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.since_change import NoChangeError, of_history, since_change
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.diagnoser import change_effect
from kvitals.rules.finding import SinceChange, Triage, encode
from kvitals.rules.model import SCOPES
from kvitals.series.history.event_log import HistoryEvent
from kvitals.series.history.schema import HistoryError
from kvitals.series.promql import PromQLError
from kvitals.series.recordings import CaptureError
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp

EVERY_SECONDS = 15.0
LOOKBACK_SECONDS = 60.0
JUDGED_AFTER_SECONDS = 300.0
"""Engines start, caches fill, load comes back. Another change before that begins the wait anew."""
BEFORE_SECONDS = 3600.0
"""Of history that is looked at from before the change."""
KEPT_SECONDS = 60.0
MAX_KNOWN = 5_000
"""Engines whose configuration is remembered, those that reported last."""
MAX_ENGINES = 16
"""That are judged, the changed one among them: each takes 0.1 s and a megabyte."""
ASKED = WorkLimits(20.0, niceness=0)
"""Somebody waits, as for a query."""
BY_ITSELF = WorkLimits(60.0)
CONFIG, OUTCOME = "config", "outcome"


class NodeChanges:
    """Asked once a cycle; gives events for the history."""

    def __init__(self, pipeline: Pipeline, history: Path) -> None:
        self._pipeline = pipeline
        self._history = history
        self._known: dict[Labels, dict[str, str]] = {}
        self._looked = float("-inf")
        self._due = float("inf")
        self._judging: threading.Thread | None = None
        self._asked = (float("-inf"), b"")
        self._refused = ""  # why the last question had no answer, where it was too much
        self._told: deque[SinceChange] = deque(maxlen=16)

    def cycle(self, now: float) -> list[HistoryEvent]:
        """What is to be written down now."""
        events = [outcome_event(now, self._told.popleft()) for _ in range(len(self._told))]
        if 0 <= now - self._looked < EVERY_SECONDS:
            return events
        self._looked = now
        events += self._changed(now)
        idle = self._judging is None or not self._judging.is_alive()
        if now >= self._due and idle:
            self._due = float("inf")
            self._judging = threading.Thread(target=self._judge, args=(now,), daemon=True)
            self._judging.start()
        return events

    def document(self) -> bytes:
        """The verdict on now with what came of the latest change, as JSON, for whoever asks; the same one for a minute,
        since it takes seconds. In any thread. Raises ValueError with what to do."""
        now = time.monotonic()
        at, document = self._asked
        if now - at < KEPT_SECONDS:
            if self._refused:
                raise ValueError(self._refused)
            return document
        try:
            judged = run_bounded(latest_change, self._history, self._pipeline.setup, None, None, limits=ASKED)
        except WorkLimitError as error:
            self._asked = time.monotonic(), b""
            self._refused = (
                f"the latest change is not judged: {error}. Run on the agent's node:"
                f" kvitals triage --since-change {self._history.parent}"
            )
            raise ValueError(self._refused) from None
        self._asked, self._refused = (now, encode(judged)), ""
        return self._asked[1]

    def _changed(self, now: float) -> Iterator[HistoryEvent]:
        for entity, told in self._configurations(now).items():
            before = self._known.get(entity, {})
            self._known.pop(entity, None)
            self._known[entity] = change_effect.known_since(before, told)
            if settings := change_effect.differences(before, told):
                self._due = now + JUDGED_AFTER_SECONDS
                text = f"{entity.get('engine', '')}: {', '.join(map(str, settings))}"
                yield HistoryEvent(now, CONFIG, text, "engine", dict(entity))

        for entity in list(self._known)[: max(len(self._known) - MAX_KNOWN, 0)]:
            del self._known[entity]

    def _configurations(self, now: float) -> dict[Labels, dict[str, str]]:
        found: dict[Labels, dict[str, str]] = {}
        for family in change_effect.FACTS:
            matchers = [Matcher(METRIC_NAME, MatchOp.EQ, family)]
            for row in self._pipeline.node.window.newest(matchers, now - LOOKBACK_SECONDS, now):
                for labels, value in zip(row.labels, row.values.tolist(), strict=True):
                    if value == value:
                        told = found.setdefault(labels.keep(SCOPES["engine"]), {})
                        told.update(change_effect.stated_settings(family, labels, value))
        return found

    def _judge(self, now: float) -> None:
        """In a thread: it reads history and takes seconds."""
        start = now - JUDGED_AFTER_SECONDS - BEFORE_SECONDS
        try:
            document = run_bounded(latest_change, self._history, self._pipeline.setup, start, now, limits=BY_ITSELF)
        except (WorkRefusedError, WorkLimitError):
            return  # `kvitals triage --since-change` says why
        if document.since_change is not None:
            self._told.append(document.since_change)


def latest_change(history: Path, setup: Setup, start: float | None, end: float | None) -> Triage:
    """The document on a time of a history with the effect of the latest change, of `MAX_ENGINES` engines. Takes seconds
    and much memory: for `run_bounded`. Raises WorkRefusedError."""
    try:
        return since_change(of_history(history, setup, start, end, MAX_ENGINES)).document
    except (NoChangeError, HistoryError, PromQLError, RecordingError, CaptureError) as error:
        raise WorkRefusedError(str(error)) from error


def outcome_event(now: float, told: SinceChange) -> HistoryEvent:
    """What came of a change, for the history."""
    text = f"{told.entity.title}, {', '.join(told.changed)}: {told.conclusion}"
    return HistoryEvent(now, OUTCOME, text, "agent", told.entity.labels)
