"""Which families a fleet's server has, pool by pool: what `kvitals check --prometheus` tells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.sources.prometheus import ServerError
from kvitals.diagnoser.sources.remote import RemoteSignals
from kvitals.diagnoser.sources.served import Rows
from kvitals.rules.compiled_signal import compile_signal
from kvitals.rules.expressions import expression
from kvitals.rules.loader import HISTOGRAM_PARTS, SIGNAL_PREFIX, Knowledge, family_of
from kvitals.rules.model import SCOPES
from kvitals.series.types import Labels

POOL = SCOPES["pool"]
MAX_POOLS = 200


@dataclass(frozen=True)
class Presence:
    """`engines`: in each pool. `families`: family -> engines of each pool that have it; families of none are not in it.
    `absent`: families that signals read and nobody has -> rules that rest on them."""

    engines: dict[Labels, int] = field(default_factory=dict)
    families: dict[str, dict[Labels, int]] = field(default_factory=dict)
    absent: dict[str, list[str]] = field(default_factory=dict)


def presence(knowledge: Knowledge, signals: RemoteSignals, span: EvaluationSpan) -> Presence:
    """Ask how many engines of each pool have each family that signals read: a query a family. Raises ServerError."""
    readers = rules_by_family(knowledge)
    has = signals.served.dialect.has
    there = {family: metric for family in readers if (metric := _metric(family, knowledge, has))}
    counted = {family: expression(_count(metric)) for family, metric in there.items()}
    everyone = expression(_count(ENTITIES))
    answers = signals.ask([everyone, *counted.values()], span.at, shared=True)
    engines = _by_pool(answers[everyone])
    families = {family: _by_pool(answers[expr]) for family, expr in counted.items()}
    found = {family: by_pool for family, by_pool in families.items() if by_pool}
    return Presence(
        dict(sorted(engines.items(), key=lambda item: str(item[0]))[:MAX_POOLS]),
        found,
        {family: codes for family, codes in sorted(readers.items()) if family not in found},
    )


def _by_pool(answer: Rows) -> dict[Labels, int]:
    """The counts of each pool. Raises ServerError where one is no count."""
    if not all(math.isfinite(value) for _, value in answer):
        raise ServerError("the server answered a count with a value that is no number: is it a Prometheus?")
    return {labels.keep(POOL): round(value) for labels, value in answer}


def _count(metric: str) -> str:
    by = ", ".join(dict.fromkeys((*POOL, "node", "engine")))
    return f"count by ({', '.join(POOL)}) (count by ({by}) ({metric}))"


def _metric(family: str, knowledge: Knowledge, has: Callable[[str], bool]) -> str:
    """A name of the family's series that there may be; empty where there is none."""
    histogram = knowledge.families[family].type == "histogram"
    names: Sequence[str] = [f"{family}{part}" for part in reversed(HISTOGRAM_PARTS)] if histogram else [family]
    return next((name for name in names if has(name)), "")


def rules_by_family(knowledge: Knowledge) -> dict[str, list[str]]:
    """Families -> the rules whose conditions rest on them, through their signals."""
    found: dict[str, list[str]] = {}
    for rule in knowledge.rules.values():
        for family in {f for name in knowledge.needs(rule) for f in _families(name, knowledge)}:
            found.setdefault(family, []).append(rule.code)
    return {family: sorted(codes) for family, codes in sorted(found.items())}


def _families(name: str, knowledge: Knowledge, seen: frozenset[str] = frozenset()) -> set[str]:
    signal = knowledge.signals[name]
    found: set[str] = set()
    for metric in compile_signal(signal).metrics:
        inner = metric.removeprefix(SIGNAL_PREFIX)
        if inner != metric:
            found |= _families(inner, knowledge, seen | {name}) if inner not in seen else set()
        elif family := family_of(metric, knowledge.families):
            found.add(family)
    return found
