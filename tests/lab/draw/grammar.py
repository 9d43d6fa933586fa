"""Draws an incident: a plan in order, and none to two faults. One seed is one incident, for ever."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..scenario import Slo
from ..traffic import Tenant
from .faults import BY_NAME, FAULTS, Fault
from .plan import Plan

SYSTEMS = ("vllm", "replicas", "pd", "sglang")
CHANCES = (58, 20, 10, 12)
"""In a hundred."""
NAMES = ("search", "chat", "agents", "shop")
HEALTHY = 1 / 3
TWO = 0.3
STRENGTHS = (0.2, 0.6, 0.8, 1.0)
COURSES = ("at once", "at once", "ramp", "pulse")
FIRST_WITH_COURSE = 2000
"""Seeds below this one were played before faults had a course: they stay what they were."""
PULSE_S, RAMP_S = 6.0, 20.0


@dataclass(frozen=True)
class Drawn:
    """calm: in order. faults: with their strengths, as they are applied. system: one of SYSTEMS."""

    seed: int
    system: str
    calm: Plan
    faults: tuple[tuple[Fault, float], ...]
    course: str = "at once"
    """How the demand that faults add comes: at once, over `RAMP_S` seconds, or in pulses of `PULSE_S` seconds."""

    @property
    def name(self) -> str:
        return f"drawn-{self.seed}"

    def plan(self, without: str = "") -> Plan:
        """The incident, but for one of its faults."""
        return self._with([f for f in self.faults if f[0].name != without])

    def before(self, without: str = "") -> Plan:
        """The calm before it, which has faults of settings already."""
        return self._with([f for f in self.faults if f[0].name != without and f[0].setting])

    def _with(self, faults: Sequence[tuple[Fault, float]]) -> Plan:
        plan = self.calm
        for fault, strength in faults:
            plan = fault.apply(plan, strength, random.Random(f"{self.seed}/{fault.name}"))
        return replace(plan, tenants=tuple(self._coming(tenant) for tenant in plan.tenants))

    def _coming(self, tenant: Tenant) -> Tenant:
        """A tenant with the course of the demand, where a fault added it."""
        if self.course == "at once" or tenant.name in {calm.name for calm in self.calm.tenants}:
            return tenant
        return replace(tenant, ramp_s=RAMP_S) if self.course == "ramp" else replace(tenant, pulse_s=PULSE_S)


def draw(seed: int, system: str = "") -> Drawn:
    """The incident of a seed; `system`: not one at random. The drawing of everything else does not depend on that."""
    chance = random.Random(f"drawn/{seed}")
    drawn = chance.choices(SYSTEMS, CHANCES)[0]
    calm = _calm(system or drawn, chance)
    course = random.Random(f"drawn/{seed}/course").choice(COURSES) if seed >= FIRST_WITH_COURSE else COURSES[0]
    return Drawn(seed, system or drawn, calm, _faults(calm, chance), course)


def _calm(system: str, chance: random.Random) -> Plan:
    names = chance.sample(NAMES, chance.choice([1, 1, 2, 3]))
    most = 3 if system in ("pd", "sglang") else 5
    tenants = tuple(_tenant(name, max(1, most // len(names)), chance) for name in names)
    slo = Slo(chance.choice([0.5, 0.75, 1.0, 2.5]), chance.choice([0.2, 0.3, 0.5]))
    plan = Plan("vllm", slo, tenants)
    if system == "pd":
        return replace(plan, system="pd", slo=Slo(max(1.0, slo.ttft_p99), 0.5))
    if system == "sglang":
        return replace(plan, system="sglang", slo=Slo(max(1.0, slo.ttft_p99), 0.5))
    slots, blocks = chance.choice([12, 16, 24]), chance.choice([192, 256, 512, 1024])
    flags = {"max_num_seqs": slots, "num_gpu_blocks_override": max(blocks, plan.longest // 32 * 2)}
    if chance.random() < 0.3:
        flags["max_num_batched_tokens"] = chance.choice([512, 1024, 4096])
    plan = plan.with_flags(**flags, max_model_len=min(2048, (flags["num_gpu_blocks_override"] - 1) * 32))
    if system == "replicas":
        names = [f"replica-{n}" for n in range(1, chance.choice([2, 3, 3]) + 1)]
        plan = replace(plan, engines=tuple(names), sticky=chance.random() < 0.2)
    return plan


def _tenant(name: str, clients: int, chance: random.Random) -> Tenant:
    prefix, prefixes = chance.choice([0, 64, 256, 384, 448]), chance.choice([1, 2, 4])
    question, answer = chance.choice([8, 16, 32, 64, 80]), chance.choice([8, 16, 32, 48, 64])
    shape = Tenant(name, prefix=prefix, prefixes=prefixes, question=question, answer=answer)
    kind = chance.choice(["closed", "closed", "open", "sessions", "bursts"])
    if kind == "open":
        return replace(shape, rate=round(chance.uniform(0.3, 0.5) * clients, 2))
    if kind == "bursts":
        return replace(shape, burst=clients, every_s=chance.choice([2.0, 4.0]))
    think = round(chance.uniform(0.4, 1.2), 2)
    return replace(shape, clients=clients, think_s=think, turns=chance.choice([3, 5]) if kind == "sessions" else 1)


def _faults(calm: Plan, chance: random.Random) -> tuple[tuple[Fault, float], ...]:
    number = 0 if chance.random() < HEALTHY else 2 if chance.random() < TWO else 1
    chosen: list[Fault] = []
    plan = calm
    for _ in range(number):
        fit = [f for f in FAULTS if f not in chosen and f.fits(plan)]
        chosen.append(chance.choice(fit))
    # Settings come last: they must hold what the tenants of the other faults ask for.
    chosen.sort(key=lambda fault: fault.setting)
    return tuple((fault, chance.choice(STRENGTHS)) for fault in chosen)


def of_faults(seed: int, system: str, faults: Sequence[tuple[str, float]]) -> Drawn:
    """A seed's calm with faults that are named, to try the lab itself."""
    calm = draw(seed, system).calm
    return Drawn(seed, system, calm, tuple((BY_NAME[name], strength) for name, strength in faults))
