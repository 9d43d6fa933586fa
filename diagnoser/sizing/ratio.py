"""Prefill against decode: how many of each when they are apart, and whether moving KV is quicker than computing it."""

from __future__ import annotations

from dataclasses import dataclass

NETWORK = 50e9
"""Bytes/s of one 400 Gb/s link (InfiniBand NDR or RoCE)."""
NVME = 7e9


def prefill_to_decode(prompt: float, output: float, prefill_rate: float, decode_rate: float) -> float:
    """GPUs of prefill for each of decode, by mean lengths and by what one GPU does of each a second, in tokens.

    The rate of requests is in both and falls out.
    """
    return (prompt / prefill_rate) / (output / decode_rate)


def whole(ratio: float, most: int = 8) -> tuple[int, int]:
    """The nearest ratio of whole numbers up to `most` that does not give prefill less."""
    pairs = [(p, d) for p in range(1, most + 1) for d in range(1, most + 1) if p / d >= ratio * (1 - 1e-9)]
    if not pairs:
        return most, 1
    return min(pairs, key=lambda one: (one[0] / one[1], one[0]))


@dataclass(frozen=True)
class Move:
    """KV that is moved rather than computed again, both in seconds."""

    bytes: float
    moving: float
    computing: float

    @property
    def pays(self) -> bool:
        return self.moving < self.computing


def move(kv_bytes: float, bandwidth: float, computing: float) -> Move:
    """`bandwidth`: effective, bytes/s. `computing`: seconds that the same tokens take to prefill."""
    return Move(kv_bytes, kv_bytes / bandwidth, computing)
