"""The incidents of the week: findings that the agent kept, or alerts that a Prometheus did."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from kvitals.diagnoser.review.result import IncidentLever, Incidents, ReviewIncident
from kvitals.diagnoser.review.work import Week
from kvitals.diagnoser.steps import Ask
from kvitals.rules.expressions import expression
from kvitals.rules.finding import Finding, LeverAdvice
from kvitals.rules.model import Rule
from kvitals.series.history.event_log import Episode, HistoryEvent
from kvitals.series.types import METRIC_NAME, Bools, Labels
from kvitals.series.undecodable import UNDECODABLE

TOLD = "told"
"""The kind of the events that say when a finding was told for the first time; their key is the episode's."""
MOST = 25
MOST_LEVERS = 3
DAY_SECONDS = 86400.0
MIN_STEP = 60.0
_WORTH = ("page", "ticket")
_KINDS = ("cause", "symptom")


def _counts(kind: str, severity: str) -> bool:
    """Whether a finding is an incident: what asked for something, or an engine that could not be read."""
    return (kind in _KINDS and severity in _WORTH) or (kind == "telemetry" and severity == "page")


@dataclass
class _Spans:
    """One finding of one entity, each time."""

    code: str
    labels: Mapping[str, str]
    spans: list[tuple[float, float]] = field(default_factory=list)
    detected: list[float] = field(default_factory=list)
    at_least: bool = False
    open: bool = False
    told: Finding | None = None  # the last of those of the highest severity

    def add(self, first: float, last: float, start: float, end: float) -> None:
        """One time, as much of it as is between `start` and `end`. `last` is infinity where it has not ended: an open
        episode is written once a minute, so its last row is not its end."""
        self.spans.append((max(first, start), min(last, end)))
        self.open |= last > end
        self.at_least |= last > end or first < start


def of_history(
    episodes: Iterable[Episode], told: Iterable[HistoryEvent], start: float, end: float, rules: Mapping[str, Rule]
) -> Incidents:
    """From the findings in an agent's history."""
    first_told: dict[str, float] = {}  # an agent that starts again tells again of what goes on
    for event in told:
        first_told[event.key] = min(event.t, first_told.get(event.key, event.t))
    found: dict[tuple[str, str], _Spans] = {}
    for one in episodes:
        finding = _decoded(one.document)
        rule = rules.get(one.code)
        severity, kind = (
            (finding.severity, finding.kind) if finding else (rule.severity, rule.kind) if rule else ("", "")
        )
        if not _counts(kind, severity) or (finding and finding.muted):
            continue
        of = found.setdefault((one.code, str(sorted(one.entity.items()))), _Spans(one.code, one.entity))
        last = math.inf if one.open else one.end
        if finding is not None and finding.last_true is not None:  # it is kept in sight for a while after that
            last = min(last, finding.last_true)
        of.add(one.start, last, start, end)
        if finding is not None and (of.told is None or _WORTH.index(severity) <= _WORTH.index(of.told.severity)):
            of.told = finding
        if finding is not None and finding.since_at_least:
            of.at_least = True
        elif one.key in first_told:
            of.detected.append(max(first_told[one.key] - one.start, 0.0))
    return _ranked(found.values(), rules, "findings of the agent's history", "")


