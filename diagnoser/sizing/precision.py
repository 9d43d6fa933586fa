"""Number formats of weights and of the KV cache: what they take, and what a GPU computes with."""

from __future__ import annotations

from dataclasses import dataclass

from kvitals.rules.catalogue import Gpu


class PrecisionError(ValueError):
    """No such format; the message says which there are."""


@dataclass(frozen=True)
class Precision:
    """bytes: an element takes, block scales included where the format has them. bits: of its arithmetic, where a GPU
    has such units; else 16, as kernels unpack to that."""

    name: str
    bytes: float
    bits: int


PRECISIONS = {
    one.name: one
    for one in (
        Precision("bf16", 2.0, 16),
        Precision("fp8", 1.0, 8),
        Precision("int8", 1.0, 8),
        Precision("int4", 0.5, 16),
        Precision("nvfp4", 0.5 + 1 / 16, 4),
    )
}
"""int4 is weight-only (AWQ, GPTQ). nvfp4 has a scale of one byte for each 16 elements."""
_SAME = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "auto": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
WEIGHTS = tuple(PRECISIONS)
KV = ("bf16", "fp8", "nvfp4")


def precision(name: str) -> Precision:
    """The format of that name. Raises PrecisionError."""
    found = PRECISIONS.get(_SAME.get(name.lower(), name.lower()))
    if found is None:
        raise PrecisionError(f"{name} is no format known here: one of {', '.join(PRECISIONS)}")
    return found


def flops(gpu: Gpu, weights: Precision) -> float:
    """Dense peak of a GPU with weights of a format, FLOP/s: of units of its width, else of 16 bits."""
    return {4: gpu.flops_4, 8: gpu.flops_8}.get(weights.bits) or gpu.flops_16
