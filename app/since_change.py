"""The latest change of an engine's configuration in a history or a recording, and whether it worked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kvitals.app import timeseries_sources
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.history import CYCLE_SECONDS, EngineLimit, judge_history
from kvitals.app.sources.recording import Moments, RecordingVerdict, judge_recording
from kvitals.app.timeseries_sources import TimeseriesSource
from kvitals.diagnoser import change_effect
from kvitals.diagnoser.change_effect import BeforeAfter, ConfigurationChange, Period
from kvitals.diagnoser.entities import entity_title
from kvitals.diagnoser.predictions import Predictions
from kvitals.diagnoser.questions import Questions
from kvitals.diagnoser.signals import EvaluationSpan, Signals, by_entity
from kvitals.diagnoser.steps import Ask, ask_matching, step_of
from kvitals.rules.expressions import expression
from kvitals.rules.finding import Entity, Finding, LeverAdvice, PredictedValue, SinceChange, Triage
from kvitals.rules.model import SCOPES, Lever
from kvitals.series.promql import expand
from kvitals.series.types import Labels, Matcher, MatchOp

AT_ONCE_SECONDS, OVERLAP_SECONDS = 3600.0, 300.0
ENOUGH_SECONDS = 60.0
"""Of load before a change, if there is less after it."""


class NoChangeError(ValueError):
    """There is no change to tell of; the message says where was looked."""


@dataclass(frozen=True)
class ChangeSource:
    """Where it is read what was. judged: the verdict at a moment of it, on this engine at least."""

    course: Callable[[], AbstractContextManager[TimeseriesSource]]
    judged: Callable[[Moments, Labels], RecordingVerdict]


def of_recording(path: Path, setup: Setup) -> ChangeSource:
    """A recording."""
    return ChangeSource(
        lambda: timeseries_sources.of_recording(path, setup),
        lambda at, _: judge_recording(path, setup, at, CYCLE_SECONDS),
    )


def of_history(
    path: Path, setup: Setup, start: float | None, end: float | None, most: int | None = None
) -> ChangeSource:
    """A history on disk; changes are looked for in the last day of it, where nothing else is said. most: engines that
    are judged, the changed one among them; None: all."""
    return ChangeSource(
        lambda: timeseries_sources.of_history(path, start, end),
        lambda at, changed: judge_history(path, setup, at, None if most is None else EngineLimit(most, changed)),
    )


def since_change(source: ChangeSource) -> RecordingVerdict:
    """The verdict on the end of a source, with what came of the latest change in it.

    Raises NoChangeError; HistoryError, PromQLError, RecordingError, CaptureError as the source does.
    """
    with source.course() as of:
        change, begun = _latest(of)
        before, after = _periods(change, begun, of)
    now = source.judged(Moments(of.end, None if after is None else after.end - after.seconds), change.entity)
    if before is None or after is None:
        side = "between the change before it and this change" if before is None else "after it"
        least, settle = change_effect.LEAST_SECONDS, change_effect.SETTLE_SECONDS
        why = f"There are fewer than {least:.0f} s with load {side}; the first {settle:.0f} s of a load do not count."
        return _with(
            now, _told(change, [], ("cannot be judged", f"Cannot be judged: not enough data. {why}"), now.document)
        )
    then = source.judged(Moments(before.end), change.entity)
    told = _compared(change, then, now, before, after)
    return _with(now, told)


def _latest(of: TimeseriesSource) -> tuple[ConfigurationChange, float]:
    """The latest change, and since when its engine had the configuration before it.

    It is looked for from the end on backwards, since a day of many engines is much to ask for at once, and then at
    every row of its engine.
    """
    step, end = step_of(of.gap) / 2, of.end
    while end > of.start:
        start = max(of.start, end - AT_ONCE_SECONDS)
        if found := change_effect.changes(of.ask, max(of.start, start - OVERLAP_SECONDS), end, step):
            return _to_the_row(found[-1], of)
        end = start
    raise NoChangeError(f"no engine's configuration changed in {of.name}")


def _to_the_row(change: ConfigurationChange, of: TimeseriesSource) -> tuple[ConfigurationChange, float]:
    ask = _of_engine(of, change)
    start = max(of.start, change.last - AT_ONCE_SECONDS)
    found = change_effect.changes(ask, start, change.first, max(of.gap, 1.0))
    if not found:
        return change, of.start
    return found[-1], found[-2].first if len(found) > 1 else start


def _of_engine(of: TimeseriesSource, change: ConfigurationChange) -> Ask:
    matchers = [Matcher(name, MatchOp.EQ, change.entity.get(name, "")) for name in SCOPES["engine"]]
    return ask_matching(of.ask, matchers)


def _periods(change: ConfigurationChange, begun: float, of: TimeseriesSource) -> tuple[Period | None, Period | None]:
    """The last load before a change and the last after it, each with one configuration and less what it takes to
    settle. begun: when the configuration before the change came. The one before is not much longer than the one after:
    what is longer ago was rather of another load."""
    load = change_effect.load_course(_of_engine(of, change), begun, of.end, of.gap)

    def settled(start: float, end: float, most: float) -> Period | None:
        busy = load.busy_times(start, end)
        return change_effect.busy(load, busy[0] + change_effect.SETTLE_SECONDS, end, most) if busy else None

    after = settled(change.first, of.end, change_effect.MOST_SECONDS)
    most = max(ENOUGH_SECONDS, after.seconds if after is not None else 0.0)
    return settled(begun, change.last - of.gap, most), after


def _compared(
    change: ConfigurationChange, then: RecordingVerdict, now: RecordingVerdict, before: Period, after: Period
) -> SinceChange:
    knowledge = now.pipeline.judge.knowledge
    levers = change_effect.pulled_levers(
        change, knowledge, BeforeAfter(_number(then.pipeline, change), _number(now.pipeline, change))
    )
    advised = [name for name in _advised(then.document, change) if name in {lever.name for lever in levers}]
    levers = [lever for lever in levers if lever.name in advised] or levers
    sides = (
        change_effect.observe_period(_look(then.pipeline), before),
        change_effect.observe_period(_look(now.pipeline), after),
    )
    unlike = change_effect.unlike(change.entity, sides[0].whole, sides[1].whole)
    effects = change_effect.effects(change.entity, levers, _predicted(then, change, levers), sides, knowledge)
    told = _told(change, levers, change_effect.conclude(effects, unlike, levers), now.document)
    if unlike:  # what differs may be of the load
        effects = [msgspec.structs.replace(one, verdict="not judged") for one in effects]
    gone, come = _differences(then.document, now.document, change)
    return msgspec.structs.replace(told, effects=effects, gone=gone, come=come)


def _told(
    change: ConfigurationChange, levers: list[Lever], verdict: tuple[change_effect.Outcome, str], document: Triage
) -> SinceChange:
    labels = change.entity
    return SinceChange(
        entity=Entity("engine", dict(labels), entity_title("engine", labels)),
        at=change.first,
        changed=[str(one) for one in change.settings],
        levers=[lever.name for lever in levers],
        verdict=verdict[0],
        conclusion=verdict[1],
        effects=[],
    )


def _with(judged: RecordingVerdict, told: SinceChange) -> RecordingVerdict:
    return replace(judged, document=msgspec.structs.replace(judged.document, since_change=told))


def _look(pipeline: Pipeline) -> change_effect.Look:
    """The signals of any moment that the pipeline's window holds."""
    signals = Signals(pipeline.judge.knowledge, pipeline.node.window)

    def look(at: float, seconds: float) -> Mapping[str, Mapping[Labels, float]]:
        known = signals.observe(EvaluationSpan(at, seconds, seconds, cold=True))
        return {name: one.values for name, one in known.items()}

    return look


