"""What a situation is made of. Each file in `scenarios/` declares one and calls it SCENARIO."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from . import scenarios
from .engines import FlagValue
from .paths import LabError
from .traffic import Tenant

SystemName = Literal["vllm", "pd", "sglang", "dynamo"]
SYSTEMS: tuple[SystemName, ...] = ("vllm", "pd", "sglang", "dynamo")
PhaseName = Literal["baseline", "incident"]
PHASES: tuple[PhaseName, ...] = ("baseline", "incident")


@dataclass(frozen=True)
class Slo:
    """What the operator promised; the product is told so. Seconds."""

    ttft_p99: float
    itl_p99: float


@dataclass(frozen=True)
class Pair:
    """How a prefill and a decode engine and the proxy before them work together."""

    lease_s: int = 30
    """How long the prefill engine keeps KV that nobody fetches; 30 s is the connector's own default."""
    hand_over_s: float = 0.0
    """The proxy waits this long between prefill and decode, as in a queue in front of the decode engine."""
    retry_s: float = 0.0
    """How long the proxy goes on asking the decode engine while it fails."""
    hangs_up: str = ""
    """A tenant whose clients are gone when their prefill is done: no decode follows."""


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
    """The engines' (Dynamo: the workers') own flags, with underscores."""
    apart: Mapping[str, Mapping[str, FlagValue]] = field(default_factory=dict)
    """Further flags of one of several vLLM engines, by its name."""
    system: SystemName = "vllm"
    engines: tuple[str, ...] = ("engine",)
    """The names of the engines (Dynamo: of the workers behind the frontend; a pair: prefill and decode)."""
    pair: Pair = Pair()
    dies: str = ""
    """An engine that is killed as the incident begins."""
    phase_s: float = 30.0
    name: str = ""
    """Set from the file's name."""

    def load(self, phase: PhaseName) -> tuple[Tenant, ...]:
        return self.baseline if phase == "baseline" else self.incident

    @property
    def block_size(self) -> int:
        """Tokens in a block of the prefix cache: what is shared is shared in whole blocks."""
        return int(self.flags.get("block_size") or (1 if self.system == "sglang" else 32))


def names(systems: Collection[str] = ()) -> list[str]:
    """All scenarios, or those on these systems."""
    every = sorted(module.name for module in pkgutil.iter_modules(scenarios.__path__))
    return [name for name in every if not systems or load_scenario(name).system in systems]


def load_scenario(name: str) -> Scenario:
    module = f"{scenarios.__name__}.{name}"
    if not name.isidentifier() or importlib.util.find_spec(module) is None:
        raise LabError(f"no scenario called {name!r}; there are {', '.join(names())}")
    declared: Scenario = importlib.import_module(module).SCENARIO
    return replace(declared, name=name)
