"""The changes that are drawn, with the answer that is right, and the loads under which they are made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..engines import FlagValue
from ..traffic import Tenant

Kind = Literal["helpful", "placebo", "harmful"]
RIGHT: Mapping[Kind, str] = {"helpful": "worked", "placebo": "no effect", "harmful": "worse"}


@dataclass(frozen=True)
class DrawnChange:
    """flags: of the engine at first; changed: what it is restarted with. objective: TTFT p99 in seconds."""

    name: str
    kind: Kind
    flags: Mapping[str, FlagValue]
    changed: Mapping[str, FlagValue]
    load: tuple[Tenant, ...]
    objective: float


def chats(clients: int, *, answer: int = 32) -> tuple[Tenant, ...]:
    """Clients that each wait for their answer, with two system prompts."""
    names = ("alpha", "beta")
    return tuple(Tenant(n, clients=clients, prefix=256, question=32, answer=answer) for n in names)


def reuse(clients: int) -> tuple[Tenant, ...]:
    """Sixteen long system prompts that a small cache cannot hold."""
    return (Tenant("alpha", clients=clients, think_s=0.05, prefix=448, prefixes=16, question=32, answer=8),)


FEW: Mapping[str, FlagValue] = {"max_num_seqs": 2, "num_gpu_blocks_override": 1024}
MANY: Mapping[str, FlagValue] = {"max_num_seqs": 16, "num_gpu_blocks_override": 1024}
SMALL: Mapping[str, FlagValue] = {"max_num_seqs": 8, "num_gpu_blocks_override": 144}
LARGE: Mapping[str, FlagValue] = {"max_num_seqs": 8, "num_gpu_blocks_override": 400}
UNCACHED: Mapping[str, FlagValue] = {**MANY, "enable_prefix_caching": False}

CHANGES = (
    DrawnChange("slots_raised", "helpful", FEW, {"max_num_seqs": 16}, chats(6), 8.0),
    DrawnChange("blocks_raised", "helpful", SMALL, {"num_gpu_blocks_override": 400}, reuse(4), 4.0),
    DrawnChange("caching_on", "helpful", UNCACHED, {"enable_prefix_caching": True}, chats(3, answer=8), 4.0),
    DrawnChange("blocks_in_vain", "placebo", MANY, {"num_gpu_blocks_override": 1500}, chats(3), 4.0),
    DrawnChange("slots_in_vain", "placebo", MANY, {"max_num_seqs": 24}, chats(3), 4.0),
    DrawnChange("only_a_restart", "placebo", LARGE, {}, reuse(4), 4.0),
    DrawnChange("slots_lowered", "harmful", MANY, {"max_num_seqs": 2}, chats(6), 1.5),
    DrawnChange("blocks_lowered", "harmful", LARGE, {"num_gpu_blocks_override": 144}, reuse(4), 1.5),
    DrawnChange("caching_off", "harmful", MANY, {"enable_prefix_caching": False}, chats(3, answer=8), 1.5),
)


def drawn(seed: int, each: int) -> Iterator[tuple[int, DrawnChange]]:
    """So many changes of each kind in random order, with other loads each time; the number is the seed of the load."""
    draw = random.Random(seed)
    kinds = [kind for kind in RIGHT for _ in range(each)]
    draw.shuffle(kinds)
    for number, kind in enumerate(kinds):
        change = draw.choice([one for one in CHANGES if one.kind == kind])
        question = draw.choice((24, 32, 40))
        load = tuple(replace(tenant, question=question) for tenant in change.load)
        yield seed * 1000 + number, replace(change, load=load)
