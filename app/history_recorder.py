"""A running agent's history: what is written to it at each cycle, and how it fares."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.history import history_families
from kvitals.agent.history.kinds import kind_of
from kvitals.agent.history.new_requests import NewRequests
from kvitals.agent.paths import state_directory
from kvitals.app.derived_metrics.operating_families import Operating
from kvitals.app.derived_metrics.scaling_audit import Auditing
from kvitals.app.errors import UsageError
from kvitals.app.history_work import HistoryWork
from kvitals.app.node_changes import NodeChanges
from kvitals.app.pipeline import SIGNALS, Pipeline
from kvitals.app.prove_outcomes import OUTCOMES, collected_outcomes
from kvitals.app.sources.history import RESUME_SECONDS, resume
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.config import Config
from kvitals.diagnoser.review.incidents import TOLD
from kvitals.rules.finding import Finding
from kvitals.series.history.event_log import REWRITTEN_SECONDS, Episode, HistoryEvent, Note
from kvitals.series.history.new_rows import RowIntake
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.retention import RetentionLimits
from kvitals.series.history.schema import FILE, HistoryError
from kvitals.series.history.writer import History, HistorySettings
from kvitals.series.slices import Steps, complete

ROW_SECONDS = 5.0
"""Between two rows of one target, at least."""
GROUP = "history"
OUTCOME_SECONDS = 15.0
"""Between two readings of the proofs that were left."""


def directory(config: Config) -> Path:
    """Where the history of an agent is."""
    return config.history.directory or state_directory() / "history"


def history_file(named: Path | None, config: Config) -> Path:
    """The file of a history that was named, by itself or by its directory; of none that of this node's agent."""
    place = named or directory(config)
    return place if place.suffix == Path(FILE).suffix else place / FILE


def existing_history(named: Path | None, config: Config, otherwise: str) -> Path:
    """The file of a history that is there. otherwise: what the user can give instead. Raises UsageError."""
    file = history_file(named, config)
    if file.is_file():
        return file
    if irregular := next((one for one in (file, named) if one and one.exists() and not one.is_dir()), None):
        kind = "not a history" if irregular.is_file() else "not a regular file"
        raise UsageError(f"{irregular} is {kind}; {otherwise}")
    raise UsageError(f"no history at {file}: `kvitals run` keeps one; {otherwise}")


