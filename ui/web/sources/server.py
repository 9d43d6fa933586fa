"""A fleet, from a Prometheus or what answers as one. It knows series: no blocks, no single requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.lookups import Lookups
from kvitals.app.pipeline import Setup
from kvitals.app.request_sources import RequestAnswer, RequestQuery
from kvitals.app.sources.prometheus_fleet import judge_server
from kvitals.diagnoser.sources.prometheus import PrometheusAccess, ServerError
from kvitals.rules.finding import Triage
from kvitals.series.promql import PromQLError
from kvitals.ui.web.failure import Failure, UnansweredError
from kvitals.ui.web.sources.base import ChartLine, Extent, PageWindow, PastEvents
from kvitals.ui.web.sources.recording import happening_of

PAST_SECONDS = 6 * 3600.0
_ONLY_AGENT = "A Prometheus knows series, and nothing of single blocks and requests."


class Server:
    """Answers from the Prometheus at `url`."""

    kind: Literal["prometheus"] = "prometheus"
    live = True

    def __init__(self, url: str, setup: Callable[[], Setup]) -> None:
        self.name = self._url = url.rstrip("/")
        self._setup = setup

    def findings(self, look: PageWindow | None) -> Triage:
        at, window = (look.end, look.seconds) if look is not None else (time.time(), 0.0)
        try:
            return judge_server(PrometheusAccess(self._url), self._setup(), at, window).document
        except (ServerError, PromQLError, OSError) as error:
            raise UnansweredError(
                Failure(
                    "The Prometheus can not be judged",
                    f"{self._url}: {error}",
                    "Look at Sources: is it the server that scrapes the engines?",
                    (f"kvitals triage --prometheus {self._url}",),
                )
            ) from error

    def extent(self) -> Extent:
        now = time.time()
        return Extent(now - PAST_SECONDS, now, 300.0)

    def series(self, query: str, start: float, end: float) -> list[ChartLine]:
        raise UnansweredError(
            Failure(
                "Series are not drawn from a Prometheus",
                "A Prometheus without recording rules has no kvitals:* series, so the charts here are a finding's own.",
                "Use the generated Grafana boards on that server, or point this page at an agent.",
            )
        )

    def past(self, start: float, end: float) -> PastEvents:
        now = self.findings(None)
        fired = [*now.causes, *now.symptoms, *now.telemetry, *now.notes]
        happened = [happening_of(f, now.window.end, now.window.end) for f in fired]
        why = "Of a Prometheus this page knows what is open now; what is over is in its alerts."
        return PastEvents([one for one in happened if one.start <= end and (one.end or math.inf) >= start], why)

    def blocks(self) -> Blocks:
        raise UnansweredError(_needs_agent("What caches hold is not known here"))

    def requests(self, asked: RequestQuery) -> RequestAnswer:
        raise UnansweredError(_needs_agent("Single requests are not known here"))

    def lookups(self) -> Lookups:
        raise UnansweredError(_needs_agent("No look-up of a cache is known here"))


def _needs_agent(title: str) -> Failure:
    return Failure(title, _ONLY_AGENT, "Point this page at an agent on the engine's node (Sources).", ("kvitals run",))
