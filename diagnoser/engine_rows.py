"""The rows of a fleet table: the verdict of each engine and the figures that an operator compares between engines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvitals.diagnoser.entities import IN_FRONT
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.text import render
from kvitals.diagnoser.triage import engine_verdict, is_unread
from kvitals.diagnoser.undecided import MAX_NAMES
from kvitals.rules.expressions import expression
from kvitals.rules.finding import EngineRow, Entity, Finding, Measure, Point, Triage, reached_from
from kvitals.rules.loader import SIGNAL_PREFIX
from kvitals.rules.model import SCOPES, Severity
from kvitals.series.types import Labels

FIGURES = (
    *("ttft_p99_seconds", "ttft_p99_unproven", "slo_ttft_seconds", "itl_p99_seconds", "slo_itl_seconds"),
    *("running_avg", "waiting_avg", "kv_usage_p90", "prefix_hit_ratio", "generation_tokens_per_second"),
)
"""The signals of a row."""
MEASURED = frozenset(name for name in FIGURES if not name.startswith("slo_"))
"""Of these, those that the engine's page shows."""

COURSE = f"{SIGNAL_PREFIX}waiting_avg"
"""Its values over time are the course of a row: a queue grows before latencies do, and needs no minimum of requests."""

COURSE_POINTS = 24
COURSE_WINDOWS = 2
_ABOUT = ("system", "version", "model", "role")
_SEVERITIES: tuple[Severity, ...] = ("page", "ticket", "info")


def with_engines(document: Triage, judge: Judge, judgements: Sequence[Judgement], span: EvaluationSpan) -> Triage:
    """The document with a row for every engine. Raises PromQLError, and ServerError where a server is asked."""
    engines = judge.entities("engine", span.at)
    about = _findings_by_engine(document)
    judged = _by_entity(judgements)
    courses = _courses(judge, span) if engines else {}
    rows = []
    for engine in engines:
        findings = about.get(engine, [])
        healthy, verdict = engine_verdict(judge, judged.get(engine, ()), findings, span)
        unread = any(map(is_unread, findings))
        severities = {finding.severity for finding in findings}
        info = judge.info(engine, span.at)
        if info.get("kind") in (*IN_FRONT, "frontend"):
            verdict = _verdict_in_front(document, findings) or verdict
        rows.append(
            EngineRow(
                entity=Entity("engine", dict(engine), judge.title("engine", engine, span.at)),
                about={name: info[name] for name in _ABOUT if info.get(name)},
                healthy=healthy,
                verdict=verdict,
                severity=next((one for one in _SEVERITIES if one in severities), None),
                findings=[finding.id for finding in findings],
                figures=_figures(judge, engine, unread),
                course=courses.get(engine, []),
            )
        )
    return msgspec.structs.replace(document, engines=rows)


def _findings_by_engine(document: Triage) -> dict[Labels, list[Finding]]:
    """The open findings about each engine: causes of its own before those of its node or pool, then telemetry, then
    symptoms, each in the document's order.

    A finding about a node, a pool or the fleet is about an engine where it explains a finding of that engine.
    """
    causes = sorted(document.causes, key=lambda cause: cause.entity.kind != "engine")
    listed = [*causes, *document.telemetry, *document.symptoms]
    engine_of = {one.id: _engine(one) for one in listed if one.entity.kind == "engine"}
    by_engine: dict[Labels, list[Finding]] = {}
    for finding in listed:
        if finding.id in engine_of:
            engines = {engine_of[finding.id]}
        else:
            reached = reached_from(finding, document.causes)
            engines = {engine_of[id_] for id_ in reached if id_ in engine_of}
        for engine in engines:
            by_engine.setdefault(engine, []).append(finding)
    return by_engine


def _verdict_in_front(document: Triage, findings: Sequence[Finding]) -> str:
    """The verdict of a program in front of engines that has a symptom and no cause, where engines behind it have that
    symptom and its cause is known; else empty."""
    symptoms = [one for one in findings if one.kind == "symptom"]
    if len(symptoms) < len(findings) or not symptoms:
        return ""
    first = symptoms[0]
    behind = [one for one in document.symptoms if one.code == first.code and one.explained_by]
    names = list(dict.fromkeys(one.entity.title for one in behind))
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return f"{first.title}, as on {', '.join(names[:MAX_NAMES])}{more}." if names else ""


def _engine(finding: Finding) -> Labels:
    return Labels(finding.entity.labels).keep(SCOPES["engine"])


def _by_entity(judgements: Iterable[Judgement]) -> dict[Labels, list[Judgement]]:
    found: dict[Labels, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.rule.scope == "engine":
            found.setdefault(judgement.entity, []).append(judgement)
    return found


def _figures(judge: Judge, engine: Labels, unread: bool) -> dict[str, Measure]:
    """unread: its page cannot be read any more. What it did before is not shown as what it does now."""
    figures = {}
    for name in FIGURES:
        known, unit = judge.signals.known.get(name), judge.knowledge.signals[name].unit
        value = known.values.get(engine) if known is not None and not (unread and name in MEASURED) else None
        number = value if value is not None and math.isfinite(value) else None
        figures[name] = Measure(name, number, unit, "" if value is None else render(value, unit))
    return figures


def _courses(judge: Judge, span: EvaluationSpan) -> Mapping[Labels, list[Point]]:
    """Waiting requests over the last two windows, by engine; one query, however many engines there are."""
    step = max(1, round(span.fast * 1000 * COURSE_WINDOWS / COURSE_POINTS)) / 1000
    judge.signals.focus(())
    series = judge.signals.course(expression(COURSE), span.at - COURSE_POINTS * step, span.at, step)
    return {
        one.labels.keep(SCOPES["engine"]): [
            Point(round(float(t), 3), float(value))
            for t, value in zip(one.times, one.values, strict=True)
            if math.isfinite(value)
        ]
        for one in series
    }
