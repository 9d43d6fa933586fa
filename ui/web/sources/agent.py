"""A running agent, over its HTTP API; the past from its history, where this process may read that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from kvitals.app.agent_client import (
    AgentAddressError,
    AgentClient,
    AgentError,
    AgentRefusedError,
    AgentSlowError,
    AgentUnreachableError,
    OtherVersionError,
    SeriesAnswer,
    UnreadableAnswerError,
)
from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.cache import of_agent as blocks_of
from kvitals.app.lookups import LedgerError, Lookups, agent_lookups
from kvitals.app.page_settings import API_VARIABLE, DEFAULT_API
from kvitals.app.pipeline import Setup
from kvitals.app.request_sources import RequestAnswer, RequestQuery
from kvitals.app.request_sources import of_agent as requests_of
from kvitals.app.sources.history import judge_history
from kvitals.app.sources.recording import Moments
from kvitals.app.sources.recording_reader import RecordingError
from kvitals.rules.finding import Finding, Triage
from kvitals.series.history import event_log
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import HistoryError
from kvitals.series.promql import PromQLError
from kvitals.series.undecodable import UNDECODABLE
from kvitals.ui.web.failure import Failure, UnansweredError
from kvitals.ui.web.sources.base import MAX_LINES, ChartLine, Extent, Happening, PageWindow, PastEvents, step_of
from kvitals.ui.web.sources.marks import marks
from kvitals.ui.web.sources.recording import NO_LOOKUPS, happening_of, no_answer

TIMEOUT_SECONDS = 4.0
START = "kvitals run http://HOST:8000"
MEMORY_SECONDS = 1800.0
"""Of the past that is offered where there is no history: what agents keep in memory unless told otherwise."""

HISTORY_SECONDS = 24 * 3600.0
MAX_EPISODES = 500

T = TypeVar("T")


class AgentSource:
    """Answers from the agent at `url`."""

    kind: Literal["agent"] = "agent"
    live = True

    def __init__(self, url: str, setup: Callable[[], Setup], history: Path | None = None) -> None:
        """`history`: the file, where there is one that this process may read; `setup` is how the past is judged."""
        self.name = self._url = url.rstrip("/")
        self._client = AgentClient(url, timeout=TIMEOUT_SECONDS)
        self._setup = setup
        self._history = history

    def empty_pages(self) -> frozenset[str]:
        return frozenset()  # to know it would take questions, and an agent may get data at any moment

    def findings(self, look: PageWindow | None) -> Triage:
        if look is not None:
            return self._past_findings(look)
        return self._ask(self._client.findings)

    def _past_findings(self, look: PageWindow) -> Triage:
        if self._history is None:
            raise UnansweredError(
                Failure(
                    "This page cannot diagnose past states",
                    "Past states need the agent's history, which only a page on the agent's machine can read.",
                    "Go back to now, or open the page on that machine.",
                    (f"kvitals triage --from={_written(look.start)} --to={_written(look.end)}",),
                )
            )
        try:
            moments = Moments(at=look.end, start=look.start)
            return judge_history(self._history, self._setup(), moments).document
        except (HistoryError, RecordingError, PromQLError) as error:
            raise UnansweredError(
                Failure("This window cannot be diagnosed", str(error), "Choose another window, or go back to now.")
            ) from error

    def extent(self) -> Extent:
        now = time.time()
        start = now - MEMORY_SECONDS
        if self._history is not None:
            try:
                span = HistoryReader(self._history).span()
            except HistoryError:
                span = None
            start = max(span[0], now - HISTORY_SECONDS) if span is not None else start
        return Extent(min(start, now - 60.0), now)

    def series(self, query: str, start: float, end: float) -> list[ChartLine]:
        least = 5.0 if end - start > 300 else 1.0
        step = step_of(start, end, least)
        try:
            found = self._client.query_range(query, start, end, step)
            return [line for one in found[:MAX_LINES] if (line := _line(one)) is not None]
        except AgentRefusedError as error:
            if error.status in (400, 422):
                raise UnansweredError(no_answer(query, error.reason)) from error
            raise UnansweredError(failure_of(self._url, error)) from error
        except ValueError as error:
            raise UnansweredError(no_answer(query, f"the agent's answer is not a number ({error})")) from error
        except AgentError as error:
            raise UnansweredError(failure_of(self._url, error)) from error

    def past(self, start: float, end: float) -> PastEvents:
        happened = marks(lambda query: self.series(query, start, end))
        if self._history is None:
            now = self.findings(None)
            fired = [*now.causes, *now.symptoms, *now.telemetry, *now.notes]
            happened += [happening_of(f, now.window.end, now.window.end) for f in fired]
            why = "Resolved findings are in the agent's history, which this page cannot read."
            return PastEvents([one for one in happened if one.start <= end and (one.end or one.start) >= start], why)
        try:
            with HistoryReader(self._history).reading() as connection:
                told = list(event_log.events(connection, start, end))
                found = list(event_log.episodes(connection, start, end))[-MAX_EPISODES:]
        except HistoryError as error:
            return PastEvents(happened, f"The agent's history cannot be read: {error}")
        happened += [Happening("event", e.kind, e.t, entity=_place(e.entity), text=e.text) for e in told]
        return PastEvents([*happened, *(_episode(one) for one in found)])

    def blocks(self) -> Blocks:
        found = self._ask(lambda: blocks_of(self._url))
        if found is None:
            raise UnansweredError(stranger(self._url, "The answer is not a report on caches."))
        return found

    def requests(self, asked: RequestQuery) -> RequestAnswer:
        return self._ask(lambda: requests_of(self._url, asked))

    def lookups(self) -> Lookups:
        try:
            return self._ask(lambda: agent_lookups(self._url))
        except LedgerError as error:
            told = Failure(NO_LOOKUPS.title, str(error), NO_LOOKUPS.todo, NO_LOOKUPS.commands)
            raise UnansweredError(told) from error

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer of the agent. Raises UnansweredError."""
        try:
            return question()
        except AgentError as error:
            raise UnansweredError(failure_of(self._url, error)) from error


