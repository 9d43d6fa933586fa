"""What a situation is made of. Each file in `scenarios/` declares one and calls it SCENARIO."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from . import scenarios
from .engines import FlagValue
from .paths import LabError
from .traffic import Tenant

PhaseName = Literal["baseline", "incident"]
PHASES: tuple[PhaseName, ...] = ("baseline", "incident")


@dataclass(frozen=True)
class Slo:
    """What the operator promised; the product is told so. Seconds."""

    ttft_p99: float
    itl_p99: float


@dataclass(frozen=True)
class Scenario:
    """Engines, what tenants do to them before and during an incident, and what there is to find."""

    wrong: str
    """One sentence: what is the matter during the incident."""
    expect: tuple[str, ...]
    """Codes of which the product's first cause must be one. Empty: it must find nothing."""
    slo: Slo
    baseline: tuple[Tenant, ...]
    incident: tuple[Tenant, ...]
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    engines: tuple[str, ...] = ("engine",)
    phase_s: float = 30.0
    name: str = ""
    """Set from the file's name."""

    def load(self, phase: PhaseName) -> tuple[Tenant, ...]:
        return self.baseline if phase == "baseline" else self.incident

    @property
    def block_size(self) -> int:
        return int(self.flags.get("block_size") or 32)


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(scenarios.__path__))


def load_scenario(name: str) -> Scenario:
    if name not in names():
        raise LabError(f"no scenario called {name!r}; there are {', '.join(names())}")
    declared: Scenario = importlib.import_module(f"{scenarios.__name__}.{name}").SCENARIO
    return replace(declared, name=name)
