"""Bounds in time: a prefill by arithmetic, a step of decoding by what it has to read, and what GPUs tell one another.

These are bounds, not estimates: nothing runs at all of a GPU's peak. `PeakShares` takes them down to what was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvitals.diagnoser.sizing.memory import GpuLayout, Precisions, kv_on_gpu
from kvitals.rules.catalogue import Gpu, Model

REDUCES = 2
"""All-reduces a layer under tensor parallelism, after attention and after the feed-forward part."""
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class PeakShares:
    """Of the peaks that is reached, of arithmetic and of memory; 1: the bound."""

    compute: float = 1.0
    memory: float = 1.0


@dataclass(frozen=True)
class Machine:
    """One instance of a model. flops: the dense peak of one GPU in the weights' format."""

    model: Model
    gpu: Gpu
    layout: GpuLayout
    precisions: Precisions
    flops: float
    reached: PeakShares = field(default_factory=PeakShares)


def ridge(flops: float, bandwidth: float) -> float:
    """FLOP for each byte read, where arithmetic and memory take equally long."""
    return flops / bandwidth


def prefill_seconds(on: Machine, tokens: float, cached: float = 0.0) -> float:
    """To compute a prompt of `tokens`, the first `cached` of which are there, alone: at least so long."""
    new = tokens - cached
    work = 2 * on.model.active * new + attention_flops(on.model, tokens, cached)
    peak = on.layout.gpus * on.flops * on.reached.compute
    return work / peak + all_reduce_seconds(on, new)


def attention_flops(model: Model, tokens: float, cached: float) -> float:
    """Of scores and of values, each token looking at those before it. 0 for MLA, whose heads the catalogue has not."""
    width = model.query_heads * model.head_dim
    full = 2 * width * (tokens**2 - cached**2)
    narrow = 4 * width * (tokens - cached) * min(tokens, model.window) if model.window else full
    return model.full * full + model.sliding * min(narrow, full)


def step_seconds(on: Machine, batch: float, context: float) -> float:
    """A step that makes a token for each of `batch` sequences of `context` tokens: at least so long."""
    stages = on.layout.pipeline  # each has a part of the batch at a time, and a token passes them one after the other
    part = max(batch / stages, 1.0)
    cache = part * kv_on_gpu(on.model, context, on.precisions.kv, on.layout.tensor, stages)
    memory = (weights_read(on, part) / on.layout.gpus + cache) / (on.gpu.bandwidth * on.reached.memory)
    compute = 2 * on.model.active * part / (on.layout.gpus * on.flops * on.reached.compute)
    return stages * max(memory, compute) + all_reduce_seconds(on, part)


def weights_read(on: Machine, batch: float) -> float:
    """Bytes of weights that a step reads. Of experts those that any sequence uses: each is used with a chance of
    active / all, which is right for one sequence and for many, and close between."""
    unused = 1 - min(on.model.active / on.model.parameters, 1.0)
    return float(on.model.parameters * on.precisions.weights * (1 - unused ** max(batch, 1.0)))


def all_reduce_seconds(on: Machine, tokens: float) -> float:
    """Sending what tensor parallelism does for so many tokens, around a ring, without what a message takes to start."""
    parts = on.layout.tensor
    if parts == 1:
        return 0.0
    sent = 2 * (parts - 1) / parts * tokens * on.model.hidden * ACTIVATION_BYTES
    return REDUCES * on.model.layers * sent / on.gpu.scale_up


def ceiling(on: Machine) -> float:
    """Tokens a second of one sequence alone: bandwidth over the weights that a step reads."""
    return on.gpu.bandwidth * on.layout.gpus * on.reached.memory / weights_read(on, 1)


def bubble(stages: int, batches: int) -> float:
    """Share of time in which pipeline stages wait for one another, with so many batches on their way."""
    return (stages - 1) / (batches + stages - 1)


def power_of_two_below(value: float) -> int:
    """The largest power of two up to a value, at least 1."""
    return int(2 ** math.floor(math.log2(max(value, 1.0))))
