"""The files for Prometheus, in two flavours: over what agents export, and over engines' own metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvitals.dashboards import alertmanager, manifests
from kvitals.dashboards.alerts import Alerts, alert_rules
from kvitals.dashboards.alerts_burn import RATES, rates
from kvitals.dashboards.alerts_guards import GROUP, in_flight
from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.alerts_yaml import dump
from kvitals.dashboards.grafana import RAW_SUFFIX
from kvitals.dashboards.recording_raw import RawCoverage
from kvitals.dashboards.recording_rules import DERIVED, RecordingRules, record
from kvitals.rules.loader import Knowledge
from kvitals.series.promql import parse

FOLDER = "prometheus"
RATES_INTERVAL = "1m"

Groups = dict[str, Any]


def with_agents(knowledge: Knowledge, options: Options) -> tuple[Groups, Groups]:
    """Recording and alerting rules over the families of agents."""
    recorded = record(knowledge, options)
    return recording_groups(recorded, rates(), in_flight()), alert_groups(alert_rules(knowledge, recorded, options))


def without_agents(knowledge: Knowledge, options: Options) -> tuple[Groups, Groups, Mapping[str, str]]:
    """The same over the engines' own metrics, and the rules that have no alert there."""
    options = replace(options, board_suffix=RAW_SUFFIX)
    raw = RawCoverage(knowledge)
    recorded = raw.record(options)
    alerts = alert_rules(knowledge, recorded, options, raw.rewrite)
    burn = [{**rule, "expr": str(raw.rewrite(parse(rule["expr"])))} for rule in rates()]
    flying = in_flight()
    flying["expr"] = str(raw.rewrite(parse(flying["expr"])))
    return recording_groups(recorded, burn, flying), alert_groups(alerts), alerts.left_out


def files(knowledge: Knowledge, options: Options) -> dict[str, str]:
    """Every file by its path."""
    recording, alerts = with_agents(knowledge, options)
    raw_recording, raw_alerts, left_out = without_agents(knowledge, options)
    every = f"Scrape every {options.scrape_seconds:g} s: the shortest window is {duration(options.fast_seconds)}."
    missing = "\n".join(f"  {code}: {why}" for code, why in left_out.items())
    rules = {
        "agents": [*recording["groups"], *alerts["groups"]],
        "engines": [*raw_recording["groups"], *raw_alerts["groups"]],
    }
    beside = alertmanager.files(knowledge, options) | manifests.files(knowledge, options, rules)
    return beside | {
        f"{FOLDER}/agents/recording.yaml": dump(recording, note=f"Over what agents export. {every}"),
        f"{FOLDER}/agents/alerts.yaml": dump(alerts, note="Over recording.yaml beside it."),
        f"{FOLDER}/engines/recording.yaml": dump(
            raw_recording, note=f"Over engines' own metrics, without agents. {every}"
        ),
        f"{FOLDER}/engines/alerts.yaml": dump(
            raw_alerts, note=f"Over recording.yaml beside it. Without an agent there is no alert of:\n{missing}"
        ),
    }


def recording_groups(recorded: RecordingRules, burn: list[dict[str, Any]], flying: dict[str, Any]) -> Groups:
    """Signals made of others come last, in the file as in the order of evaluation."""
    names = sorted(recorded.groups, key=lambda name: name == DERIVED)
    groups = [{"name": name, "rules": recorded.groups[name]} for name in names]
    groups.append({"name": GROUP, "rules": [flying]})
    return {"groups": [*groups, {"name": RATES, "interval": RATES_INTERVAL, "rules": burn}]}


def alert_groups(alerts: Alerts) -> Groups:
    return {"groups": [{"name": name, "rules": alerts.groups[name]} for name in sorted(alerts.groups)]}
