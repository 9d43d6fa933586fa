"""Changes of settings and the loads under which they are made, drawn from a seed. Nothing here does I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..engines import FlagValue
from ..traffic import Tenant

WIDE: Mapping[str, FlagValue] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "num_gpu_blocks_override": 1024,
    "enable_prefix_caching": True,
}
RAMP_S = 15.0
HELD_OUT = 3
"""Each third change is not looked at while the twin is tuned."""


@dataclass(frozen=True)
class TwinPlay:
    """flags: of the engine at first; changed: what it is restarted with. kv_events: block lookups are recorded."""

    name: str
    flags: Mapping[str, FlagValue]
    changed: Mapping[str, FlagValue]
    load: tuple[Tenant, ...]
    kv_events: bool = False

    @property
    def settings(self) -> list[str]:
        """The change as `kvitals whatif --set` takes it."""
        return [f"{name.replace('_', '-')}={_text(value)}" for name, value in self.changed.items()]


def _text(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def drawn(seed: int, number: int) -> Iterator[tuple[int, TwinPlay]]:
    """So many changes, each with a number that its seed gives: the kinds in turn, everything else at random."""
    for place in range(number):
        draw = random.Random(f"twin/{seed}/{place}")
        yield 1000 * seed + place, _KINDS[place % len(_KINDS)](draw)


def _load(draw: random.Random, *, most: int = 14) -> tuple[Tenant, ...]:
    """A load that grows over its first seconds, so that steps of several sizes are seen."""
    shape = {
        "prefix": 32 * draw.randrange(4, 13),
        "prefixes": draw.choice((1, 2, 4)),
        "question": draw.randrange(16, 97),
        "answer": draw.randrange(16, 65),
        "ramp_s": RAMP_S,
    }
    if draw.random() < 0.3:
        return (Tenant("open", rate=draw.uniform(2.0, 5.0), **shape),)
    clients = draw.randrange(6, most + 1)
    return (Tenant("closed", clients=clients, think_s=draw.choice((0.0, 0.2)), **shape),)


def _slots_up(draw: random.Random) -> TwinPlay:
    slots = draw.choice((3, 4, 6))
    return TwinPlay("slots_up", {**WIDE, "max_num_seqs": slots}, {"max_num_seqs": slots * 2}, _load(draw))


def _slots_down(draw: random.Random) -> TwinPlay:
    return TwinPlay("slots_down", WIDE, {"max_num_seqs": draw.choice((3, 4, 6))}, _load(draw))


def _budget_down(draw: random.Random) -> TwinPlay:
    return TwinPlay("budget_down", WIDE, {"max_num_batched_tokens": draw.choice((64, 128, 256))}, _load(draw))


def _budget_up(draw: random.Random) -> TwinPlay:
    low = draw.choice((64, 128))
    return TwinPlay("budget_up", {**WIDE, "max_num_batched_tokens": low}, {"max_num_batched_tokens": 2048}, _load(draw))


def _caching_off(draw: random.Random) -> TwinPlay:
    return TwinPlay("caching_off", WIDE, {"enable_prefix_caching": False}, _load(draw, most=8))


def _blocks_up(draw: random.Random) -> TwinPlay:
    blocks = draw.choice((128, 160, 192))
    flags = {**WIDE, "num_gpu_blocks_override": blocks, "max_num_seqs": 8}
    return TwinPlay("blocks_up", flags, {"num_gpu_blocks_override": 3 * blocks}, _reused(draw), kv_events=True)


def _blocks_down(draw: random.Random) -> TwinPlay:
    flags = {**WIDE, "num_gpu_blocks_override": 512, "max_num_seqs": 8}
    changed = {"num_gpu_blocks_override": draw.choice((128, 160, 192))}
    return TwinPlay("blocks_down", flags, changed, _reused(draw), kv_events=True)


def _two_at_once(draw: random.Random) -> TwinPlay:
    changed = {"max_num_seqs": draw.choice((4, 6)), "max_num_batched_tokens": draw.choice((128, 256))}
    return TwinPlay("two_at_once", WIDE, changed, _load(draw))


def _reused(draw: random.Random) -> tuple[Tenant, ...]:
    """System prompts that a small pool does not hold together."""
    return (
        Tenant(
            "reused",
            clients=draw.randrange(3, 7),
            think_s=0.1,
            prefix=32 * draw.randrange(8, 15),
            prefixes=draw.randrange(12, 20),
            question=32,
            answer=draw.randrange(8, 25),
            ramp_s=RAMP_S,
        ),
    )


_KINDS = (_slots_up, _slots_down, _budget_down, _blocks_up, _caching_off, _two_at_once, _budget_up, _blocks_down)
