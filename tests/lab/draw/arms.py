"""The plays of one drawn incident: without each fault, with more of what may bind, with the verdict's first lever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvitals.rules.finding import Finding

from ..engines import FlagValue
from ..incidents.incident import Act
from .faults import FAULTS, MEMORY
from .grammar import Drawn
from .plan import Plan

MORE = 4
SLOTS = {"vllm": "max_num_seqs", "pd": "max_num_seqs", "sglang": "max_running_requests"}
BLOCKS = {"vllm": "num_gpu_blocks_override", "pd": "num_gpu_blocks_override", "sglang": "max_total_tokens"}
CODES: Mapping[str, tuple[str, ...]] = {
    **{f"without {fault.name}": fault.codes for fault in FAULTS},
    f"{MORE} times the slots": ("SCH01", "PDX03"),
    f"{MORE} times the blocks": MEMORY,
}
"""By the name of an arm: the causes that it is evidence for."""
USUAL = {"max_num_seqs": 16, "num_gpu_blocks_override": 1024, "max_running_requests": 16, "max_total_tokens": 4096}

SAME_AS_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "tenant-rate-limit": ("flood", "long prompts", "long answers", "many prefixes"),
    "batch-pool": ("flood", "long prompts", "long answers", "many prefixes"),
    "admission-control": ("flood", "long prompts", "long answers"),
    "per-tenant-cache-quota": ("many prefixes",),
    "long-prompt-pool": ("long prompts",),
    "input-limit": ("long prompts",),
    "prompt-trimming": ("long prompts",),
    "output-limit": ("long answers",),
    "stable-prompt-head": ("unique heads",),
    "hot-share-cap": ("uneven routing",),
    "cache-aware-gateway": ("uneven routing",),
    "host-headroom": ("neighbours",),
    "pd-ratio": ("few slots",),
}
"""Levers outside the engine: what pulling them does here is to take these faults away."""
AROUND = ("health-aware-fallback", "circuit-breaker")
"""Levers that send requests around the engine of the finding."""


@dataclass(frozen=True)
class Play:
    """One arm before it is played."""

    name: str
    kind: Literal["fault", "limit", "calm", "lever"]
    before: Plan
    plan: Plan

    @property
    def recovers(self) -> bool:
        """Whether it restarts an engine, whose clients are to be asked once it is back: loading a model takes longer
        than the incident, and what a restart costs meanwhile is its stated risk."""
        return self.kind == "lever" and any(act.do == "restart" for act in self.plan.acts)


def plays(drawn: Drawn) -> list[Play]:
    """Without each fault; without all of them; with more of what demand may be bound by."""
    found = [
        Play(f"without {fault.name}", "fault", drawn.before(fault.name), drawn.plan(fault.name))
        for fault, _ in drawn.faults
    ]
    if len(found) > 1:
        found.append(Play("calm", "calm", drawn.calm, drawn.calm))
    if any(fault.demand for fault, _ in drawn.faults):
        found += [more(drawn, "slots", SLOTS), more(drawn, "blocks", BLOCKS)]
    return found


def more(drawn: Drawn, name: str, flags: Mapping[str, str]) -> Play:
    """Four times the slots or the blocks of every engine."""
    plan = drawn.plan()
    flag = flags[plan.system]
    now = int(plan.flags.get(flag) or USUAL[flag])
    changed = {flag: now * MORE}
    if flag == "max_num_seqs":  # vLLM wants at least as many tokens in a step
        budget = int(plan.flags.get("max_num_batched_tokens") or 0)
        changed |= {"max_num_batched_tokens": max(budget, now * MORE)} if budget else {}
    wider = plan.with_flags(**changed)
    for engine, own in plan.apart.items():
        if flag in own:
            wider = wider.with_flags_apart(engine, **{flag: int(own[flag] or 1) * MORE})
    return Play(f"{MORE} times the {name}", "limit", drawn.before().with_flags(**changed), wider)


def lever_play(drawn: Drawn, finding: Finding, played: Sequence[str]) -> Play | str:
    """The play with the first lever of a finding; the name of an arm that is the same; or, in brackets, why none is."""
    if not finding.levers:
        return "(no lever)"
    lever = finding.levers[0]
    for fault in SAME_AS_WITHOUT.get(lever.lever, ()):
        if f"without {fault}" in played:
            return f"without {fault}"
    plan = _pulled(drawn.plan(), finding)
    if plan is None:
        return "(the lab cannot pull it)"
    return Play(f"lever {lever.lever}", "lever", drawn.before(), plan)


def _pulled(plan: Plan, finding: Finding) -> Plan | None:
    lever, engine = finding.levers[0], finding.entity.labels.get("engine", finding.entity.title)
    if lever.lever == "restart" and engine in plan.engines:
        return replace(plan, acts=(*plan.acts, Act(do="restart", engine=engine, after_s=1.0)))
    if lever.lever in AROUND and engine in plan.engines and len(plan.engines) > 1:
        return replace(plan, shares=tuple(0 if name == engine else 1 for name in plan.engines))
    setting = lever.setting
    if setting is None or not setting.flag.startswith("--") or plan.system not in ("vllm", "sglang"):
        return None
    flags = flags_of(setting.flag, setting.to)
    return plan.with_flags(**flags) if flags else None


def flags_of(flag: str, to: str) -> dict[str, FlagValue]:
    """A lever's setting as an engine's flag; empty where it is no single value.

    >>> flags_of("--max-num-seqs", "16")
    {'max_num_seqs': 16}
    >>> flags_of("--enable-prefix-caching", "on")
    {'enable_prefix_caching': True}
    """
    name = flag.split()[0].removeprefix("--").replace("-", "_")
    if to in ("on", "off", ""):
        return {name: to != "off"}
    digits = to.replace(",", "")
    return {name: int(digits)} if digits.isdigit() else {}
