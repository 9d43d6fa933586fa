"""The review of a time: what is asked of a history, an agent or a Prometheus, and where its incidents are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvitals.agent import objectives
from kvitals.app import timeseries_sources
from kvitals.app.agent_client import AgentClient, HistorySpan, NotKvitalsError
from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Setup
from kvitals.app.timeseries_sources import DAY_SECONDS, TimeseriesSource
from kvitals.config import Config
from kvitals.diagnoser import steps
from kvitals.diagnoser.review import incidents
from kvitals.diagnoser.review.assemble import ReviewRequest
from kvitals.diagnoser.review.assemble import review as assemble
from kvitals.diagnoser.review.events import noted_events
from kvitals.diagnoser.review.money import GpuPrices
from kvitals.diagnoser.review.result import Incidents, Review, ReviewEvent
from kvitals.diagnoser.sources.prometheus import PrometheusAccess
from kvitals.rules.model import Rule
from kvitals.series.history import event_log
from kvitals.series.history.new_rows import STEP_SECONDS
from kvitals.series.history.reader import HistoryReader

MAX_GPUS = 1024


@dataclass(frozen=True)
class ReviewSource:
    """What a review is computed from: series, incidents and events, each between two times."""

    series: TimeseriesSource
    incidents: Callable[[float, float], Incidents]
    events: Callable[[float, float], Sequence[ReviewEvent]]


def review_of(source: ReviewSource, setup: Setup, start: float, prices: GpuPrices) -> Review:
    """The document of the time from `start` to the end of the source. Raises NothingSeenError."""
    general = {one.name: one for one in objectives.general(setup.config, setup.slo_sources)}
    request = ReviewRequest(
        source=source.series.name,
        start=start,
        since=source.series.start,
        end=source.series.end,
        first=source.series.first,
        gap=source.series.gap,
        objectives={name: general[name].seconds for name in steps.OBJECTIVES},
        objectives_from=", ".join(sorted({general[name].source for name in steps.OBJECTIVES})),
        given=prices,
        incidents=source.incidents,
        noted=source.events,
    )
    return assemble(source.series.ask, request, setup.knowledge)


def gpu_prices(config: Config, every: float | None, by_name: Mapping[str, float], gpus: float | None) -> GpuPrices:
    """Prices and GPUs per engine: those given first, else those of [review]. Raises UsageError."""
    table = config.review
    gpus = table.gpus_per_engine if gpus is None else gpus
    if not 0 < gpus <= MAX_GPUS:
        raise UsageError(f"{gpus:g} GPUs per engine: write more than 0 and at most {MAX_GPUS}")
    return GpuPrices(table.usd_per_gpu_hour if every is None else every, {**table.prices, **by_name}, gpus)


@contextmanager
def server_review(
    access: PrometheusAccess, setup: Setup, start: float, end: float, *, may_be_agent: bool
) -> Iterator[ReviewSource]:
    """A Prometheus or, where `may_be_agent`, an agent that keeps history. Raises ServerError, AgentError."""
    rules = setup.knowledge.rules
    agent = AgentClient.with_access(access)
    kept = _history_span(agent) if may_be_agent else None
    first = kept.first if kept is not None else float("-inf")
    with timeseries_sources.of_server(access, setup, start, end, first) as of:
        if kept is None:
            yield ReviewSource(of, lambda a, b: incidents.of_alerts(of.ask, a, b, of.gap, rules), lambda a, b: [])
        else:
            # Memory may hold a row a second; what is further back has those that were written.
            yield _agent_source(replace(of, gap=max(of.gap, STEP_SECONDS)), agent, rules)


@contextmanager
def history_review(file: Path, setup: Setup, start: float, end: float) -> Iterator[ReviewSource]:
    """A history on this machine. Raises HistoryError, RecordingError."""
    rules = setup.knowledge.rules

    def findings(start: float, end: float) -> Incidents:
        with HistoryReader(file).reading() as connection:
            told = event_log.events(connection, start - DAY_SECONDS, end, incidents.TOLD)
            return incidents.of_history(list(event_log.episodes(connection, start, end)), told, start, end, rules)

    def events(start: float, end: float) -> list[ReviewEvent]:
        with HistoryReader(file).reading() as connection:
            return noted_events(event_log.events(connection, start, end))

    with timeseries_sources.of_history(file, start, end) as of:
        yield ReviewSource(of, findings, events)


def _history_span(agent: AgentClient) -> HistorySpan | None:
    """What an agent keeps; None where it keeps no history, or where the URL is a Prometheus'."""
    try:
        return agent.history()
    except NotKvitalsError:
        return None


def _agent_source(of: TimeseriesSource, agent: AgentClient, rules: Mapping[str, Rule]) -> ReviewSource:
    """An agent's history, asked by its URL."""

    def findings(start: float, end: float) -> Incidents:
        told = agent.events(start - DAY_SECONDS, end, incidents.TOLD)
        return incidents.of_history(agent.episodes(start, end), told, start, end, rules)

    return ReviewSource(of, findings, lambda start, end: noted_events(agent.events(start, end)))
