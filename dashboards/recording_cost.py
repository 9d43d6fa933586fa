"""What keeps the rules cheap: each is evaluated as often as somebody needs it, and what many read is computed once.

A signal that an alert, a board or an autoscaler reads is recorded at every evaluation; so is one of which another
signal reads a range, as that counts its samples. The others are there for who asks for them, and are recorded once a
minute. The rates of the buckets of TTFT and ITL stand in thirteen and eight places; a rule records them for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.parsed import parse_once
from kvitals.dashboards.recording_rules import SLOW, SLOW_INTERVAL
from kvitals.rules.loader import SIGNAL_PREFIX
from kvitals.rules.model import SCOPES
from kvitals.series.promql import Range, names

Rule = Mapping[str, Any]

LATENCY = "kvitals-latency"
"""The group that most readers of the shared rates are in; there they are as fresh as the rates."""

SHARED = ("ttft_seconds", "itl_seconds")
"""Histograms whose rates over the short window are recorded."""

ONCE_A_MINUTE = "-minute"
"""How the name of a group ends that has the rest of another group's signals, recorded once a minute."""

_SIGNAL = re.compile(rf"\b{SIGNAL_PREFIX}\w+")


def shared_rates(options: Options) -> dict[str, str]:
    """What is recorded of each shared histogram: the name, and the expression as signals write it."""
    scope, window = ", ".join(SCOPES["engine"]), duration(options.fast_seconds)
    return {
        f"{SIGNAL_PREFIX}{family}_bucket:rate": f"sum by ({scope}, le) (rate(kvitals_{family}_bucket[{window}]))"
        for family in SHARED
    }


def with_shared_rates(rules: Iterable[Rule], options: Options) -> list[dict[str, Any]]:
    """The rules, which read the recorded rates instead of calculating them."""
    made = []
    for rule in rules:
        text = rule["expr"]
        for name, expr in shared_rates(options).items():
            text = text.replace(expr, name)
        made.append({**rule, "expr": text})
    return made


def needed_often(recording: Iterable[Rule], read: Iterable[str]) -> frozenset[str]:
    """The recorded names that are needed at every evaluation. read: the texts of alerts, boards and autoscalers."""
    made = {rule["record"]: parse_once(rule["expr"]) for rule in recording}
    todo = [name for text in read for name in _SIGNAL.findall(text)]
    todo += [
        node.selector.name
        for expr in made.values()
        for node in expr.walk()
        if isinstance(node, Range) and node.selector.name in made
    ]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in made and name not in found:
            found.add(name)
            todo += names(made[name])
    return frozenset(found)


def evaluation_groups(
    groups: Mapping[str, list[dict[str, Any]]], often: frozenset[str]
) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Groups of signals: each one's name, interval (empty: that of the server) and rules. A group may become two."""
    for name, rules in groups.items():
        if name == SLOW:
            yield name, SLOW_INTERVAL, rules
            continue
        needed = [rule for rule in rules if rule["record"] in often]
        rest = [rule for rule in rules if rule not in needed]
        if needed:
            yield name, "", needed
        if rest:
            yield name + ONCE_A_MINUTE if needed else name, SLOW_INTERVAL, rest