def of_alerts(ask: Ask, start: float, end: float, gap: float, rules: Mapping[str, Rule]) -> Incidents:
    """From the alerts of the generated rules, where a Prometheus evaluates them: two questions a day."""
    step = max(MIN_STEP, gap)
    found: dict[tuple[str, str], _Spans] = {}
    firing, since = 'ALERTS{alertstate="firing",code!=""}', 'ALERTS_FOR_STATE{code!=""}'
    active = _joined(_courses(ask, since, start, end, step))
    for key, (labels, courses) in _joined(_courses(ask, firing, start, end, step)).items():
        times = [t for course in courses for t in course.times]
        code = labels.get("code", "")
        if not _counts(labels.get("kind", ""), labels.get("severity", "")):
            continue
        entity = {name: value for name, value in labels.items() if name in _PLACES}
        of = found.setdefault((code, str(sorted(entity.items()))), _Spans(code, entity))
        for first, last in _stretches(times, step):
            begun = _begun(active[key][1] if key in active else (), first)
            of.add(first if begun is None else begun, math.inf if last >= end - 2 * step else last, start, end)
            if begun is None:
                of.at_least = True
            else:
                of.detected.append(max(first - begun, 0.0))
    missing = (
        ""
        if found or active
        else ("the server has no alerts from the generated rules: load the rules, or keep an agent's history")
    )
    return _ranked(found.values(), rules, "alerts that the server stores", missing)


_PLACES = ("cluster", "pool", "node", "engine", "model", "role", "hardware", "gpu", "tenant")


@dataclass(frozen=True)
class _Course:
    labels: Labels
    times: list[float]
    values: list[float]


def _courses(ask: Ask, text: str, start: float, end: float, step: float) -> Iterator[_Course]:
    expr, begin = expression(text), start
    while begin < end:
        until = min(begin + DAY_SECONDS, end)
        for one in ask(expr, begin, begin + np.floor((until - begin) / step) * step, step):
            yield _Course(one.labels, one.times.tolist(), one.values.tolist())
        begin = until


def _joined(courses: Iterable[_Course]) -> dict[Labels, tuple[Labels, list[_Course]]]:
    """The courses of each alert, a day each, in order of time."""
    found: dict[Labels, tuple[Labels, list[_Course]]] = {}
    for one in courses:
        found.setdefault(one.labels.drop(METRIC_NAME, "alertstate"), (one.labels, []))[1].append(one)
    return found


def _stretches(times: Sequence[float], step: float) -> Iterator[tuple[float, float]]:
    """Times without a break."""
    first = last = None
    for t in sorted(times):
        if first is None or last is None:
            first = last = t
        elif t - last > 2.5 * step:
            yield first, last
            first = last = t
        else:
            last = t
    if first is not None and last is not None:
        yield first, last


def _begun(active: Iterable[_Course], firing: float) -> float | None:
    """Since when an alert was pending that fires then: the series' value is the time."""
    known = [
        value
        for one in active
        for t, value in zip(one.times, one.values, strict=True)
        if t <= firing + 1.0 and value <= firing
    ]
    return known[-1] if known else None


def _ranked(found: Iterable[_Spans], rules: Mapping[str, Rule], source: str, missing: str) -> Incidents:
    rows = [_row(one, rules) for one in found]
    rows.sort(key=lambda row: (row.severity != "page", row.kind != "cause", -row.seconds, row.code, row.entity))
    detected = [row.detected for row in rows if row.detected is not None]
    return Incidents(
        rows=rows[:MOST],
        not_listed=len(rows[MOST:]),
        detected=float(statistics.median(detected)) if detected else None,
        source=source,
        missing=missing,
    )


def _row(one: _Spans, rules: Mapping[str, Rule]) -> ReviewIncident:
    rule, told = rules.get(one.code), one.told
    spans = sorted(one.spans)
    return ReviewIncident(
        code=one.code,
        title=told.title if told else rule.title if rule else one.code,
        kind=told.kind if told else rule.kind if rule else "",
        severity=told.severity if told else rule.severity if rule else "",
        entity=told.entity.title if told else _title(one.labels),
        labels=dict(one.labels),
        times=len(spans),
        spans=spans,
        seconds=_covered(spans),
        detected=float(statistics.median(one.detected)) if one.detected else None,
        at_least=one.at_least,
        open=one.open,
        conclusion=told.conclusion if told else "",
        explains=list(told.explains) if told else [],
        explained_by=list(told.explained_by) if told else [],
        lost_gpu_hours=None,
        late_gpu_hours=None,
        ttft_within=None,
        levers=_levers(told, rule),
    )


