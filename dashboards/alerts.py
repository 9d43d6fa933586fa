"""Alerts for Prometheus, one for each rule that is worth a page or a ticket, over the recorded signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.alerts_burn import OBJECTIVES, burn_alerts, several_late
from kvitals.dashboards.alerts_conditions import (
    expression,
    positive,
    proven_or_lasting,
    undecidable,
    unless_harmless,
)
from kvitals.dashboards.alerts_guards import guards, scraped_engines, watched_engines
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_text import description, links, summary
from kvitals.dashboards.recording_rules import RecordingRules, indent_text
from kvitals.rules.loader import ROOT, SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import Rule, Severity

ALERTING = ("page", "ticket")
SLO = "kvitals-alerts-slo"
"""The group of burn rates."""


@dataclass(frozen=True)
class Alerts:
    """Alerting rules by group, and the rules that can have none here, each with why."""

    groups: Mapping[str, list[dict[str, Any]]]
    left_out: Mapping[str, str]


def alertable(rule: Rule) -> bool:
    """Whether someone is to be told when the rule fires; the others are read by who looks."""
    return rule.severity in ALERTING and rule.alias_of is None


def is_core(rule: Rule, knowledge: Knowledge) -> bool:
    """Whether a rule's alert is in the core set: what users feel, the causes that explain most of it, and each rule of
    the user's own."""
    return rule.core or rule.kind == "symptom" or not knowledge.files[rule.code].is_relative_to(ROOT)


def alert_rules(knowledge: Knowledge, recorded: RecordingRules, options: Options) -> Alerts:
    """The alerts over recorded signals."""
    groups: dict[str, list[dict[str, Any]]] = {}
    left_out: dict[str, str] = {}
    for code in sorted(code for code, rule in knowledge.rules.items() if alertable(rule)):
        rule = knowledge.rules[code]
        try:
            made = alert(rule, knowledge, recorded, options)
        except CannotTellError as why:
            left_out[code] = str(why)
            continue
        if options.alerts == "core" and not is_core(rule, knowledge):
            continue
        groups.setdefault(f"kvitals-alerts-{rule.group}", []).append(made)
    groups[SLO] = list(burn_alerts(knowledge, options))
    groups["kvitals-alerts-telemetry"] = [*groups.get("kvitals-alerts-telemetry", []), *guards(options)]
    return Alerts(groups, left_out)


class CannotTellError(Exception):
    """An alert asks for what is not recorded."""


def alert(rule: Rule, knowledge: Knowledge, recorded: RecordingRules, options: Options) -> dict[str, Any]:
    """One rule as an alert. Raises CannotTellError."""
    guards_of_rule = (
        several_late(rule, options),
        proven_or_lasting(rule),
        scraped_engines(rule),
        watched_engines(rule, knowledge),
        unless_harmless(rule, knowledge),
    )
    kept_to = [guard for guard in guards_of_rule if guard]
    text = expression(rule, options)
    text = "\n".join([f"(\n{indent_text(text)}\n)", *kept_to]) if kept_to else text
    missing = undecidable(positive(knowledge.condition(rule)), recorded.signals)
    if missing:
        raise CannotTellError(f"{SIGNAL_PREFIX}{missing} is not recorded")
    made: dict[str, Any] = {
        "alert": rule.slug,
        "expr": text,
        "for": rule.for_,
        "keep_firing_for": rule.keep,
        "labels": labels(rule, options),
        "annotations": {
            "summary": summary(rule),
            "description": description(rule, knowledge),
            **links(rule.code, rule.scope, rule.group, options),
        },
    }
    return {key: value for key, value in made.items() if value != "0s"}


DEAD_CAPACITY = frozenset({"ENG01"})
"""Causes that page: an engine that has work and makes no progress is lost capacity that is wanted."""


def severity(rule: Rule) -> Severity:
    """The severity of a rule's alert. Pages are for what users feel and for lost capacity that is wanted: a cause is a
    ticket beside its symptom's page, and a page that cannot be read is one by `alerts_guards`, where requests ran.
    Where burn rates page for a symptom, that it is so right now is a ticket."""
    pages = rule.code in DEAD_CAPACITY or (rule.kind == "symptom" and rule.code not in OBJECTIVES)
    return rule.severity if pages or rule.severity != "page" else "ticket"


def labels(rule: Rule, options: Options) -> dict[str, str]:
    """What an alert is routed by, and what it is of."""
    return options.routing(rule.code, severity(rule)) | {"kind": rule.kind, "stage": rule.stage, "scope": rule.scope}
