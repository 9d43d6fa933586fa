"""What fits: number formats, the KV cache of a token and a sequence, weights, activations, overhead and adapters
on each GPU, and the room that is left for KV."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvitals.rules.catalogue import Gpu, Model


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


def kv_per_token(model: Model, element: float) -> float:
    """Bytes that a token adds while all layers grow, with elements of so many bytes.

    Two vectors a layer and KV head, or one latent vector with MLA; an indexer's keys keep their own format.
    """
    return (model.full + model.sliding) * kv_layer_token(model, element) + model.layers * model.indexer


def kv_layer_token(model: Model, element: float) -> float:
    """Bytes of one token in one layer, without an indexer."""
    return (model.latent or 2 * model.kv_heads * model.head_dim) * element


def kv_of_sequence(model: Model, context: float, element: float) -> float:
    """Bytes of a sequence of `context` tokens. Layers with a window stop growing at it."""
    held = model.full * context + model.sliding * (min(context, model.window) if model.window else context)
    return held * kv_layer_token(model, element) + context * model.layers * model.indexer


def kv_on_gpu(model: Model, context: float, element: float, tensor: int, pipeline: int = 1) -> float:
    """Bytes of a sequence on the GPU that holds most of it.

    Tensor parallelism divides KV heads, down to one on each GPU; the latent vector of MLA, and an indexer's keys, are
    on every one of them. Pipeline parallelism divides layers.
    """
    share = math.ceil(model.layers / pipeline) / model.layers
    indexer = context * model.layers * model.indexer
    heads = 1.0 if model.latent else math.ceil(model.kv_heads / tensor) / model.kv_heads
    return share * ((kv_of_sequence(model, context, element) - indexer) * heads + indexer)


ALIGNMENT = 0.05
"""Tensors are padded: 3 to 8 % more than parameters times bytes."""
ACTIVATIONS = 0.2
"""Of the 16-bit weights that a token passes: a rule of thumb. Engines measure theirs when they start."""
OVERHEAD = 0.1
"""Of the GPU's memory, for the runtime and what else is there; vLLM leaves as much with its default of 0.9."""


@dataclass(frozen=True)
class Precisions:
    """Bytes an element, of weights and of the KV cache."""

    weights: float
    kv: float


@dataclass(frozen=True)
class Shares:
    """What is reckoned on top, as shares; see the constants. activations: bytes of the whole model, None: the rule."""

    alignment: float = ALIGNMENT
    overhead: float = OVERHEAD
    activations: float | None = None


@dataclass(frozen=True)
class AdapterMemory:
    """LoRA adapters that are on the GPUs at a time. bytes: of one."""

    most: int = 0
    bytes: float = 0.0

    @property
    def total(self) -> float:
        return self.most * self.bytes


@dataclass(frozen=True)
class GpuLayout:
    """How an instance is spread: GPUs that share each layer, times stages of layers."""

    tensor: int
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"TP{self.tensor}" + (f" x PP{self.pipeline}" if self.pipeline > 1 else "")


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes on each GPU of an instance. room: left for KV; below 0 it does not fit."""

    capacity: float
    weights: float
    activations: float
    overhead: float
    adapters: float

    @property
    def room(self) -> float:
        return self.capacity - self.weights - self.activations - self.overhead - self.adapters


def weights(model: Model, precisions: Precisions, shares: Shares) -> float:
    """Bytes of the weights as they lie in memory."""
    return model.parameters * precisions.weights * (1 + shares.alignment)


def activations(model: Model, shares: Shares) -> float:
    """Bytes of what is computed in between. They are of 16 bits whatever the weights are."""
    return ACTIVATIONS * model.active * 2 if shares.activations is None else shares.activations


def budget(
    model: Model, gpu: Gpu, layout: GpuLayout, precisions: Precisions, shares: Shares, adapters: AdapterMemory
) -> MemoryBudget:
    """What each GPU holds. The largest pipeline stage counts, by its share of the layers."""
    stage = math.ceil(model.layers / layout.pipeline) / model.layers / layout.tensor
    return MemoryBudget(
        capacity=gpu.hbm,
        weights=weights(model, precisions, shares) * stage,
        activations=activations(model, shares) * stage,
        overhead=gpu.hbm * shares.overhead,
        adapters=adapters.total * stage,
    )


def sequences(model: Model, room: float, context: float, element: float, layout: GpuLayout) -> int:
    """How many sequences of that context fit into the room on each GPU."""
    each = kv_on_gpu(model, context, element, layout.tensor, layout.pipeline)
    return max(0, math.floor(room / each)) if each else 0


def adapter_bytes(model: Model, rank: int, element: float = 2.0) -> float:
    """One LoRA adapter on the attention's four projections: rank x (in + out) of each. Needs the heads' dimensions."""
    queries, keys = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    widths = 2 * (model.hidden + queries) + 2 * (model.hidden + keys)
    return float(model.layers * rank * widths * element)
