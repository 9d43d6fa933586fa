"""Every family that a rule needs has a producer: a page of an engine or exporter, or the code of the agent."""

from __future__ import annotations

import re
from pathlib import Path

from kvitals.rules.engine_map import load_map, systems
from kvitals.rules.loader import load

ROOT = Path(__file__).parents[2]
KNOWLEDGE = load()

UNPRODUCED = {"kvitals_board_queries_dead"}
"""TEL08 is unknown until a program beside kvitals writes this: `kvitals lint` checks boards once and feeds no agent."""


def written() -> tuple[set[str], tuple[str, ...]]:
    """The names of series that the code contains, and the beginnings of those that it composes."""
    folders = ("agent", "app", "diagnoser", "series")
    code = "\n".join(path.read_text("utf-8") for name in folders for path in (ROOT / name).rglob("*.py"))
    composed = set(re.findall(r"kvitals_[a-z_]{3,}(?=\{)", code))
    bases = set(re.findall(r'"(kvitals_[a-z_]{3,})"', code)) - KNOWLEDGE.families.keys()
    return set(re.findall(r"kvitals_[a-z0-9_]+", code)), tuple(composed | bases)


def test_every_family_has_a_producer() -> None:
    on_pages = {metric.family for system in systems() for metric in load_map(system).metrics}
    literal, begun = written()
    unknown = {f for f in KNOWLEDGE.families if f not in on_pages | literal and not f.startswith(begun)}
    assert unknown == UNPRODUCED


def test_only_the_rule_that_is_named_here_has_no_producer() -> None:
    """A new rule over an unproduced family needs a producer and not an entry above."""
    signals = {name: signal.expr for name, signal in KNOWLEDGE.signals.items()}
    dead = {f"kvitals:{name}" for name, expr in signals.items() if any(family in expr for family in UNPRODUCED)}
    codes = {code for code, rule in KNOWLEDGE.rules.items() if any(name in rule.when for name in dead | UNPRODUCED)}
    assert codes == {"TEL08"}
