"""Alerts that something stopped being told: missing data is not health, and every other alert is silent on it.

They have the code of TEL01, whose page says what to do where metrics can not be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.alerts_text import entity, links
from kvitals.rules.model import Scope, Severity

CODE = "TEL01"


@dataclass(frozen=True)
class AlertGuard:
    name: str
    expr: str
    for_: str
    severity: Severity
    scope: Scope
    summary: str
    description: str


GUARDS = (
    AlertGuard(
        "engine-gone",
        "group by (cluster, pool, node, engine) (present_over_time(kvitals_target_up[15m]))\n"
        "unless on (cluster, node, engine) kvitals_target_up",
        "1m",
        "ticket",
        "engine",
        "Nothing is told of an engine any more",
        "It was watched within the last 15 minutes. Whoever watched it is down, can not be scraped, or was told to"
        " leave it; no other alert can fire on it.",
    ),
    AlertGuard(
        "pool-gone",
        "group by (cluster, pool) (present_over_time(kvitals_target_up[1h]))\n"
        "unless on (cluster, pool) kvitals_target_up == 1",
        "1m",
        "page",
        "pool",
        "No engine of a pool can be read",
        "Within the last hour there was one. The pool is down, or nothing that watches it can be scraped.",
    ),
    AlertGuard(
        "nothing-told",
        "absent(kvitals_target_up)",
        "5m",
        "page",
        "fleet",
        "This Prometheus is told of no engine at all",
        "No series of kvitals_target_up: no agent is scraped, or the rules that make it of the engines' pages are not"
        " loaded.",
    ),
    AlertGuard(
        "signals-not-recorded",
        "count by (cluster) (kvitals_target_up unless on (cluster, node, engine) kvitals:target_up)",
        "5m",
        "ticket",
        "fleet",
        "Engines are told of and their signals are not recorded",
        "{{ $value }} engines have no kvitals:target_up: the recording rules are not loaded or fail, so that no other"
        " alert can fire. Look at the rules' page of this Prometheus.",
    ),
)


def guards(options: Options) -> list[dict[str, Any]]:
    return [
        {
            "alert": f"{CODE}-{guard.name}",
            "expr": guard.expr,
            "for": guard.for_,
            "labels": {
                "code": CODE,
                "severity": guard.severity,
                "kind": "telemetry",
                "stage": "stable",
                "scope": guard.scope,
            },
            "annotations": {
                "summary": f"{guard.summary}: {entity(guard.scope)}",
                "description": guard.description,
                **links(CODE, guard.scope, "telemetry", options),
            },
        }
        for guard in GUARDS
    ]
