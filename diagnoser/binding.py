"""What bounds an engine's progress: at each look one constraint, over a time the share of looks that each had.

Nobody waits and no step is full: arrivals are the bound, and the engine has room. Somebody waits: what for? vLLM tells
by reason whether for room (slots or KV blocks) or for something else (deferred); the slot limit tells which kind of
room. The KV gauge alone tells little, since it says what running requests hold and falls as soon as one of them ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from kvitals.diagnoser.steps import Ask
from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES, Constraint
from kvitals.series.types import Bools, Floats, Labels

CONSTRAINTS: tuple[Constraint, ...] = get_args(Constraint)

UNKNOWN: Constraint = "unknown"
MIN_KNOWN = 0.1
"""Of the time; of less it is not said what bound."""
FULL_SLOTS = 0.999
FULL_BUDGET = 0.9
"""Of the tokens that a step may have, on average: steps are as full as prompts of odd lengths let them be."""
FULL_KV, IDLE_KV = 0.9, 0.5
PLATEAU = 0.5
"""Of the looks in which somebody waited, those in which just as many ran: then that many are the slots there are."""
PLATEAU_LOOKS = 6
MIN_LOOKS = 5
MAX_LOOKS = 3600

_BY = ", ".join(SCOPES["engine"])


@dataclass(frozen=True)
class Binding:
    """Shares of time, which add up to 1, of the looks at one engine. room: somebody waited for slots or KV, and it can
    not be told for which. slots: the limit; `slots_from`: where it is known from."""

    entity: Labels
    looks: int
    seconds: float
    shares: Mapping[Constraint, float]
    slots: float | None
    slots_from: Literal["told", "plateau", "unknown"]

    @property
    def known_shares(self) -> dict[Constraint, float]:
        """The same of the time of which it is known what bound the engine; empty where that is too little."""
        return over_known(self.shares)

    @property
    def first(self) -> Constraint:
        """The one that bounds it most of the time."""
        return max(CONSTRAINTS, key=lambda one: self.shares.get(one, 0.0))


def over_known(shares: Mapping[Constraint, float]) -> dict[Constraint, float]:
    """Shares of all time as shares of the known time; empty where less than `MIN_KNOWN` of it is known."""
    known = 1.0 - shares.get(UNKNOWN, 0.0)
    if known < MIN_KNOWN:
        return {}
    return {constraint: share / known for constraint, share in shares.items() if constraint != UNKNOWN}


def bindings(ask: Ask, start: float, end: float, gap: float) -> list[Binding]:
    """What bound each engine from start to end. gap: seconds between rows; there is a look at each of the last ones."""
    count = min(int((end - start) / gap), MAX_LOOKS)
    if count < MIN_LOOKS:
        return []
    first = end - (count - 1) * gap
    looked: dict[Labels, dict[str, Floats]] = {}
    for name, text in _questions(max(3 * gap, 5.0)).items():
        for one in ask(expression(text), first, end, gap):
            rows = looked.setdefault(one.labels.keep(SCOPES["engine"]), {}).setdefault(name, np.full(count, np.nan))
            places = np.rint((one.times - first) / gap).astype(int)
            inside = (places >= 0) & (places < count)
            rows[places[inside]] = one.values[inside]
    return [binding(entity, looked[entity], gap) for entity in sorted(looked, key=str) if "running" in looked[entity]]


def binding(entity: Labels, looks: Mapping[str, Floats], gap: float) -> Binding:
    """What bound one engine. looks: by name as in `_questions`, a value a look, NaN where it is not told."""
    count = len(looks["running"])

    def of(name: str) -> Floats:
        return looks.get(name, np.full(count, np.nan))

    running, waiting, deferred = looks["running"], of("waiting"), np.nan_to_num(of("deferred"))
    room = np.where(np.isfinite(of("capacity")), of("capacity"), np.maximum(waiting - deferred, 0.0))
    budget_used = of("step_tokens") / of("budget")
    up = np.nan_to_num(of("up"), nan=1.0)
    stuck = (np.nan_to_num(running) + np.nan_to_num(waiting) > 0) & (of("steps") == 0) & ~(of("tokens") > 0)
    wants_room = room > 0
    kv_full = of("kv") >= FULL_KV
    slots, known_from = _slots(running, wants_room & ~kv_full, of("slots"))
    shares = _shares(
        {
            "unknown": ~np.isfinite(running) & (up > 0),
            "fault": (up == 0) | stuck,
            "slots": wants_room & (running >= FULL_SLOTS * slots if slots is not None else np.zeros(count, np.bool_)),
            "kv": (of("preemptions") > 0) | (wants_room & kv_full),
            "token_budget": budget_used >= FULL_BUDGET,
            # Below the slots, with steps that have room: blocks are left to wait for, though the gauge is below its
            # top. Where half of them are free it is a slot that fell free since the last step.
            "_slots": wants_room & np.full(count, slots is not None) & (of("kv") < IDLE_KV),
            "_kv": wants_room & np.full(count, slots is not None),
            "room": wants_room,
            "deferral": deferred > 0,
            "arrival": np.ones(count, np.bool_),
        }
    )
    return Binding(entity, count, count * gap, shares, slots, known_from)


def _shares(first_of: Mapping[str, Bools]) -> dict[Constraint, float]:
    """Of each look the first that holds, in order."""
    left = np.ones(len(next(iter(first_of.values()))), np.bool_)
    shares: dict[Constraint, float] = dict.fromkeys(CONSTRAINTS, 0.0)
    for name, holds in first_of.items():
        key: Constraint = next(one for one in CONSTRAINTS if one == name.removeprefix("_"))
        shares[key] += float((left & holds).mean())
        left &= ~holds
    return shares


def _slots(running: Floats, waits: Bools, told: Floats) -> tuple[float | None, Literal["told", "plateau", "unknown"]]:
    """How many requests may run at once: as the configuration has it, else where they stay while some wait."""
    if np.isfinite(told).any():
        return float(told[np.isfinite(told)][-1]), "told"
    while_waiting = running[waits & np.isfinite(running)]
    if len(while_waiting) >= PLATEAU_LOOKS:
        top = float(while_waiting.max())
        if (while_waiting == top).mean() >= PLATEAU:
            return top, "plateau"
    return None, "unknown"


def _questions(window: float) -> dict[str, str]:
    over = f"[{math.ceil(window)}s]"
    count = f"sum by ({_BY}) (rate(kvitals_step_tokens_count{over}))"
    return {
        "up": f"min by ({_BY}) (kvitals_target_up)",
        "running": f"sum by ({_BY}) (kvitals_requests_running)",
        "waiting": f"sum by ({_BY}) (kvitals_requests_waiting)",
        "capacity": f'sum by ({_BY}) (kvitals_requests_waiting_by_reason{{reason="capacity"}})',
        "deferred": f'sum by ({_BY}) (kvitals_requests_waiting_by_reason{{reason="deferred"}})',
        "kv": f"max by ({_BY}) (kvitals_kv_usage_ratio)",
        "preemptions": f"sum by ({_BY}) (rate(kvitals_preemptions_total{over}))",
        "step_tokens": f"sum by ({_BY}) (rate(kvitals_step_tokens_sum{over})) / {count}",
        "steps": f"{count} or sum by ({_BY}) (rate(kvitals_steps_total{over}))",
        "tokens": f"sum by ({_BY}) (rate(kvitals_generation_tokens_total{over}))",
        "slots": f'max by ({_BY}) (kvitals_engine_fact{{fact="slots"}})',
        "budget": f'max by ({_BY}) (kvitals_engine_fact{{fact="token_budget"}})',
    }