def _levers(told: Finding | None, rule: Rule | None) -> list[IncidentLever]:
    """With their settings as they were advised; as the incident ended nothing may have been offered any more."""
    if told and told.levers:
        return [IncidentLever(one.lever, one.title, _setting(one)) for one in told.levers[:MOST_LEVERS]]
    return [IncidentLever(one.lever, "", "") for one in rule.levers[:MOST_LEVERS]] if rule else []


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that any of them covers; sorted."""
    total, until = 0.0, float("-inf")
    for first, last in spans:
        total += max(last - max(first, until), 0.0)
        until = max(until, last)
    return total


def _setting(advice: LeverAdvice) -> str:
    if advice.setting is None:
        return ""
    return advice.setting.text


def _title(labels: Mapping[str, str]) -> str:
    return next(
        (labels[name] for name in ("tenant", "gpu", "engine", "node", "pool", "cluster") if labels.get(name)), ""
    )


def _decoded(document: bytes) -> Finding | None:
    try:
        return msgspec.json.decode(document, type=Finding)
    except UNDECODABLE:
        return None  # of another version; the code still says what it was


def with_losses(incidents: Incidents, week: Week) -> Incidents:
    """What each incident cost, of its engines' busy GPU-hours in it: how many fewer tokens these made than the same
    engines' busy hours without any incident, and how many more of the first tokens came too late."""
    covered = [_cover(row, week) for row in incidents.rows]
    none = np.ones(week.seen.steps, dtype=np.bool_)
    for steps in covered:
        none &= ~steps
    rows = [_with_loss(row, week, steps, none) for row, steps in zip(incidents.rows, covered, strict=True)]
    return msgspec.structs.replace(incidents, rows=rows)


def _with_loss(row: ReviewIncident, week: Week, inside: Bools, usual: Bools) -> ReviewIncident:
    """What another incident explains costs nothing of its own."""
    seen, ttft = week.seen, week.within["ttft_p99"]
    engines = np.array([_is_of(row.labels, one.entity, one.place) for one in seen.engines], dtype=np.bool_)
    within, otherwise = ttft.share(inside, engines), ttft.share(usual, engines)
    row = msgspec.structs.replace(row, ttft_within=within)
    hours, before = (_busy(week, steps, engines) for steps in (inside, usual))
    if row.explained_by or hours <= 0:
        return row
    late = hours * max((otherwise or 1.0) - within, 0.0) if within is not None else None
    if before <= 0:
        return msgspec.structs.replace(row, late_gpu_hours=late)
    output = np.nan_to_num(seen.data["output"][:, engines]).sum(axis=1)
    then, rate = float(output[inside].sum()) / hours, float(output[usual].sum()) / before
    lost = hours * max(0.0, 1.0 - then / rate) if rate > 0 else 0.0
    return msgspec.structs.replace(row, lost_gpu_hours=lost, late_gpu_hours=late)


def _busy(week: Week, steps: Bools, engines: Bools) -> float:
    """GPU-hours of some engines in some steps in which something ran."""
    hours = week.ledger.gpu_hours * np.nan_to_num(week.seen.data["busy"], nan=0.0)
    return float(hours[steps][:, engines].sum())


def _cover(row: ReviewIncident, week: Week) -> Bools:
    """The steps of which an incident covers half or more."""
    seconds = np.zeros(week.seen.steps)
    ends = week.seen.ends
    for first, last in row.spans:
        seconds += np.clip(np.minimum(ends, last) - np.maximum(ends - week.seen.step, first), 0.0, None)
    return np.asarray(seconds >= week.seen.step / 2, dtype=np.bool_)


def _is_of(labels: Mapping[str, str], entity: Labels, place: Labels) -> bool:
    own = {**place, **entity}
    return all(own.get(name, "") == value for name, value in labels.items() if name in own)
