"""What fits: weights, activations, overhead and adapters on each GPU, and the room that is left for KV."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvitals.diagnoser.sizing import kv
from kvitals.rules.catalogue import Gpu, Model

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
    each = kv.sequence_on_gpu(model, context, element, layout.tensor, layout.pipeline)
    return max(0, math.floor(room / each)) if each else 0


def adapter_bytes(model: Model, rank: int, element: float = 2.0) -> float:
    """One LoRA adapter on the attention's four projections: rank x (in + out) of each. Needs the heads' dimensions."""
    queries, keys = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    widths = 2 * (model.hidden + queries) + 2 * (model.hidden + keys)
    return float(model.layers * rank * widths * element)
