"""Alertmanager's configuration: who is told of what, what is told together, and what is held back.

An alert that another one explains is held back, as triage folds symptoms under their cause, but never where that would
take a page away: a ticket holds back tickets only, a rule in preview only others in preview.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvitals.dashboards.alerts import alertable, severity
from kvitals.dashboards.alerts_burn import OBJECTIVES
from kvitals.dashboards.alerts_guards import CODE as TELEMETRY
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_yaml import dump
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import SCOPES, Rule

PATH = "alertmanager/alertmanager.yaml"
OTHERS = "not-kvitals"
"""Where alerts of other people's rules go."""
IDENTITY = ("cluster", "pool", "node", "engine")
_WITHIN: dict[str, tuple[str, ...]] = {"engine": ("engine",), "node": ("engine", "node")}
"""Scopes whose alerts carry all labels of a scope: these can be compared."""

NOTE = """\
Merge it into your file: the routes below your own, the inhibit_rules into yours. `kvitals-page` and `kvitals-ticket`
both send to kvitals, which diagnoses and forwards; without kvitals, replace both with your own receivers. All other
alerts go to `not-kvitals`, which sends nothing: put your own receiver in its place.
Check it with: amtool check-config alertmanager.yaml"""


def files(knowledge: Knowledge, options: Options) -> dict[str, str]:
    return {PATH: dump(configuration(knowledge, options), note=NOTE)}


def configuration(knowledge: Knowledge, options: Options) -> dict[str, Any]:
    """A whole configuration, which Alertmanager runs as it is."""
    hook = {"url": options.receiver, "send_resolved": True, "max_alerts": 100}
    return {
        "route": {
            "receiver": OTHERS,
            "group_by": list(IDENTITY),  # what is wrong with one thing is one message
            "group_wait": "5s",  # an early warning is early by seconds
            "group_interval": "1m",
            "repeat_interval": "12h",
            "routes": [
                {
                    "matchers": ['kvitals_code!=""', f'severity="{options.page}"'],
                    "receiver": "kvitals-page",
                    "repeat_interval": "1h",
                },
                {"matchers": ['kvitals_code!=""', f'severity="{options.ticket}"'], "receiver": "kvitals-ticket"},
            ],
        },
        "receivers": [
            {"name": OTHERS},
            *({"name": name, "webhook_configs": [hook]} for name in ("kvitals-page", "kvitals-ticket")),
        ],
        "inhibit_rules": list(inhibitions(knowledge, options)),
    }


_GONE = (
    ("all-gone", ("agent-gone", "pool-gone", "engine-gone", "target-down"), ("cluster",)),
    ("pool-gone", ("engine-gone",), SCOPES["pool"]),
    ("engine-gone", ("target-down",), SCOPES["engine"]),
)
"""What is gone, the alerts on parts of it, and the labels that both have."""


def inhibitions(knowledge: Knowledge, options: Options) -> Iterator[dict[str, Any]]:
    """What holds back what: a page its own tickets, a cause what it explains, a thing that is gone what is of it."""
    yield {
        "source_matchers": ['kvitals_code!=""', f'severity="{options.page}"'],
        "target_matchers": [f'kvitals_code=~"{"|".join(OBJECTIVES)}"', f'severity="{options.ticket}"'],
        "equal": ["kvitals_code", *SCOPES["engine"]],
    }
    for gone, parts, equal in _GONE:
        yield {
            "source_matchers": [f'alertname="{TELEMETRY}-{gone}"'],
            "target_matchers": [f'alertname=~"{"|".join(f"{TELEMETRY}-{part}" for part in parts)}"'],
            "equal": list(equal),
        }
    for code, held in held_back(knowledge).items():
        cause = knowledge.rules[code]
        target = [f'kvitals_code=~"{"|".join(held)}"']
        if severity(cause) == "ticket":
            target.append(f'severity="{options.ticket}"')
        if cause.stage == "preview":
            target.append('stage="preview"')
        if cause.scope == "node":
            target.append('node!=""')  # engines without a node are not all of one
        yield {
            "source_matchers": [f'kvitals_code="{code}"'],
            "target_matchers": target,
            "equal": list(SCOPES[cause.scope]),
        }


def held_back(knowledge: Knowledge) -> Mapping[str, list[str]]:
    """Code -> codes of the alerts that it explains on the same entity or on what that is made of. Without circles:
    two alerts that held one another back would both be silent."""
    alerting = {code: rule for code, rule in sorted(knowledge.rules.items()) if alertable(rule)}
    found: dict[str, list[str]] = {}
    for code, rule in alerting.items():
        targets = [t for t in rule.explains if t in alerting and _may(rule, alerting[t])]
        kept = [target for target in targets if not _reaches(target, code, found)]
        if kept:
            found[code] = kept
    return found


def _may(cause: Rule, effect: Rule) -> bool:
    """Whether an alert may hold back another at all."""
    if effect.scope not in _WITHIN.get(cause.scope, (cause.scope,)):
        return False
    if severity(cause) != "page" and severity(effect) == "page":
        return False
    return cause.stage == "stable" or effect.stage == "preview"


def _reaches(start: str, goal: str, edges: Mapping[str, list[str]]) -> bool:
    seen: set[str] = set()
    todo = [start]
    while todo:
        code = todo.pop()
        if code == goal:
            return True
        if code not in seen:
            seen.add(code)
            todo += edges.get(code, ())
    return False
