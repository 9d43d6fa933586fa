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
        Precision("mxfp4", 0.5 + 1 / 32, 4),
        Precision("nvfp4", 0.5 + 1 / 16, 4),
        Precision("fp8_ds_mla", 656 / 576, 8),
    )
}
"""int4 is weight-only (AWQ, GPTQ). mxfp4 has a scale of one byte for each 32 elements, nvfp4 for each 16. fp8_ds_mla is
a KV format of DeepSeek's sparse attention: 512 bytes of FP8, 16 of scales and 128 of 16-bit rope for 576 elements."""
_SAME = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "auto": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
WEIGHTS = tuple(name for name in PRECISIONS if name != "fp8_ds_mla")
KV = ("bf16", "fp8", "nvfp4", "fp8_ds_mla")
MLA_LATENT = 576
"""Elements of the latent vector that fp8_ds_mla is laid out for."""


def precision(name: str) -> Precision:
    """The format of that name. Raises PrecisionError."""
    found = PRECISIONS.get(_SAME.get(name.lower(), name.lower()))
    if found is None:
        raise PrecisionError(f"{name} is not a known format; choose one of {', '.join(PRECISIONS)}")
    return found


def kv_precision(model: Model, name: str) -> Precision:
    """The KV format that an engine uses for a model where it is asked for `name`. With sparse attention over a latent
    vector fp8 is fp8_ds_mla. Raises PrecisionError where the model has no such format."""
    found = precision(name)
    sparse = bool(model.indexer) and model.latent == MLA_LATENT
    if found.name == "fp8" and sparse:
        return PRECISIONS["fp8_ds_mla"]
    if found.name == "fp8_ds_mla" and not sparse:
        raise PrecisionError(f"fp8_ds_mla needs sparse latent attention, which {model.name} does not have; use fp8")
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
    """Bytes of a sequence of `context` tokens. Layers with a window stop growing at it; recurrent layers hold a
    state of one size."""
    held = model.full * context + model.sliding * (min(context, model.window) if model.window else context)
    return held * kv_layer_token(model, element) + context * model.layers * model.indexer + model.state


def kv_on_gpu(model: Model, context: float, element: float, tensor: int, pipeline: int = 1) -> float:
    """Bytes of a sequence on the GPU that holds most of it.

    Tensor parallelism divides KV heads, down to one on each GPU, and recurrent state; the latent vector of MLA, and an
    indexer's keys, are on every one of them. Pipeline parallelism divides layers.
    """
    share = math.ceil(model.layers / pipeline) / model.layers
    indexer = context * model.layers * model.indexer
    heads = 1.0 if model.latent else math.ceil(model.kv_heads / tensor) / model.kv_heads
    grows = kv_of_sequence(model, context, element) - indexer - model.state
    return share * (grows * heads + indexer + model.state / tensor)


@dataclass(frozen=True)
class Precisions:
    """Bytes an element, of weights and of the KV cache."""

    weights: float
    kv: float


@dataclass(frozen=True)
class Shares:
    """What is there beside weights and KV. overhead: share of a GPU's memory that the engine may not use, 0 for a bound
    of every setting. activations: bytes of the whole model, as an engine reports them; None for what every engine needs
    at least, which is nothing."""

    overhead: float = 0.0
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
    """How an instance is spread: GPUs that share each layer, times stages of layers, times replicas of attention.

    data: replicas of all but the routed experts, each with sequences of its own (data-parallel attention). Routed
    experts are spread over all GPUs of a stage (expert parallelism).
    """

    tensor: int
    pipeline: int = 1
    data: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        stages = f" x PP{self.pipeline}" if self.pipeline > 1 else ""
        return f"TP{self.tensor}{stages}" + (f" x DP{self.data} with EP{self.tensor * self.data}" * (self.data > 1))


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


def weights(model: Model, precisions: Precisions) -> float:
    """Bytes that the weights take at least: of an MXFP4 model only the experts are in 4 bits."""
    if precisions.weights == PRECISIONS["mxfp4"].bytes and model.routed:
        return model.routed * precisions.weights + (model.parameters - model.routed) * 2.0
    return model.parameters * precisions.weights


def weights_on_gpu(model: Model, layout: GpuLayout, precisions: Precisions) -> float:
    """Bytes on the GPU with the most of them. Replicas of attention share the routed experts."""
    total = weights(model, precisions)
    routed = model.routed * precisions.weights
    stage = math.ceil(model.layers / layout.pipeline) / model.layers / layout.tensor
    return ((total - routed) + routed / layout.data) * stage


def budget(
    model: Model, gpu: Gpu, layout: GpuLayout, precisions: Precisions, shares: Shares, adapters: AdapterMemory
) -> MemoryBudget:
    """What each GPU holds at least. The largest pipeline stage counts, by its share of the layers."""
    stage = math.ceil(model.layers / layout.pipeline) / model.layers / layout.tensor
    return MemoryBudget(
        capacity=gpu.hbm,
        weights=weights_on_gpu(model, layout, precisions),
        activations=(shares.activations or 0.0) * stage,
        overhead=gpu.hbm * shares.overhead,
        adapters=adapters.total * stage,
    )


def sequences(model: Model, room: float, context: float, element: float, layout: GpuLayout) -> int:
    """How many sequences of that context fit into the room on each GPU, in all replicas of attention together."""
    each = kv_on_gpu(model, context, element, layout.tensor, layout.pipeline)
    return max(0, math.floor(room / each)) * layout.data if each else 0


def adapter_bytes(model: Model, rank: int, element: float = 2.0) -> float:
    """One LoRA adapter on the attention's four projections: rank x (in + out) of each. Needs the heads' dimensions."""
    queries, keys = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    widths = 2 * (model.hidden + queries) + 2 * (model.hidden + keys)
    return float(model.layers * rank * widths * element)
