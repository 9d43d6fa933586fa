"""The files for Prometheus, in two flavours: over what agents export, and over engines' own metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kvitals.dashboards import alertmanager, manifests
from kvitals.dashboards.alerts import SLO, Alerts, alert_rules
from kvitals.dashboards.alerts_burn import RATES, rates
from kvitals.dashboards.alerts_guards import GROUP, agent_rules, life_rules
from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.alerts_yaml import dump
from kvitals.dashboards.board_files import Board, family_metrics, shipped_boards
from kvitals.dashboards.parsed import parse_once
from kvitals.dashboards.recording_cost import LATENCY, evaluation_groups, needed_often, shared_rates, with_shared_rates
from kvitals.dashboards.recording_raw import PageCoverage
from kvitals.dashboards.recording_rules import DERIVED, RecordingRules, record
from kvitals.rules.loader import Knowledge, family_of
from kvitals.series.promql import names

FOLDER = "prometheus"
RATES_INTERVAL = "1m"

Groups = dict[str, Any]


def with_agents(knowledge: Knowledge, options: Options) -> tuple[Groups, Groups]:
    """Recording and alerting rules over the families of agents."""
    recorded = record(knowledge, options)
    alerts = alert_rules(knowledge, recorded, options)
    often = _often(recorded, knowledge, options)
    watched = [*agent_rules(options), *life_rules()]
    return recording_groups(recorded, often, watched, options), alert_groups(alerts, options)


def without_agents(
    knowledge: Knowledge, options: Options, boards: Iterable[Board] | None = None
) -> tuple[Groups, Groups, Mapping[str, str]]:
    """The same where engines are scraped themselves, after rules that record families of their pages; and the rules
    that have no alert there. boards: those that read the families; None: the boards that ship."""
    drawn = shipped_boards().values() if boards is None else boards
    recorded = PageCoverage(knowledge).record(options, _read(knowledge, options, drawn))
    alerts = alert_rules(knowledge, recorded, options)
    often = _often(recorded, knowledge, options)
    recording = recording_groups(recorded, often, life_rules(), options)
    return recording, alert_groups(alerts, options), alerts.left_out


def _often(recorded: RecordingRules, knowledge: Knowledge, options: Options) -> frozenset[str]:
    """What is recorded at every evaluation: the same for both sets of alerts, so the extended one can be chosen without
    other recording rules."""
    alerts = alert_rules(knowledge, recorded, replace(options, alerts="extended"))
    rules = [rule for group in alerts.groups.values() for rule in group]
    read = [text for rule in rules for text in (rule["expr"], *rule["annotations"].values())]
    drawn = [json.dumps(board) for board in shipped_boards().values()]
    recording = [rule for group in recorded.groups.values() for rule in group]
    return needed_often(recording, [*read, *drawn, *manifests.scalers(knowledge).values()])


def _read(knowledge: Knowledge, options: Options, boards: Iterable[Board]) -> frozenset[str]:
    """The metrics of families that boards, alerts and their own recording rules read; signals' come from these."""
    alerts = alert_rules(knowledge, record(knowledge, options), options)
    made = [*rates(), *life_rules(), *(rule for group in alerts.groups.values() for rule in group)]
    read = {name for rule in made for name in names(parse_once(rule["expr"])) if family_of(name, knowledge.families)}
    return family_metrics(boards, knowledge) | read


def files(knowledge: Knowledge, options: Options, boards: Iterable[Board]) -> dict[str, str]:
    """Every file by its path. boards: those that read the families."""
    recording, alerts = with_agents(knowledge, options)
    raw_recording, raw_alerts, left_out = without_agents(knowledge, options, boards)
    every = f"Scrape every {options.scrape_seconds:g} s: the shortest window is {duration(options.fast_seconds)}."
    missing = "\n".join(f"  {code}: {why}" for code, why in left_out.items())
    rules = {
        "agents": [*recording["groups"], *alerts["groups"]],
        "engines": [*raw_recording["groups"], *raw_alerts["groups"]],
    }
    beside = alertmanager.files(knowledge, options) | manifests.files(knowledge, rules)
    return beside | {
        f"{FOLDER}/agents/recording.yaml": dump(recording, note=f"Over what agents export. {every}"),
        f"{FOLDER}/agents/alerts.yaml": dump(alerts, note="Over recording.yaml beside it."),
        f"{FOLDER}/engines/recording.yaml": dump(
            raw_recording, note=f"These rules read the engines' own metrics, without agents. {every}"
        ),
        f"{FOLDER}/engines/alerts.yaml": dump(
            raw_alerts,
            note="Over recording.yaml beside it. These rules of the extended set have no alert here, as they need the"
            f" agent:\n{missing}",
        ),
    }


def recording_groups(
    recorded: RecordingRules, often: frozenset[str], watched: list[dict[str, Any]], options: Options
) -> Groups:
    """Families come first and signals made of others last, in the file as in the order of evaluation. Families are
    recorded as often as they are scraped. often: the names of signals that are needed at every evaluation; watched:
    what the alerts on the life of engines read."""
    scraped = {"interval": duration(options.scrape_seconds)}
    groups: list[dict[str, Any]] = [
        {"name": name, **scraped, "rules": rules} for name, rules in recorded.families.items()
    ]
    order = sorted(recorded.groups, key=lambda name: name == DERIVED)
    for name, interval, rules in evaluation_groups({name: recorded.groups[name] for name in order}, often):
        made = with_shared_rates(rules, options)
        if name == LATENCY:
            made = [{"record": rate, "expr": expr} for rate, expr in shared_rates(options).items()] + made
        groups.append({"name": name, **({"interval": interval} if interval else {}), "rules": made})
    groups.append({"name": GROUP, "rules": watched})
    return {"groups": [*groups, {"name": RATES, "interval": RATES_INTERVAL, "rules": rates()}]}


def alert_groups(alerts: Alerts, options: Options) -> Groups:
    """Burn rates are judged as often as they are recorded."""
    often = {SLO: {"interval": RATES_INTERVAL}}
    return {
        "groups": [
            {"name": name, **often.get(name, {}), "rules": with_shared_rates(alerts.groups[name], options)}
            for name in sorted(alerts.groups)
        ]
    }
