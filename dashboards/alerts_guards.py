"""Alerts on the life of engines and of what watches them. Missing data is not health; other alerts are silent on it.

An engine that ends idle was scaled in, rolled out or scaled to zero, and nobody is to be woken. One that ends while
requests run on it is lost capacity that is wanted. What ran on it last is recorded (`kvitals:in_flight`), since nothing
else is left of it. Where the agent or the Prometheus that watched it is gone too, nothing can be said of the engine.

They have the code of TEL01, whose page says what to do where metrics cannot be read. One more is on figures that look
whole and are not: several sources with the labels of one engine, whose figures every rule adds. It has the code of
TEL12.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.alerts_text import entity, links
from kvitals.dashboards.parsed import parse_once
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, parameters, signal_names
from kvitals.rules.model import SCOPES, Rule, Scope, Severity
from kvitals.series.promql import expand

CODE = "TEL01"


@dataclass(frozen=True)
class AlertGuard:
    code: str
    name: str
    expr: str
    for_: str
    severity: Severity
    scope: Scope
    summary: str
    description: str

    @property
    def description_text(self) -> str:
        """The description outside of an alert, where there is no value."""
        return self.description.replace("{{ $value }}", "N")


GROUP = "kvitals-lifecycle"
IN_FLIGHT = f"{SIGNAL_PREFIX}in_flight"
SERVING = f"{SIGNAL_PREFIX}pool_engines_serving"
"""How many engines of a pool answer."""
SOURCES = f"{SIGNAL_PREFIX}target_sources"
"""How many sources have the labels of one engine. What agents export has a series for each; where engines are read
themselves, what is recorded are sums already, and the rule that counts is beside those."""
SCRAPES = f"{SIGNAL_PREFIX}target_scrapes"
"""How many samples of an engine the shortest window has."""
SELDOM = f"{SIGNAL_PREFIX}target_scraped_seldom"
"""The same where it never was enough in a quarter of an hour: a Prometheus that scrapes less often than its rules were
written for. Between two such samples an engine at work looks like one that does nothing."""
LEAST_SCRAPES = 4
"""Samples that a rate needs. The windows are long enough for twice as many."""
_ENGINE = "cluster, pool, node, engine"
_BUSY = f"last_over_time({IN_FLIGHT}[15m])"
_LOST = f"""\
(
  group by ({_ENGINE}) (kvitals_target_up == 0)
  or
  (group by ({_ENGINE}) (present_over_time(kvitals_target_up[15m])) unless on (cluster, node, engine) kvitals_target_up)
)"""
_SHORT = (
    f"({SERVING} < quantile_over_time(0.5, {SERVING}[30m])"
    f" or {SERVING} < quantile_over_time(0.9, {SERVING}[1h])"
    f' and on (cluster, pool) ALERTS{{alertname="{CODE}-engine-gone", alertstate="firing"}})'
)
"""Pools that have fewer engines than they had for most of the time, and where that pages already, than they had at all
but for the few minutes in which a rollout has one more. Where a new engine took the place of an old one, nothing is
lost, even if requests ran on the old one."""
_AGENT = "group by (cluster, node) (kvitals_collector_success)"
_PRESENCE = re.compile(r"kvitals_target_up\b[^)]*\boffset\b|unless[^)]*\)\s*kvitals_target_up\b")
_UNWATCHED = (
    f"(group by (cluster, node) (present_over_time(kvitals_collector_success[1h])) unless on (cluster, node) {_AGENT})"
)
"""Nodes whose agent is gone: nothing can be said of their engines."""

_WANTED_FOR = "20m"
"""For so long replicas have to be missing: a new engine loads its model before it is ready."""
_WORKLOADS = (
    (
        "deployment", "kube_deployment_spec_replicas", "kube_deployment_status_replicas_available",
        "kube_deployment_status_replicas_updated",
    ),
    (
        "statefulset", "kube_statefulset_replicas", "kube_statefulset_status_replicas_ready",
        "kube_statefulset_status_replicas_updated",
    ),
)  # fmt: skip
"""Label, and the metrics of kube-state-metrics for what is wanted, what is there, and what has the newest template."""


def _missing_replicas() -> str:
    """Workloads named as a pool that had fewer replicas than they wanted, all the time and outside of rollouts. Nobody
    is paged a second time where an engine that is gone pages already.

    A pool has the name of its workload or `namespace/name`. Where several namespaces have a workload of one name, only
    the latter tells which is meant. kube-state-metrics itself may be replaced meanwhile, with other labels.
    """
    parts = []
    for label, *metrics in _WORKLOADS:
        by = f"cluster, namespace, {label}"
        wanted, there, updated = (f"max by ({by}) ({metric})" for metric in metrics)
        missing = (
            f"(min_over_time(({wanted})[{_WANTED_FOR}:1m]) > max_over_time(({there})[{_WANTED_FOR}:1m])"
            f" and max by ({by}) ({metrics[0]} offset {_WANTED_FOR})"
            f" unless max_over_time(({updated} < bool {wanted})[{_WANTED_FOR}:1m]) > 0)"
        )
        alone = f"unless on (cluster, {label}) count by (cluster, {label}) ({wanted}) > 1"
        named = f'label_replace({missing} {alone}, "pool", "$1", "{label}", "(.+)")'
        qualified = f'label_join({missing}, "pool", "/", "namespace", "{label}")'
        parts += [f"max by (cluster, pool) ({one})" for one in (named, qualified)]
    known = "group by (cluster, pool) (present_over_time(kvitals_target_up[1d]))"
    paged = f'ALERTS{{alertname=~"{CODE}-(engine|pool)-gone", alertstate="firing"}}'
    return (
        "(\n  " + "\n  or\n  ".join(parts) + f"\n)\nand on (cluster, pool) {known}\nunless on (cluster, pool) {paged}"
    )


GUARDS = (
    AlertGuard(
        CODE,
        "engine-gone",
        f"{_LOST}\nand on (cluster, pool) {_SHORT}\nunless on (cluster, node) {_UNWATCHED}\n"
        f"and on (cluster, node, engine) ({_BUSY} > 0 or {{firing}})",
        "1m",
        "page",
        "engine",
        "Engine is gone while requests ran on it",
        "Requests were running at its last scrape. Other engines of its pool still run, but fewer than before. The "
        "engine crashed, was killed before its requests ended, or its page no longer answers. An engine that stops "
        "while idle, or that another one has replaced, fires no alert.",
    ),
    AlertGuard(
        CODE,
        "pool-gone",
        "group by (cluster, pool) (present_over_time(kvitals_target_up[1h]))\n"
        "unless on (cluster, pool) kvitals_target_up == 1\n"
        f"unless on (cluster, pool) ({_LOST}\nand on (cluster, node) {_UNWATCHED})\n"
        f"and on (cluster, pool) ({_LOST} or {{firing}})\n"
        f"and on (cluster, pool) (sum by (cluster, pool) ({_BUSY}) > 0 or {{firing}})",
        "1m",
        "page",
        "pool",
        "Pool has no engine left, while requests ran on it",
        "Its engines are down or gone; the agents that watched them still run. A pool that was scaled to"
        " zero while idle fires no alert.",
    ),
    AlertGuard(
        CODE,
        "agent-gone",
        f"{_UNWATCHED}\nand on (cluster, node) (sum by (cluster, node) ({_BUSY}) > 0 or {{firing}})",
        "5m",
        "page",
        "node",
        "Agent of a node is gone while requests ran on its engines",
        "The agent is down or cannot be scraped, or the node is lost. The state of its engines is unknown, and "
        "no other alert can fire for them."
        " A gap of less than 5 minutes fires no alert.",
    ),
    AlertGuard(
        CODE,
        "all-gone",
        f"absent(kvitals_target_up)\nand on () (sum({_BUSY}) > 0 or {{firing}})",
        "5m",
        "page",
        "fleet",
        "No engine is left while requests ran",
        "All engines are gone, or Prometheus scrapes nothing. A fleet that was scaled to zero while idle fires"
        " nothing.",
    ),
    AlertGuard(
        CODE,
        "below-replicas",
        _missing_replicas(),
        "1m",
        "page",
        "pool",
        "Pool has fewer engines than it wants",
        f"Its Deployment or StatefulSet wants {{{{ $value }}}} replicas and had fewer for {_WANTED_FOR}, outside of a"
        " rollout: pods crash, cannot be scheduled, or never become ready.",
    ),
    AlertGuard(
        CODE,
        "nothing-told",
        "absent(present_over_time(kvitals_target_up[1h]))",
        "5m",
        "ticket",
        "fleet",
        "This Prometheus has seen no engine for an hour",
        "No series of kvitals_target_up: no agent is scraped, or the recording rules that derive it from engine"
        " pages are not loaded.",
    ),
    AlertGuard(
        CODE,
        "signals-not-recorded",
        "count by (cluster) (kvitals_target_up unless on (cluster, node, engine) kvitals:target_up)",
        "5m",
        "ticket",
        "fleet",
        "The signals of engines are not recorded",
        "{{ $value }} engines have no kvitals:target_up: the recording rules are not loaded or fail, so no "
        "other alert can fire. Open the Rules page of this Prometheus.",
    ),
    AlertGuard(
        CODE,
        "scraped-seldom",
        f"count by (cluster) ({SELDOM})",
        "5m",
        "ticket",
        "fleet",
        "Prometheus scrapes engines less often than the alerts expect",
        f"The shortest window has fewer than {LEAST_SCRAPES} samples of {{{{ $value }}}} engines, so alerts on their "
        "signals cannot fire. Alerts on error budgets and on lost engines can. Write the rules for the interval of "
        "this Prometheus: `kvitals export recording alerts --scrape-interval INTERVAL`.",
    ),
    AlertGuard(
        "TEL12",
        "several-sources",
        f"{SOURCES} > 1",
        "5m",
        "ticket",
        "engine",
        "Several sources have the labels of one engine",
        "{{ $value }} sources have the same cluster, pool, node and engine, so every figure and alert of this engine "
        "is of all of them together, and one that stops is not noticed. Two teams use the same addresses, or two jobs "
        "scrape one engine. Give each source its own label `cluster`.",
    ),
)
"""`{firing}` stands for: this alert fires already. So it holds until the engine is back, however long ago it
ended."""


def scraped_engines(rule: Rule) -> str:
    """What keeps an alert to engines that are scraped as often as its windows need."""
    return f"unless on ({', '.join(SCOPES[rule.scope])}) {SELDOM}" if rule.scope in ("engine", "pool") else ""


def watched_engines(rule: Rule, knowledge: Knowledge) -> str:
    """What keeps an alert on engines that are gone to those whose agent is there. Prometheus may not have reached the
    agent, which says nothing of its engines."""
    if rule.scope not in ("engine", "pool") or not any(_compares_presence(name, knowledge) for name in _reads(rule)):
        return ""
    scope = ", ".join(SCOPES[rule.scope])
    return f"unless on ({scope})\n({_LOST}\nand on (cluster, node) {_UNWATCHED})"


def _reads(rule: Rule) -> frozenset[str]:
    return frozenset(signal_names(parse_once(expand(rule.when, {**parameters(rule)}))))


def _compares_presence(signal: str, knowledge: Knowledge) -> bool:
    """Whether a signal compares which engines there are with which there were."""
    text = knowledge.signals[signal].expr if signal in knowledge.signals else ""
    return bool(_PRESENCE.search(text))


def life_rules() -> list[dict[str, Any]]:
    """What the alerts on the life of engines read, to be recorded: the requests on each engine at its last sample, how
    many engines of each pool answer, and the engines that are scraped too seldom."""
    running, waiting = (f"sum by ({_ENGINE}) (kvitals_requests_{state})" for state in ("running", "waiting"))
    serving = f"count by (cluster, pool) (group by ({_ENGINE}) (kvitals_target_up == 1))"
    return [
        {"record": IN_FLIGHT, "expr": f"{running} + ({waiting} or 0 * {running})"},
        {"record": SERVING, "expr": serving},
        {"record": SELDOM, "expr": f"max_over_time({SCRAPES}[15m]) < {LEAST_SCRAPES}"},
    ]


def agent_rules(options: Options) -> list[dict[str, Any]]:
    """The same where agents export engines: how many of them do, and how many samples the shortest window has."""
    counted = f"count_over_time(kvitals_target_up[{duration(options.fast_seconds)}])"
    return [
        {"record": SOURCES, "expr": f"count by ({_ENGINE}) (kvitals_target_up)"},
        {"record": SCRAPES, "expr": f"max by ({_ENGINE}) ({counted})"},
    ]


def guards(options: Options) -> list[dict[str, Any]]:
    return [
        {
            "alert": f"{guard.code}-{guard.name}",
            "expr": _expression(guard),
            "for": guard.for_,
            "labels": {
                **options.routing(guard.code, guard.severity),
                "kind": "telemetry",
                "stage": "stable",
                "scope": guard.scope,
            },
            "annotations": {
                "summary": f"{guard.summary}: {entity(guard.scope)}",
                "description": guard.description,
                **links(guard.code, guard.scope, "telemetry", options),
            },
        }
        for guard in GUARDS
    ]


def _expression(guard: AlertGuard) -> str:
    labels = ", ".join(SCOPES[guard.scope])
    own = f'ALERTS{{alertname="{guard.code}-{guard.name}", alertstate="firing"}}'
    return guard.expr.replace("{firing}", f"group by ({labels}) ({own})")
