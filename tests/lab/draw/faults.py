"""What may go wrong in a drawn incident: how a plan changes, and which codes name it.

A fault's strength is 0 to 1: at 0.2 clients hardly notice it, at 1 nobody overlooks it. `codes` are those of which the
first cause may be one. Where a fault is demand, the limit that binds is a cause too, which the arms of `arms.py` find.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..incidents.incident import Act
from ..traffic import Tenant
from .plan import INCIDENT_S, Plan

Change = Callable[[Plan, float, random.Random], Plan]
MEMORY = ("KVC01", "KVC03", "KVC04", "KVC05", "KVC06", "KVC07", "KVC08", "KVC09", "KVC14", "KVC17", "KVC23")
SHARES = ("TEN02", "TEN03", "TEN04", "TEN05")
PREFILL = ("SCH05", "SCH08", "SCH09", "LAT08", "SCH18")
BLOCK = 32


@dataclass(frozen=True)
class Fault:
    """apply: the plan with the fault. fits: whether a plan can have it. setting: engines have it from their start, so
    the calm before has it too. demand: the limit that binds is a cause as well."""

    name: str
    codes: tuple[str, ...]
    apply: Change
    fits: Callable[[Plan], bool]
    setting: bool = False
    demand: bool = False


def _vllm(plan: Plan) -> bool:
    return plan.system == "vllm"


def _replicas(plan: Plan) -> bool:
    return plan.system == "vllm" and len(plan.engines) > 1


def _any(plan: Plan) -> bool:
    return True


def _shared(plan: Plan) -> bool:
    """Caching pays here: most of what is asked is a prefix that others ask too."""
    return plan.system == "vllm" and all(t.prefix >= 256 and t.prefix > 3 * t.question for t in plan.tenants)


def _between(low: float, high: float, strength: float) -> int:
    """From `low` at strength 0 to `high` at 1, in equal ratios."""
    return round(low * (high / low) ** strength)


def few_slots(plan: Plan, strength: float, draw: random.Random) -> Plan:
    slots = _between(8, 1, strength)
    if plan.system == "sglang":
        return plan.with_flags(max_running_requests=slots)
    if plan.system == "pd":
        return plan.with_flags_apart("decode", max_num_seqs=slots)
    return plan.with_flags(max_num_seqs=slots)


def few_blocks(plan: Plan, strength: float, draw: random.Random) -> Plan:
    """Never fewer than the longest request needs: vLLM would not start."""
    if plan.system == "sglang":
        return plan.with_flags(max_total_tokens=max(_between(4096, 1024, strength), plan.longest + 64))
    least = -(-plan.longest // BLOCK) + 2
    blocks = max(_between(300, 40, strength), least)
    return plan.with_flags(num_gpu_blocks_override=blocks, max_model_len=min(2048, (blocks - 1) * BLOCK))


def caching_off(plan: Plan, strength: float, draw: random.Random) -> Plan:
    return plan.with_flags(enable_prefix_caching=False)


def small_budget(plan: Plan, strength: float, draw: random.Random) -> Plan:
    """vLLM wants at least as many tokens in a step as there are slots."""
    budget = max(_between(256, 32, strength), int(plan.flags.get("max_num_seqs") or 16))
    return plan.with_flags(max_num_batched_tokens=budget)


def flood(plan: Plan, strength: float, draw: random.Random) -> Plan:
    guest = Tenant("guest", clients=_between(2, 40, strength), prefix=128, answer=draw.choice([24, 48, 80]))
    return plan.with_tenants(guest)


def long_prompts(plan: Plan, strength: float, draw: random.Random) -> Plan:
    reports = Tenant("reports", clients=_between(1, 5, strength), question=draw.choice([800, 1300, 1700]), answer=4)
    return plan.with_tenants(replace(reports, think_s=1.0 - 0.9 * strength))


def long_answers(plan: Plan, strength: float, draw: random.Random) -> Plan:
    return plan.with_tenants(Tenant("writers", clients=_between(2, 24, strength), answer=draw.choice([240, 400])))


def unique_heads(plan: Plan, strength: float, draw: random.Random) -> Plan:
    return replace(plan, tenants=tuple(replace(t, salt=BLOCK) for t in plan.tenants))


def many_prefixes(plan: Plan, strength: float, draw: random.Random) -> Plan:
    apps = Tenant("apps", clients=4, think_s=0.1, prefix=448, prefixes=_between(6, 40, strength), question=16, answer=8)
    return plan.with_tenants(apps)


def few_adapters(plan: Plan, strength: float, draw: random.Random) -> Plan:
    tuned = Tenant("tuned", clients=_between(2, 9, strength), question=64, answer=32, adapters=_between(2, 6, strength))
    flags = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1, "max_cpu_loras": 2}
    return replace(plan.with_flags(**flags).with_tenants(tuned), adapters=8)


def uneven(plan: Plan, strength: float, draw: random.Random) -> Plan:
    others = [1] * (len(plan.engines) - 1)
    return replace(plan, shares=(_between(2, 16, strength), *others))


def slow_replica(plan: Plan, strength: float, draw: random.Random) -> Plan:
    """Its processes are stopped for a share of each half second."""
    act = Act(do="pauses", engine=draw.choice(plan.engines), share=0.2 + 0.7 * strength)
    return replace(plan, acts=(*plan.acts, act))


def wedged(plan: Plan, strength: float, draw: random.Random) -> Plan:
    act = Act(do="stop_core", engine=draw.choice(plan.engines), after_s=INCIDENT_S / 3 * (1 - strength))
    return replace(plan, acts=(*plan.acts, act))


def dead(plan: Plan, strength: float, draw: random.Random) -> Plan:
    act = Act(do="kill", engine=draw.choice(plan.engines), after_s=INCIDENT_S / 3 * (1 - strength))
    return replace(plan, acts=(*plan.acts, act))


def neighbours(plan: Plan, strength: float, draw: random.Random) -> Plan:
    """Processes of others that compute all the time, each in a scheduling group of its own."""
    return replace(plan, acts=(*plan.acts, Act(do="neighbours", number=_between(1, 12, strength))))


def hangs_up(plan: Plan, strength: float, draw: random.Random) -> Plan:
    impatient = Tenant("impatient", rate=1.0 + 4.0 * strength, question=480, answer=16)
    return replace(plan.with_tenants(impatient), pair=replace(plan.pair, lease_s=8, hangs_up="impatient"))


def slow_hand_over(plan: Plan, strength: float, draw: random.Random) -> Plan:
    return replace(plan, pair=replace(plan.pair, hand_over_s=0.2 + 3.0 * strength))


def _pair(plan: Plan) -> bool:
    return plan.system == "pd"


def _cached_by_few(plan: Plan) -> bool:
    return plan.system == "vllm" and int(plan.flags.get("num_gpu_blocks_override") or 1024) <= 256


FAULTS = (
    Fault("few slots", ("SCH01", "PDX03"), few_slots, _any, setting=True),
    Fault("few blocks", MEMORY, few_blocks, lambda plan: plan.system in ("vllm", "sglang"), setting=True),
    Fault("caching off", ("PFX02",), caching_off, _shared, setting=True),
    Fault("small budget", ("SCH05", "SCH08"), small_budget, _vllm, setting=True),
    Fault("flood", SHARES, flood, _any, demand=True),
    Fault("long prompts", (*PREFILL, *SHARES), long_prompts, _any, demand=True),
    Fault("long answers", ("SCH04", *SHARES), long_answers, _any, demand=True),
    Fault("unique heads", ("PFX10", "PFX11", "TEN08"), unique_heads, _shared),
    Fault("many prefixes", MEMORY, many_prefixes, _cached_by_few, demand=True),
    Fault("few adapters", ("LOR01",), few_adapters, lambda plan: plan.system == "vllm" and not plan.adapters),
    Fault("uneven routing", ("PFX05", "SCH13"), uneven, _replicas),
    Fault("slow replica", ("ENG10", "ENG01", "ENG13"), slow_replica, _replicas),
    Fault("wedged", ("ENG01", "ENG02", "ENG12", "ENG13"), wedged, _vllm),
    Fault("dead", ("TEL01",), dead, _vllm),
    Fault("neighbours", ("ENG11", "SCH15", "GPU13"), neighbours, _any),
    Fault("hangs up", ("PDX07",), hangs_up, _pair),
    Fault("slow hand-over", ("PDX09", "PDX03"), slow_hand_over, _pair),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