class Keeping:
    """Writes down what a pipeline sees and says. It begins with `start` and ends with `close`."""

    def __init__(self, pipeline: Pipeline, tell: Callable[[str], None]) -> None:
        """`tell` is called, from any thread, with what a person should read."""
        config = pipeline.setup.config
        kept = RetentionLimits(config.history.full, config.history.keep, config.history.max_bytes)
        settings = HistorySettings(directory(config), kept, config.history.min_free_bytes)
        self._pipeline = pipeline
        self._history = History(settings, kind_of(pipeline.setup.knowledge.families), tell)
        self._intake = RowIntake({"": lambda: pipeline.node.window, SIGNALS: lambda: pipeline.judge.signals.store})
        self._rows = GaugeRows(pipeline.node.window, GROUP)
        self._labels = {"cluster": config.labels.cluster, "node": config.labels.node}
        self._requests = NewRequests()
        self._episodes = Episodes(pipeline)
        self._waiting: list[Note] = []
        self._configuration: dict[str, Any] = {}
        self._targets: frozenset[str] = frozenset()
        self._collected = float("-inf")
        self.past = HistoryReader(self._history.path, suspect=self._history.suspect)
        """What was written, for any thread."""
        self._gap = max(config.agent.interval, ROW_SECONDS)
        self._changes = NodeChanges(pipeline, self._history.path)
        self._work = HistoryWork(self._history.path, self._gap)
        general = config.slo.ttft_p99_seconds
        self._auditing = Auditing(pipeline.node.window, lambda now: self._work.audited_day(now, general))

    def start(self, version: str) -> None:
        """Begin to write. `version`: of kvitals."""
        self._history.start()
        if self._pipeline.operating is not None:
            threading.Thread(target=self._backfill, args=(self._pipeline.operating,), daemon=True).start()
        self.note(HistoryEvent(time.time(), "agent", f"started, version {version}", "agent", self._labels))

    def resume(self, now: float) -> str:
        """Go on from what was written before `now`; to be called once, before the first cycle. Returns why not, where
        the history cannot be read."""
        try:
            self._intake.written = resume(self._pipeline, self.past, now)
        except HistoryError as error:
            return "" if error.reason == "missing" else f"the agent begins without its history: {error}"
        except RecordingError:
            return f"the agent begins without its history: {RESUME_SECONDS / 60:.0f} minutes of it are too much to read"
        return ""

    def _backfill(self, operating: Operating) -> None:
        past = self._work.past_steps(time.time())
        if past is not None:
            operating.take_past(past)

    def note(self, note: Note) -> None:
        """Have something written down with the next cycle."""
        self._waiting.append(note)

    def since_change(self) -> bytes:
        """As `NodeChanges.document`."""
        return self._changes.document()

    def cycle(self, now: float, configuration: dict[str, Any]) -> None:
        """Have what is new at `now` written. configuration: what is said of how it was loaded; written down when it
        changes."""
        complete(self.cycle_steps(now, configuration))

    def cycle_steps(self, now: float, configuration: dict[str, Any]) -> Steps[None]:
        """The same in steps: what grows with engines and findings is worked out in a thread."""
        self._rows.write(now, history_families.series(self._history.status, self._labels))
        self._auditing.cycle(now)
        self._say_changes(now, configuration)
        for work in (self._changes.cycle, self._episodes.changed):
            found: list[Note] = yield partial(work, now)
            self._waiting += found
        self._waiting += self._outcomes(now)
        requests = self._requests.take(self._pipeline.node.requests.store)
        if requests is not None:
            self._waiting.append(requests)
        tick = self._intake.take(now, self._waiting)
        if tick is not None:
            self._waiting = []
            self._history.offer(tick)

    def _outcomes(self, now: float) -> list[HistoryEvent]:
        """The proofs that `kvitals prove` left beside the history since the last time."""
        if 0 <= now - self._collected < OUTCOME_SECONDS:
            return []
        self._collected = now
        return collected_outcomes(self._history.path.parent / OUTCOMES)

    def close(self) -> None:
        """Write what waits, and end."""
        now = time.time()
        self._waiting += self._episodes.end(now)
        self.note(HistoryEvent(now, "agent", "stopped", "agent", self._labels))
        tick = self._intake.take(now, self._waiting)
        if tick is not None:
            self._history.offer(tick)
        self._history.close()
        self.past.close()

    def _say_changes(self, now: float, configuration: dict[str, Any]) -> None:
        if configuration != self._configuration:
            if self._configuration:
                good = configuration.get("reloadConfigSuccess", True)
                text = "configuration taken over" if good else "configuration refused, the previous one stays in force"
                self.note(HistoryEvent(now, "config", text, "agent", self._labels))
            self._configuration = configuration
        targets = frozenset(self._pipeline.node.targets)
        if targets != self._targets:
            for url in sorted(targets - self._targets):
                self.note(HistoryEvent(now, "target", f"{url}: watched from now on", "agent", self._labels))
            for url in sorted(self._targets - targets):
                self.note(HistoryEvent(now, "target", f"{url}: no longer watched", "agent", self._labels))
            self._targets = targets


class Episodes:
    """Findings from when they open until they close."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._fired: frozenset[tuple[str, object]] = frozenset()
        self._open: dict[str, Episode] = {}
        self._written = 0.0

    def changed(self, now: float) -> list[Note]:
        """What is to be written of them now."""
        span = self._pipeline.span
        if span is None:
            return []
        fired = frozenset((j.rule.code, j.entity) for j in self._pipeline.judgements if j.outcome == "fired")
        lately = 0 <= now - self._written < REWRITTEN_SECONDS
        if fired == self._fired and (not fired or lately):
            return []
        self._fired, self._written = fired, self._written if lately else now
        known = self._open if lately else {}  # what opens or closes is written at once, the others in their turn
        found = self._pipeline.true_findings(known)
        written = {key: _episode(finding, span.at) for key, finding in found.items() if finding is not None}
        open_ = {key: written.get(key) or known[key] for key in found}
        closed = [replace(e, end=span.at, open=False) for key, e in self._open.items() if key not in open_]
        told = [_told(one, span.at) for key, one in open_.items() if key not in self._open]
        self._open = open_
        return [*written.values(), *closed, *told]

    def end(self, now: float) -> list[Note]:
        """Nobody looks any more."""
        return [replace(episode, end=now, open=False) for episode in self._open.values()]


def _told(episode: Episode, at: float) -> HistoryEvent:
    """That a finding is told for the first time; an episode has when its trouble began."""
    return HistoryEvent(at, TOLD, f"{episode.code} is reported from now on", "agent", episode.entity, episode.key)


def _episode(finding: Finding, at: float) -> Episode:
    start = finding.since if finding.since is not None else at
    entity = finding.entity.labels
    return Episode(finding.episode, finding.code, entity, start, at, True, msgspec.json.encode(finding))
