"""Which objectives an engine is judged by, of all that were set, and where each was set.

The most particular one counts: the command line, then the target's own `slo`, then the last [[objective]] that is
for the engine, then [slo], then the default. Objectives of a class of tenants stand beside these, with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvitals.agent.families import CONFIGURATION
from kvitals.config import Config, SloTable, SomeSlo

NAMES = ("ttft_p99", "itl_p99")
DEFAULT = "default"


class StatedObjective(NamedTuple):
    """An objective: its name, the seconds, where it was set, and the class of tenants that it is for."""

    name: str
    seconds: float
    source: str
    class_: str = ""


def general(config: Config, sources: Mapping[str, str]) -> list[StatedObjective]:
    """The objectives of an engine of which nothing particular was said.

    sources: objective -> where it was set, for those of `config.slo` that are not from the file.
    """
    return [_general(name, config.slo, sources) for name in NAMES]


def of_engine(
    config: Config, own: SomeSlo | None, model: str, role: str, sources: Mapping[str, str]
) -> list[StatedObjective]:
    """The objectives of an engine, and those of each class on it. own: what its target says."""
    mine = [o for o in config.objectives if o.covers(model, role)]
    plain = [*(o for o in mine if not o.class_), *([own] if own else [])]
    found = [_last(name, plain, sources) or _general(name, config.slo, sources) for name in NAMES]
    for class_ in dict.fromkeys(o.class_ for o in mine if o.class_):
        of_class = [_last(name, (o for o in mine if o.class_ == class_), sources) for name in NAMES]
        found += [said._replace(class_=class_) for said in of_class if said]
    return found


def _general(name: str, slo: SloTable, sources: Mapping[str, str]) -> StatedObjective:
    value = getattr(slo, f"{name}_seconds")
    known = DEFAULT if value == getattr(SloTable(), f"{name}_seconds") else CONFIGURATION
    return StatedObjective(name, value, sources.get(name, known))


def _last(name: str, said: Iterable[SomeSlo], sources: Mapping[str, str]) -> StatedObjective | None:
    """The last one that says something of `name`; None where none does, or where the command line does."""
    values = [value for slo in said if (value := getattr(slo, f"{name}_seconds")) is not None]
    return StatedObjective(name, values[-1], CONFIGURATION) if values and name not in sources else None
