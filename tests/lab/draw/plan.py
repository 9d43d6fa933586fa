"""What one play is made of. Faults change a plan; `incident_of` turns two plans into what the lab can play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..engines import FlagValue
from ..incidents.incident import ENGINES, Act, Incident, Label
from ..scenario import Pair, Scenario, Slo, SystemName
from ..traffic import Tenant

BASELINE_S, INCIDENT_S = 10.0, 30.0
NO_LABEL = Label(healthy="any")


@dataclass(frozen=True)
class Plan:
    """Engines, load and host of one play.

    shares: how many of every `sum(shares)` requests go to each engine; empty: the same number to each.
    """

    system: SystemName
    slo: Slo
    tenants: tuple[Tenant, ...]
    engines: tuple[str, ...] = ("engine",)
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    apart: Mapping[str, Mapping[str, FlagValue]] = field(default_factory=dict)
    pair: Pair = field(default_factory=Pair)
    shares: tuple[int, ...] = ()
    sticky: bool = False
    acts: tuple[Act, ...] = ()
    adapters: int = 0

    def with_flags(self, **flags: FlagValue) -> Plan:
        return replace(self, flags={**self.flags, **flags})

    def with_flags_apart(self, engine: str, **flags: FlagValue) -> Plan:
        return replace(self, apart={**self.apart, engine: {**self.apart.get(engine, {}), **flags}})

    def with_tenants(self, *more: Tenant) -> Plan:
        return replace(self, tenants=(*self.tenants, *more))

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return max(t.salt + t.prefix + (t.question + t.answer) * t.turns for t in self.tenants)


def incident_of(name: str, seed: int, calm: Plan, trouble: Plan) -> Incident:
    """What the lab plays: the load of `calm` first, then that of `trouble`, on engines with the flags of `trouble`."""
    scenario = Scenario(
        name=name,
        wrong="drawn at random",
        expect=(),
        slo=trouble.slo,
        baseline=calm.tenants,
        incident=trouble.tenants,
        flags=trouble.flags,
        apart=trouble.apart,
        system=trouble.system,
        engines=tuple(ENGINES.get(trouble.system, trouble.engines)),
        pair=trouble.pair,
    )
    return Incident(
        name=name,
        seed=seed,
        family="drawn",
        label=NO_LABEL,
        drawn={},
        scenario=scenario,
        acts=trouble.acts,
        sticky=trouble.sticky,
        adapters=trouble.adapters,
        shares=trouble.shares,
        baseline_s=BASELINE_S,
        incident_s=INCIDENT_S,
    )