def _number(pipeline: Pipeline, change: ConfigurationChange) -> Callable[[str], float | None]:
    """The value of a lever's query for the changed engine at the moment that the pipeline judged."""

    def number(text: str) -> float | None:
        assert pipeline.span is not None
        scope = SCOPES["engine"]
        result = pipeline.judge.signals.now.evaluate(
            expression(expand(text, pipeline.span.windows.values("fast", "engine")))
        )
        return result if isinstance(result, float) else by_entity(result, scope).get(change.entity)

    return number


def _findings(document: Triage, change: ConfigurationChange) -> list[Finding]:
    """What fired of the changed engine."""
    every = (*document.causes, *document.symptoms, *document.telemetry, *document.notes)
    return [one for one in every if one.entity.labels == dict(change.entity)]


def _advised(document: Triage, change: ConfigurationChange) -> list[str]:
    return [advice.lever for finding in _findings(document, change) for advice in finding.levers]


def _predicted(then: RecordingVerdict, change: ConfigurationChange, levers: list[Lever]) -> list[PredictedValue]:
    """What is predicted of the levers that were pulled, with what was set; each signal once."""
    by_name = {lever.name: lever for lever in levers}
    found: dict[str, PredictedValue] = {}
    for finding in _findings(then.document, change):
        for advice in _as_set(then, finding, by_name, change):
            for one in advice.predicted:
                found.setdefault(one.metric, one)
    return list(found.values())


def _as_set(
    then: RecordingVerdict, finding: Finding, levers: Mapping[str, Lever], change: ConfigurationChange
) -> list[LeverAdvice]:
    """A finding's advice of these levers, predicted anew for what was set where that is another value than advised."""
    pipeline = then.pipeline
    assert pipeline.span is not None
    predictions = Predictions(Questions(pipeline.judge, pipeline.span))
    made = []
    for advice in (one for one in finding.levers if one.lever in levers):
        real = change_effect.as_set(advice, levers[advice.lever], change)
        for judgement in pipeline.judgements if real is not advice else ():
            if judgement.rule.code == finding.code and dict(judgement.entity) == finding.entity.labels:
                real = predictions.with_effects(real, judgement)
        made.append(real)
    return pipeline.replays.of(
        msgspec.structs.replace(finding, levers=made), pipeline.judge.knowledge, pipeline.span.at
    )


def _differences(then: Triage, now: Triage, change: ConfigurationChange) -> tuple[list[str], list[str]]:
    """What fired before and does not now, and the other way round."""
    old, new = ({f.code: f.title for f in _findings(one, change)} for one in (then, now))
    gone = [f"{code} {title}" for code, title in old.items() if code not in new]
    return gone, [f"{code} {title}" for code, title in new.items() if code not in old]
