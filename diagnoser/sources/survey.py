"""What a server has, before anything is judged: whose series, how often they are sampled, since when."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.sources.engine_pages import page_metrics
from kvitals.diagnoser.sources.prometheus import Prometheus, PrometheusQuery, ServerError

SAMPLES_IN_WINDOW = 8
"""Distances between samples in a window. A rate wants four, some signals eight: whether an engine moves at all."""

FAST_SECONDS, SLOW_SECONDS = 60.0, 900.0
LOOK_SECONDS = 900.0
NOT_OF_AGENTS = ("kvitals_tap_", "kvitals_notify_", "kvitals_loop_")
"""Prefixes of what a tap and `kvitals notify` export of themselves."""
MAX_SAMPLES_PER_SECOND = 1000.0
"""Prometheus' times are in milliseconds."""
INTERVALS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0)


YOUNG_SECONDS = 4.0
"""Where samples seem to be further apart, the series may only be young: a scrape each 30 s has two a minute."""
LEAST_SAMPLES = 3

LAST_POINTS = 5000
"""Points of the course in which the last sample is searched: a server answers up to 11,000."""


class NothingScrapedError(ServerError):
    """No target was scraped in the minutes before a moment."""


@dataclass(frozen=True)
class Survey:
    """`names`: of the metrics that the server has. `interval`: seconds between two samples. `agents`: whether the
    families of agents are there, else engines have to be read by their own names. `cold`: nothing before the window."""

    names: frozenset[str]
    at: float
    interval: float
    agents: bool
    cold: bool
    asked: float = 0.0  # the window that was asked for, seconds; 0: none was
    left_out: str = ""  # engines that are not read, and how to read them

    @property
    def span(self) -> EvaluationSpan:
        """The moment and the windows, which are long enough for samples that are so far apart."""
        least = SAMPLES_IN_WINDOW * self.interval
        return EvaluationSpan(
            self.at, self.asked or max(FAST_SECONDS, least), max(SLOW_SECONDS, least, self.asked), self.cold
        )


def survey(server: Prometheus, at: float, window: float = 0.0, first: float = -math.inf) -> Survey:
    """Look at a server. `window`: seconds, where not the usual one. `first`: it has nothing before. Raises
    NothingScrapedError, and ServerError, also for a window too short."""
    names = frozenset(server.names(at - LOOK_SECONDS, at))
    presence = ENTITIES if has_agents(names) else "up"
    said = server.access.interval or None
    interval = _interval(server, presence, at, first)
    if presence == ENTITIES and interval is None:
        presence, interval = "up", _interval(server, "up", at, first)  # agents that are gone
    if interval is None:
        raise NothingScrapedError(
            f"no sample of `{presence}` in the {LOOK_SECONDS / 60:.0f} minutes before"
            f" {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC: nothing was scraped then, or the server no"
            " longer keeps it. Choose a time for which the server has samples. If an agent shows a recording "
            "(run --demo), give the recording's file."
        )
    interval = said or interval
    if window and window < SAMPLES_IN_WINDOW * interval:
        raise ServerError(
            f"a window of {window:.0f} s contains too few samples that are {interval:.0f} s apart; give at "
            f"least {SAMPLES_IN_WINDOW * interval:.0f} s"
        )
    found = Survey(names, at, interval, presence == ENTITIES, False, window)
    before = round(found.span.fast + interval)
    cold = not server.one(PrometheusQuery(f"count({presence} offset {before}s)", at))
    return Survey(names, at, interval, presence == ENTITIES, cold, window)


def last_scraped(server: Prometheus, start: float, end: float) -> float | None:
    """The last moment between two at which a target had been scraped, to five minutes; None: there is none. Raises
    ServerError."""
    step = max(LOOK_SECONDS / 3, (end - start) / LAST_POINTS)
    presence = ENTITIES if has_agents(server.names(start, end)) else "up"
    course = server.one(PrometheusQuery(f"count(last_over_time({presence}[{math.ceil(step)}s]))", end, start, step))
    return course[0].values[-1][0] if course and course[0].values else None


def has_agents(names: Iterable[str]) -> bool:
    """Whether a server has a family that only agents export. Families that engines' pages feed may be recorded by the
    rules for servers without agents, so these are no evidence of an agent."""
    only = (name for name in names if name.startswith("kvitals_") and not name.startswith(NOT_OF_AGENTS))
    return not page_metrics().issuperset(only)


def _interval(server: Prometheus, presence: str, at: float, first: float) -> float | None:
    """How far apart samples are with most targets; None where there are none."""
    counts = []
    # A series may be younger than the longest range. A short one may hold a sample at each end: few are no measure.
    for seconds, least in ((LOOK_SECONDS, 2), (LOOK_SECONDS / 3, 2), (LOOK_SECONDS / 15, 4)):
        found = server.one(PrometheusQuery(f"quantile(0.5, count_over_time({presence}[{seconds:.0f}s]))", at))
        if found and found[0].value is not None and (count := _samples(found[0].value[1], seconds)) >= least:
            covered, distances = (seconds, count) if at - seconds >= first else (at - first, count - 1)
            if covered > 0:
                counts.append(covered / distances)
    if not counts:
        return None
    found_seconds = min(counts)
    if found_seconds > YOUNG_SECONDS:
        found_seconds = min(found_seconds, _distance(server, presence, at) or math.inf)
    return min(INTERVALS, key=lambda usual: abs(math.log(usual / found_seconds)))


def _distance(server: Prometheus, presence: str, at: float) -> float | None:
    """The time between the first and the last sample of a series, by their number; the median of all. None where there
    are too few."""
    window = f"{LOOK_SECONDS:.0f}s"
    age = f"(timestamp({presence}) - min_over_time(timestamp({presence})[{window}:{INTERVALS[4]:.0f}s]))"
    samples = f"(count_over_time({presence}[{window}]) >= {LEAST_SAMPLES})"
    found = server.one(PrometheusQuery(f"quantile(0.5, {age} / ({samples} - 1))", at))
    seconds = float(found[0].value[1]) if found and found[0].value is not None else math.nan
    return seconds if seconds > 0 and math.isfinite(seconds) else None


def _samples(text: str, seconds: float) -> float:
    """The number of samples in a range of so many seconds, as a server reports it; may be NaN. Raises ServerError for
    what is not such a number."""
    count = float(text)
    if count > seconds * MAX_SAMPLES_PER_SECOND or count < 0:
        raise ServerError(
            f"the server reports {text[:40]!r} samples in {seconds:.0f} s, which is impossible: check that the "
            f"URL is a Prometheus, and check the proxy before it"
        )
    return count