def _line(found: SeriesAnswer) -> ChartLine | None:
    points = [(t, v) for t, text in found.values if math.isfinite(v := float(text))]
    return ChartLine(found.metric, points) if points else None


def _episode(one: event_log.Episode) -> Happening:
    try:
        finding = msgspec.json.decode(one.document, type=Finding)
    except UNDECODABLE:
        return Happening("finding", one.code, one.start, one.end, "info", _place(one.entity), one.code)
    return happening_of(finding, one.start, one.end)


def _place(entity: Mapping[str, str]) -> str:
    return next((entity[name] for name in ("engine", "pool", "node", "cluster") if entity.get(name)), "")


def _written(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def failure_of(url: str, error: AgentError) -> Failure:
    """Why an agent has no answer, for the page."""
    if isinstance(error, AgentRefusedError):
        if error.status == 503:
            return Failure(
                "The agent has no verdict yet",
                f"{url} answers: {error.reason}.",
                "Wait for its first window: this page retries by itself. If this persists, read the agent's output.",
            )
        return stranger(url, f"{error}.")
    if isinstance(error, AgentAddressError):
        return Failure(
            "The agent's address is not a URL",
            f"{API_VARIABLE} is “{url}”.",
            "Set it to the address that the agent printed when it started, then restart this page.",
            (f"export {API_VARIABLE}={DEFAULT_API}",),
        )
    if isinstance(error, OtherVersionError):
        return Failure(
            "The agent and this page have different versions",
            str(error),
            "Install the same kvitals version for both, and restart both.",
            ("kvitals version",),
        )
    if isinstance(error, UnreadableAnswerError):
        return Failure(
            "The agent's answer cannot be read",
            str(error),
            "Ask the agent without a proxy. This page asks again.",
            (f"kvitals triage {url}",),
        )
    if isinstance(error, AgentUnreachableError | AgentSlowError):
        return Failure(
            "No agent answers" if isinstance(error, AgentUnreachableError) else "The agent is slow",
            str(error),
            f"Start the agent, or set {API_VARIABLE} to its address and restart this page. This page asks again."
            " Until then, Sources offers recordings.",
            (START, f"export {API_VARIABLE}={DEFAULT_API}"),
        )
    return stranger(url, str(error))


def stranger(url: str, said: str) -> Failure:
    """Something other than an agent answers."""
    return Failure(
        "The program at this address is not a kvitals agent",
        f"{said} The address is {url}.",
        f"Another program may use this port. Start an agent and set {API_VARIABLE} to its address.",
        (START, f"export {API_VARIABLE}={DEFAULT_API}"),
    )
