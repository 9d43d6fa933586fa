"""The boundary of each collector: a deadline, and exceptions that end nothing but this run of it.

    collectors = Collectors(window, {"cluster": "c", "node": "n"})
    records = await collectors.gather({("host", ""): Run(read_host, deadline=4.0), ...}, patience=4.0)
    collectors.write(t)                  # kvitals_collector_success and its like, for every collector

A collector that is not done within `patience` goes on in the background. The others are not held up. The next call
after its end takes its records and begins it again. One that is not done at its deadline has failed: `hung`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kvitals.agent.gauge_writer import KeyedRows
from kvitals.agent.ingest_share import OVER_SHARE
from kvitals.agent.logger import Logger
from kvitals.agent.records import OK, Record
from kvitals.agent.series_keys import Key, node_series
from kvitals.agent.workers import WorkerHungError
from kvitals.series.window import Window

log = Logger()

LOG_SECONDS = 600.0
"""How often a failure that goes on is logged again."""

HUNG, TOO_MANY_FILES, FAILED = "hung", "too_many_open_files", "error"
REASONS = {
    HUNG: "it did not finish by its deadline; its next run starts after this one ends",
    TOO_MANY_FILES: "the process has no file descriptor left: raise its limit (LimitNOFILE, ulimit -n)",
    FAILED: "it raised an exception; see the agent's log",
    OVER_SHARE: "ingesting its pages takes more than its share of CPU time, so it is scraped less often",
}
"""Why a collector failed, beside the reasons that collectors have of their own."""

Name = tuple[str, str]
"""A collector, and the target that it is for; the target is empty for those of the node."""


class CollectorError(Exception):
    """A collector came to its end without what it is for. `reason` is a word for a label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CollectorRun(NamedTuple):
    """What a collector does in one cycle."""

    read: Callable[[], Awaitable[Sequence[Record]]]
    deadline: float  # seconds


@dataclass
class _State:
    """How a collector fares."""

    reason: str = OK
    duration: float = 0.0  # seconds, of the last run that ended
    task: asyncio.Future[Sequence[Record]] | None = None
    ingest: float | None = None  # CPU seconds, of its last records
    begun: float = 0.0  # monotonic
    ended: float = 0.0  # monotonic; 0 while the run goes on
    late: bool = False  # the last run was not done within the patience
    deadline: float = 0.0
    logged: tuple[str, float] = field(default=("", float("-inf")))


