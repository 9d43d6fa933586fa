"""Burn rates of the latency objectives: how fast the budget of late requests is being spent.

An objective allows 1 % of requests to be late. A burn of 14.4 means that 14.4 % are, which spends 2 % of a month's
budget in an hour. That so many are late is asked as "the quantile at 85.6 % is above the objective", so that the
objective need not be a bucket bound. Each burn is asked over a long window, so that it matters, and over a short one,
so that it still goes on. The windows and factors are those of the SRE workbook, chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.alerts_conditions import applies
from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.alerts_text import entity, links, signal_value
from kvitals.dashboards.recording_rules import indent_text
from kvitals.diagnoser.judgement import seconds
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import SCOPES, Rule, Severity

BUDGET = 0.01
"""Of the 99th percentile."""

LEAST_REQUESTS = 20
"""In the short window; below that a percentile says nothing, as in the signals."""

LATE = 2
"""Requests; one that is late is no trend."""

_FEW = ((0.95, 20), (0.98, 50), (0.99, 100))
"""Percentiles that are above an objective only where two requests are late, with the requests that they need."""

AGE = "1h"
"""For so long an engine must have been there before a longer window counts. If it is twenty minutes old, six hours are
these twenty minutes, and an incident that the hour has paged for would page a second time."""

RATES = "kvitals-burn-rates"


@dataclass(frozen=True)
class BurnObjective:
    family: str
    signal: str  # the recorded objective
    of: str  # what is late, in words
    observed: int  # the least number of observations in the short window


@dataclass(frozen=True)
class Burn:
    factor: float
    long: str
    short: str
    severity: Severity
    for_: str


OBJECTIVES = {
    "LAT01": BurnObjective("ttft_seconds", "slo_ttft_seconds", "first tokens", LEAST_REQUESTS),
    "LAT02": BurnObjective("itl_seconds", "slo_itl_seconds", "gaps between tokens", 5 * LEAST_REQUESTS),
}
BURNS = (
    Burn(14.4, "1h", "5m", "page", "2m"),
    Burn(6, "6h", "30m", "page", "15m"),
    Burn(3, "1d", "2h", "ticket", "1h"),
    Burn(1, "3d", "6h", "ticket", "3h"),
)
_LADDER = (
    ("30m", "5m[30m]"), ("1h", "5m[1h]"), ("2h", "5m[2h]"),
    ("6h", "1h[6h:5m]"), ("1d", "1h[1d:1h]"), ("3d", "1h[3d:1h]"),
)  # fmt: skip
"""Long windows are means of shorter ones, so that none reads days of buckets."""


def rates() -> list[dict[str, Any]]:
    """Rates of the buckets over each window, to be recorded once a minute."""
    found = []
    scope = ", ".join((*SCOPES["engine"], "le"))
    for objective in OBJECTIVES.values():
        bucket = f"kvitals_{objective.family}_bucket"
        found.append({"record": recorded_name(objective, "5m"), "expr": f"sum by ({scope}) (rate({bucket}[5m]))"})
        for window, of in _LADDER:
            shorter, _, step = of.partition("[")
            expr = f"avg_over_time({recorded_name(objective, shorter)}[{step})"
            found.append({"record": recorded_name(objective, window), "expr": expr})
    return found


def recorded_name(objective: BurnObjective, window: str) -> str:
    return f"{SIGNAL_PREFIX}{objective.family}_bucket:rate{window}"


def burn_alerts(knowledge: Knowledge, options: Options) -> Iterator[dict[str, Any]]:
    """Two alerts that page and two that do not, of each objective."""
    for code, objective in OBJECTIVES.items():
        rule = knowledge.rules[code]
        where = [guard for guard in applies(rule, options) if guard.startswith("unless") and "traffic" not in guard]
        for burn in BURNS:
            yield {
                "alert": name(rule),
                "expr": "\n".join([f"(\n{indent_text(_expression(objective, burn))}\n)", *where]),
                "for": burn.for_,
                "labels": {
                    **options.routing(code, burn.severity),
                    "kind": rule.kind,
                    "stage": rule.stage,
                    "scope": rule.scope,
                    "burn": f"{burn.factor:g}",
                    "window": burn.long,
                },
                "annotations": {
                    "summary": f"Slow {objective.of} spend the error budget {burn.factor:g} times too fast: "
                    + entity(rule.scope),
                    "description": _description(rule, objective, burn, knowledge),
                    **links(code, rule.scope, rule.group, options),
                },
            }


def name(rule: Rule) -> str:
    return f"{rule.slug}-burn"


def _expression(objective: BurnObjective, burn: Burn) -> str:
    slo, scope = SIGNAL_PREFIX + objective.signal, ", ".join(SCOPES["engine"])
    quantile = f"{1 - burn.factor * BUDGET:.4g}"
    parts = [f"histogram_quantile({quantile}, {recorded_name(objective, w)}) > {slo}" for w in (burn.long, burn.short)]
    counted = f'sum by ({scope}) ({recorded_name(objective, burn.short)}{{le="+Inf"}})'
    least = max(objective.observed, math.ceil(LATE / (burn.factor * BUDGET)))
    parts.append(f"{counted} * {seconds(burn.short):g} >= {least}")
    if seconds(burn.long) > seconds(AGE):
        parts.append(f'sum by ({scope}) ({recorded_name(objective, "5m")}{{le="+Inf"}} offset {AGE})')
    return "\nand ".join(parts)


def several_late(rule: Rule, options: Options) -> str:
    """What keeps the alert of the 99th percentile to where at least two requests were late. One in twenty puts it above
    the objective; so with few requests a lower percentile has to be above it, too."""
    objective = OBJECTIVES.get(rule.code)
    if objective is None or objective.observed >= LATE / BUDGET / 2:
        return ""
    scope, window = ", ".join(SCOPES["engine"]), duration(options.fast_seconds)
    rate = f"sum by ({scope}, le) (rate(kvitals_{objective.family}_bucket[{window}]))"
    count = f"sum by ({scope}) (increase(kvitals_{objective.family}_count[{window}]))"
    parts = [
        f"(histogram_quantile({q}, {rate}) > {SIGNAL_PREFIX}{objective.signal} and on ({scope}) {count} >= {least})"
        for q, least in _FEW
    ]
    parts.append(f'group by ({scope}) (ALERTS{{alertname="{rule.slug}", alertstate="firing"}})')  # until it leaves
    whole = "\nor ".join(parts)
    return f"and on ({scope})\n(\n{indent_text(whole)}\n)"


def _description(rule: Rule, objective: BurnObjective, burn: Burn, knowledge: Knowledge) -> str:
    slo = signal_value(objective.signal, rule.scope, knowledge)
    return (
        f"More than {100 * burn.factor * BUDGET:.3g} % of the {objective.of} were later than the objective of "
        f"{slo}, in the last {burn.long} and in the last {burn.short}; the objective allows {100 * BUDGET:g} %."
    )
