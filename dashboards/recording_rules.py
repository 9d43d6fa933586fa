"""Recording rules: every signal under its name, `kvitals:<signal>`, as an agent would compute it.

Signals over families come first, in a group per subject; those made of other signals (changes, baselines) follow in one
group, in an order in which each finds what it reads. A signal has no value below its minimum of samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import TopologicalSorter
from typing import Any

import msgspec

from kvitals.dashboards.alerts_options import Options
from kvitals.rules.compiled_signal import compile_signal, sample_gate
from kvitals.rules.loader import ROOT, SIGNAL_PREFIX, Knowledge, read_as
from kvitals.rules.model import Signal
from kvitals.series.promql import expand

DERIVED = "kvitals-derived"
SLOW, SLOW_INTERVAL = "kvitals-slow", "1m"
"""Signals over a quarter of an hour, evaluated once a minute: more often only costs."""


@dataclass(frozen=True)
class RecordingRules:
    """Signals by group, in the order of evaluation; those that can have no value, each with why; and, where engines
    are scraped themselves, the families that signals are made of, by group."""

    groups: Mapping[str, list[dict[str, Any]]]
    left_out: Mapping[str, str]
    families: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def signals(self) -> frozenset[str]:
        named = {rule["record"] for rules in self.groups.values() for rule in rules}
        return frozenset(name.removeprefix(SIGNAL_PREFIX) for name in named if name.startswith(SIGNAL_PREFIX))


def record(knowledge: Knowledge, options: Options) -> RecordingRules:
    """The recording rules of every signal, over the families of agents."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name in in_order(knowledge):
        signal = knowledge.signals[name]
        text = definition(signal, options)
        groups.setdefault(group_of(name, knowledge, options), []).append(rule_of(name, text))
    return RecordingRules(groups, {})


def rule_of(name: str, text: str) -> dict[str, Any]:
    return {"record": SIGNAL_PREFIX + name, "expr": text}


def definition(signal: Signal, options: Options) -> str:
    """The signal as PromQL, absent below its minimum of samples."""
    values = options.windows.values(signal.window, signal.scope)
    text = expand(signal.expr, values).strip()
    if signal.samples is None:
        return text
    counted = expand(signal.samples.expr, values).strip()
    enough = f"{sample_gate(signal.samples):.12g}"
    return f"(\n{indent_text(text)}\n)\nand on ({values['scope']})\n(\n{indent_text(counted)}\n) >= {enough}"


def indent_text(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def in_order(knowledge: Knowledge) -> list[str]:
    """All signals, each after those that it reads. Raises graphlib.CycleError."""
    return list(TopologicalSorter({name: sorted(reads(name, knowledge)) for name in knowledge.signals}).static_order())


def reads(name: str, knowledge: Knowledge) -> frozenset[str]:
    """The signals that a signal is made of."""
    return compile_signal(knowledge.signals[name]).signals


def group_of(name: str, knowledge: Knowledge, options: Options) -> str:
    """The group that a signal is evaluated in."""
    if reads(name, knowledge):
        return DERIVED
    if knowledge.signals[name].window == "slow":
        return SLOW
    return f"kvitals-{_subjects().get(name, 'own').replace('_', '-')}"


class _Subject(msgspec.Struct, frozen=True):
    signals: dict[str, Any] = {}


@lru_cache(maxsize=1)
def _subjects() -> dict[str, str]:
    """The file that each signal of the knowledge that ships is written in."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "signals").glob("*.yaml")):
        subject = read_as(path, _Subject)
        assert isinstance(subject, _Subject)
        found |= dict.fromkeys(subject.signals, path.stem)
    return found