class Collectors:
    """How every collector fares, as series. On one event loop."""

    def __init__(self, window: Window, labels: Mapping[str, str]) -> None:
        """`labels` are the node's."""
        self._states: dict[Name, _State] = {}
        self._rows: KeyedRows[Key] = KeyedRows(window, "collectors", node_series(labels))

    @property
    def failing(self) -> dict[Name, str]:
        """Collectors whose last run failed, with the reason."""
        return {name: state.reason for name, state in self._states.items() if state.reason != OK}

    async def gather(self, runs: Mapping[Name, CollectorRun], patience: float | None = None) -> list[Record]:
        """Run collectors side by side and return the records of those that are done, in the order of `runs`, behind the
        records of those that were late.

        patience: seconds that are waited; without it, until each is done or over its deadline. A collector that was not
        done by then is not waited for the next time, so that one slow collector delays one cycle.
        """
        done = [name for name, state in self._states.items() if state.task is not None and state.task.done()]
        late = [record for name in done for record in self._taken(name, patience)]
        for name, run in runs.items():
            state = self._states.setdefault(name, _State())
            if state.task is None:
                state.begun, state.ended, state.deadline = time.monotonic(), 0.0, run.deadline
                state.task = asyncio.ensure_future(run.read())
                state.task.add_done_callback(partial(_note_end, state))
        for name in runs:
            state = self._states[name]
            if patience is None or not state.late:
                await self._wait(state, patience, time.monotonic())
        return late + [record for name in [*runs] for record in self._taken(name, patience)]

    async def _wait(self, state: _State, patience: float | None, now: float) -> None:
        """Wait for one collector's run, up to `patience` after it was begun and never beyond its deadline."""
        until = state.begun + (state.deadline if patience is None else min(patience, state.deadline))
        if state.task is not None and not state.task.done() and until > now:
            await asyncio.wait({state.task}, timeout=until - now)

    def _taken(self, name: Name, patience: float | None) -> Sequence[Record]:
        """The records of a run that is done; none of one that goes on, or failed."""
        state = self._states[name]
        task = state.task
        if task is None:
            return ()
        if not task.done():
            state.late = True
            if time.monotonic() - state.begun >= state.deadline:
                self.failed(name, WorkerHungError(f"not done after {time.monotonic() - state.begun:.0f} s"))
            return ()
        state.task, state.duration = None, (state.ended or time.monotonic()) - state.begun
        state.late = patience is not None and state.duration > patience
        if task.cancelled():
            return ()
        error = task.exception()
        if error is not None:
            self.failed(name, error)
            return ()
        records = task.result()
        worst = next((one for one in records if getattr(one, "state", OK) == "failed"), None)
        if worst is not None:
            self.failed(name, CollectorError(getattr(worst, "reason", FAILED), getattr(worst, "message", "")))
        else:
            self.succeeded(name)
        return records

    @contextlib.contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Keep what a block raises as a collector's state, and raise it."""
        began, key = time.monotonic(), (name, "")
        state = self._states.setdefault(key, _State())
        try:
            yield
        except Exception as error:
            self.failed(key, error)
            raise
        else:
            self.succeeded(key)
        finally:
            state.duration = time.monotonic() - began

    @contextlib.contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """The same, and raise nothing: for a step of the cycle that must not end it."""
        with contextlib.suppress(Exception), self.watched(name):
            yield

    def runs(self, name: Name) -> bool:
        """Whether a run of a collector goes on."""
        state = self._states.get(name)
        return state is not None and state.task is not None and not state.task.done()

    def ingested(self, name: Name, seconds: float) -> None:
        """Ingesting a collector's last records took `seconds` of CPU time."""
        if name in self._states:
            self._states[name].ingest = seconds

    def succeeded(self, name: Name) -> None:
        """A run came to what it is for."""
        self._states.setdefault(name, _State()).reason = OK

    def failed(self, name: Name, error: BaseException) -> None:
        """A run failed. Logged when the reason changes, and every ten minutes while it goes on."""
        state = self._states.setdefault(name, _State())
        state.reason = reason_of(error)
        said, at = state.logged
        now = time.monotonic()
        if said != state.reason or now - at >= LOG_SECONDS:
            state.logged = state.reason, now
            log.warning(
                "collector failed",
                collector=name[0],
                target=name[1],
                reason=state.reason,
                error=f"{type(error).__name__}: {error}"[:300],
                trace=_trace(error) if state.reason == FAILED else "",
            )

    def forget(self, target: str) -> None:
        """A target is watched no more."""
        for name in [one for one in self._states if one[1] == target]:
            task = self._states.pop(name).task
            if task is not None:
                task.cancel()

    def write(self, t: float) -> None:
        """Write a row: how each collector fares at `t`, seconds since the epoch."""
        row: dict[Key, float] = {}
        for (name, target), state in self._states.items():
            labels = (("collector", name), ("target", target))
            row["kvitals_collector_success", labels] = float(state.reason == OK)
            running = time.monotonic() - state.begun if state.task is not None else 0.0
            row["kvitals_collector_duration_seconds", labels] = max(state.duration, running)
            if state.ingest is not None:
                row["kvitals_collector_ingest_cpu_seconds", labels] = state.ingest
            if state.reason != OK:
                row["kvitals_collector_failing", (*labels, ("reason", state.reason))] = 1.0
        self._rows.write(t, row)

    def cancel(self) -> None:
        """End every run that still goes on; a thread that hangs is left alone."""
        for state in self._states.values():
            if state.task is not None:
                state.task.cancel()


def _note_end(state: _State, _: object) -> None:
    state.ended = time.monotonic()


def _trace(error: BaseException) -> str:
    """As text: the default rendering of exceptions shows local variables, and takes seconds on the loop."""
    return "".join(traceback.format_exception(error, limit=-5))


def reason_of(error: BaseException) -> str:
    """A word for what was raised, for a label: one of `REASONS`, or what the collector itself says."""
    if isinstance(error, CollectorError):
        return error.reason or FAILED
    if isinstance(error, WorkerHungError):
        return HUNG
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.EMFILE, errno.ENFILE):
            return TOO_MANY_FILES
        seen = seen.__cause__ or seen.__context__
    return FAILED
