"""The judged rules in the shape of Prometheus' `/api/v1/rules`, which Grafana lists as alert rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kvitals.app.pipeline import Pipeline
from kvitals.diagnoser.judgement import Judgement, seconds
from kvitals.rules.finding import Finding
from kvitals.rules.loader import parameters
from kvitals.rules.model import Rule
from kvitals.series.promql import expand


def groups(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Every rule by group, firing or not, with the findings as its alerts."""
    if pipeline.span is None:
        return []
    document = pipeline.triage()
    fired: dict[str, list[Finding]] = {}
    for finding in (*document.causes, *document.symptoms, *document.telemetry, *document.notes):
        fired.setdefault(finding.code, []).append(finding)
    judged: dict[str, list[Judgement]] = {}
    for judgement in pipeline.judgements:
        judged.setdefault(judgement.rule.code, []).append(judgement)
    by_group: dict[str, list[dict[str, Any]]] = {}
    for code, rule in sorted(pipeline.setup.knowledge.rules.items()):
        shown = _rule(rule, fired.get(code, []), judged.get(code, []), _time(pipeline.span.at))
        by_group.setdefault(rule.group, []).append(shown)
    crashed = pipeline.judge.crashed
    for rules in by_group.values():
        for shown in rules:
            if error := crashed.get(shown["labels"]["code"]):
                shown |= {"health": "err", "lastError": error}
    every = float(pipeline.setup.config.agent.interval)  # JSON has no other kind of number
    return [{"name": name, "file": "kvitals", "interval": every, "rules": rules} for name, rules in by_group.items()]


def _rule(rule: Rule, fired: list[Finding], judged: list[Judgement], at: str) -> dict[str, Any]:
    labels = {"code": rule.code, "severity": rule.severity, "kind": rule.kind}
    outcomes = {j.outcome for j in judged}
    return {
        "type": "alerting",
        "name": rule.slug,
        "query": " ".join(expand(rule.when, parameters(rule)).split()),
        "duration": seconds(rule.for_),
        "keepFiringFor": seconds(rule.keep),
        "labels": labels,
        "annotations": {"summary": rule.title, "outcome": ", ".join(sorted(outcomes))},
        "alerts": [_alert(f, labels | {"severity": f.severity}) for f in fired],
        "state": "firing" if fired else "inactive",
        "health": "unknown" if outcomes == {"unknown"} or not outcomes else "ok",
        "lastEvaluation": at,
        "evaluationTime": 0,
    }


def _alert(finding: Finding, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "labels": {"alertname": f"{finding.code}-{finding.name}", **labels, **finding.entity.labels},
        "annotations": {"summary": finding.title, "description": finding.conclusion},
        "state": "firing",
        "value": "1e+00",
        **({"activeAt": _time(finding.since)} if finding.since is not None else {}),  # absent where unknown, as there
    }


def _time(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat().replace("+00:00", "Z")
