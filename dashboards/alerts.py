"""Alerts for Prometheus, one for each rule that is worth a page or a ticket, over the recorded signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.alerts_burn import OBJECTIVES, burn_alerts
from kvitals.dashboards.alerts_conditions import expression, positive, undecidable
from kvitals.dashboards.alerts_guards import guards
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_text import description, links, summary
from kvitals.dashboards.recording import RecordingRules, Translate
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import Rule
from kvitals.series.promql import parse

ALERTING = ("page", "ticket")


@dataclass(frozen=True)
class Alerts:
    """Alerting rules by group, and the rules that have none, each with why."""

    groups: Mapping[str, list[dict[str, Any]]]
    left_out: Mapping[str, str]


def alertable(rule: Rule) -> bool:
    """Whether someone is to be told when the rule fires; the others are read by who looks."""
    return rule.severity in ALERTING and rule.alias_of is None


def alert_rules(
    knowledge: Knowledge, recorded: RecordingRules, options: Options, translate: Translate = lambda expr: expr
) -> Alerts:
    """The alerts over recorded signals. `translate`: what is read beside these, in the server's own names."""
    groups: dict[str, list[dict[str, Any]]] = {}
    left_out: dict[str, str] = {}
    for code in sorted(code for code, rule in knowledge.rules.items() if alertable(rule)):
        rule = knowledge.rules[code]
        try:
            made = alert(rule, knowledge, recorded, options, translate)
        except CannotTellError as why:
            left_out[code] = str(why)
            continue
        groups.setdefault(f"kvitals-alerts-{rule.group}", []).append(made)
    groups["kvitals-alerts-slo"] = list(burn_alerts(knowledge, options))
    groups["kvitals-alerts-telemetry"] = [*groups.get("kvitals-alerts-telemetry", []), *guards(options)]
    return Alerts(groups, left_out)


class CannotTellError(Exception):
    """An alert asks for what is not recorded."""


def alert(
    rule: Rule,
    knowledge: Knowledge,
    recorded: RecordingRules,
    options: Options,
    translate: Translate = lambda expr: expr,
) -> dict[str, Any]:
    """One rule as an alert. Raises CannotTellError."""
    text = expression(rule, options)
    expr = parse(text)
    missing = undecidable(positive(knowledge.condition(rule)), recorded.signals)
    if missing:
        raise CannotTellError(f"{SIGNAL_PREFIX}{missing} is not recorded")
    translated = translate(expr)
    made: dict[str, Any] = {
        "alert": rule.slug,
        "expr": text if translated == expr else str(translated),
        "for": rule.for_,
        "keep_firing_for": rule.keep,
        "labels": labels(rule),
        "annotations": {
            "summary": summary(rule),
            "description": description(rule, knowledge),
            **links(rule.code, rule.scope, rule.group, options),
        },
    }
    return {key: value for key, value in made.items() if value != "0s"}


def labels(rule: Rule) -> dict[str, str]:
    """What an alert is routed by. Where burn rates page for a symptom, that it is so right now is a ticket."""
    severity = "ticket" if rule.code in OBJECTIVES else rule.severity
    return {"code": rule.code, "severity": severity, "kind": rule.kind, "stage": rule.stage, "scope": rule.scope}
