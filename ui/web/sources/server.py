"""A fleet, from a Prometheus or what answers as one. It has series, and neither blocks nor single requests."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Literal

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.lookups import Lookups
from kvitals.app.pipeline import Setup
from kvitals.app.request_sources import RequestAnswer, RequestQuery
from kvitals.app.sources.prometheus_fleet import course_at_server, judge_server, look_at_names
from kvitals.diagnoser.sources.prometheus import PrometheusAccess, ServerError
from kvitals.diagnoser.sources.served import Dialect
from kvitals.diagnoser.sources.survey import Survey
from kvitals.rules.finding import Triage
from kvitals.series.promql import PromQLError, Series
from kvitals.ui.web.failure import Failure, UnansweredError
from kvitals.ui.web.sources.background import BackgroundJudge
from kvitals.ui.web.sources.base import MAX_LINES, ChartLine, Extent, PageWindow, PastEvents, step_of
from kvitals.ui.web.sources.recording import happening_of

PAST_SECONDS = 6 * 3600.0
SERIES_SECONDS = 10.0
"""For one chart's query."""
SEEN_SECONDS = 60.0
"""How long it is believed which metrics a server has."""

_ONLY_AGENT = "A Prometheus has series, but no data about single blocks or requests."


class Server:
    """Answers from the Prometheus at `url`."""

    kind: Literal["prometheus"] = "prometheus"
    live = True

    def __init__(self, url: str, setup: Callable[[], Setup]) -> None:
        self.name = self._url = url.rstrip("/")
        self._setup = setup
        self._judge = BackgroundJudge(self._judged)
        self._names: tuple[Survey, Dialect] | None = None
        self._looked = 0.0
        self._looking = threading.Lock()

    def empty_pages(self) -> frozenset[str]:
        return frozenset({"cache", "cascades", "requests"})

    def findings(self, look: PageWindow | None) -> Triage:
        return self._judge.verdict(look)

    def judged_for(self, look: PageWindow | None) -> float:
        """Seconds since the judgement of a window began that is under way; 0 where none is."""
        return self._judge.waited(look)

    def _judged(self, look: PageWindow | None) -> Triage:
        at, window = (look.end, look.seconds) if look is not None else (time.time(), 0.0)
        try:
            return judge_server(PrometheusAccess(self._url), self._setup(), at, window).document
        except (ServerError, PromQLError, OSError) as error:
            raise UnansweredError(_unusable(self._url, error)) from error

    def extent(self) -> Extent:
        now = time.time()
        return Extent(now - PAST_SECONDS, now, 300.0)

    def series(self, query: str, start: float, end: float) -> list[ChartLine]:
        access, times = PrometheusAccess(self._url, timeout=SERIES_SECONDS), (start, end, step_of(start, end, 5.0))
        try:
            answer = course_at_server(access, self._setup(), self._seen(access, end), query, times)
        except (ServerError, PromQLError, OSError) as error:
            raise UnansweredError(_unusable(self._url, error)) from error
        lines = (ChartLine(dict(found.labels), _points(found)) for found in answer[:MAX_LINES])
        return [line for line in lines if line.points]

    def _seen(self, access: PrometheusAccess, at: float) -> tuple[Survey, Dialect]:
        """What the server has, which changes rarely. at: a moment at which it has samples."""
        with self._looking:
            if self._names is None or time.monotonic() - self._looked > SEEN_SECONDS:
                self._names, self._looked = look_at_names(access, self._setup(), at), time.monotonic()
            return self._names

    def past(self, start: float, end: float) -> PastEvents:
        now = self.findings(None)
        fired = [*now.causes, *now.symptoms, *now.telemetry, *now.notes]
        happened = [happening_of(f, now.window.end, now.window.end) for f in fired]
        why = "From a Prometheus, this page shows only open findings; its alerts show resolved findings."
        return PastEvents([one for one in happened if one.start <= end and (one.end or math.inf) >= start], why)

    def blocks(self) -> Blocks:
        raise UnansweredError(_needs_agent("The cache contents are unknown here"))

    def requests(self, asked: RequestQuery) -> RequestAnswer:
        raise UnansweredError(_needs_agent("Single requests are unknown here"))

    def lookups(self) -> Lookups:
        raise UnansweredError(_needs_agent("Cache lookups are unknown here"))


def _points(found: Series) -> list[tuple[float, float]]:
    pairs = zip(found.times.tolist(), found.values.tolist(), strict=True)
    return [(t, value) for t, value in pairs if math.isfinite(value)]


def _unusable(url: str, error: Exception) -> Failure:
    return Failure(
        "The Prometheus cannot be diagnosed",
        f"{url}: {error}",
        "Open Sources: is this the server that scrapes the engines?",
        (f"kvitals triage --prometheus {url}",),
    )


def _needs_agent(title: str) -> Failure:
    return Failure(title, _ONLY_AGENT, "Point this page at an agent on the engine's node (Sources).", ("kvitals run",))
