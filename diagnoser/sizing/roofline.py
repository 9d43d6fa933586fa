"""Bounds in time: a prefill by arithmetic, a step of decoding by what it reads, and what GPUs send to one another.

These are bounds, not estimates: nothing runs at all of a GPU's peak. `PeakShares` takes them down to what was measured.
Arithmetic, memory and links work at the same time, so a step takes the longest of the three and not their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvitals.diagnoser.sizing.memory import GpuLayout, Precisions, kv_on_gpu, weights
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
    peak = on.layout.gpus * on.flops * on.reached.compute
    return max(prefill_flops(on.model, tokens, cached) / peak, link_seconds(on, new))


def prefill_flops(model: Model, tokens: float, cached: float = 0.0) -> float:
    """Of a prompt of `tokens`, the first `cached` of which are there."""
    table = model.vocab * model.hidden  # looked up at the start, and multiplied by for the last token alone
    return 2 * max(model.active - 2 * table, 0.0) * (tokens - cached) + attention_flops(model, tokens, cached)


def attention_flops(model: Model, tokens: float, cached: float) -> float:
    """Of scores and of values, each token looking at those before it. 0 for MLA, whose heads the catalogue has not."""
    width = model.query_heads * model.head_dim
    full = 2 * width * (tokens**2 - cached**2)
    narrow = 4 * width * (tokens - cached) * min(tokens, model.window) if model.window else full
    return model.full * full + model.sliding * min(narrow, full)


@dataclass(frozen=True)
class PrefillBeside:
    """Prefill in the same step as decoding: FLOP of its arithmetic, and its tokens."""

    flops: float = 0.0
    tokens: float = 0.0


def step_seconds(on: Machine, batch: float, context: float, beside: PrefillBeside = PrefillBeside()) -> float:
    """A step that makes a token for each of `batch` sequences of `context` tokens: at least so long.

    Sequences are spread evenly over replicas of attention. Stages have a part of the batch at a time, and a token
    passes them one after the other.
    """
    layout, stages = on.layout, on.layout.pipeline
    part = max(batch / stages / layout.data, 1.0)
    cache = part * kv_on_gpu(on.model, context, on.precisions.kv, layout.tensor, stages)
    memory = (_weights_read_by_gpu(on, part * layout.data) + cache) / (on.gpu.bandwidth * on.reached.memory)
    passed = max(on.model.active - on.model.vocab * on.model.hidden, 0.0)
    work = 2 * passed * part * layout.data + beside.flops / stages
    compute = work / (layout.gpus * on.flops * on.reached.compute)
    return stages * max(memory, compute, link_seconds(on, part + beside.tokens / stages / layout.data))


def experts_used(model: Model, batch: float) -> float:
    """The share of routed experts that a step of `batch` tokens reads: each token takes `used` of `experts`."""
    return float(1 - (1 - model.used / model.experts) ** max(batch, 1.0)) if model.routed else 0.0


def weights_read(on: Machine, batch: float) -> float:
    """Bytes of weights that a step reads: the dense weights without the embedding table, whose rows are looked up, and
    the routed experts that any sequence uses. Where the experts are not known: those of one token, since every step
    reads as much."""
    model = on.model
    total = weights(model, on.precisions) - min(model.vocab * model.hidden, model.parameters) * on.precisions.weights
    if not model.routed:
        return total * min(model.active / model.parameters, 1.0)
    routed = model.routed * on.precisions.weights
    return total - routed + routed * experts_used(model, batch)


def _weights_read_by_gpu(on: Machine, batch: float) -> float:
    """Bytes that one GPU reads in a step of `batch` sequences of all replicas: dense weights are in every replica."""
    model, layout = on.model, on.layout
    routed = model.routed * on.precisions.weights * experts_used(model, batch)
    dense = weights_read(on, batch) - routed
    return (dense + routed / layout.data) / (layout.tensor * layout.pipeline)


def link_seconds(on: Machine, tokens: float) -> float:
    """Sending between GPUs for so many tokens of one replica, without what a message takes to start: all-reduces around
    a ring under tensor parallelism, and tokens to their experts and back under expert parallelism."""
    return all_reduce_seconds(on, tokens) + all_to_all_seconds(on, tokens)


def all_to_all_seconds(on: Machine, tokens: float) -> float:
    """Each token goes to the GPUs of its experts and comes back, once a GPU at most."""
    replicas = on.layout.data
    if replicas == 1 or not on.model.routed:
        return 0.0
    away = min(on.model.used, replicas) * (replicas - 1) / replicas
    sent = REDUCES * tokens * away * on.model.hidden * ACTIVATION_BYTES / on.layout.tensor
    return on.model.layers * sent / on.gpu.scale_up


def all_reduce_seconds(on: Machine, tokens: float) -> float:
    """Sending what tensor parallelism does for so many tokens, around a ring, without what a message takes to start."""
    parts = on.layout.tensor
    if parts == 1:
        return 0.0
    sent = 2 * (parts - 1) / parts * tokens * on.model.hidden * ACTIVATION_BYTES
    return REDUCES * on.model.layers * sent / on.gpu.scale_up


def ceiling(on: Machine) -> float:
    """Tokens a second of one sequence alone: bandwidth over the weights that a step reads. Its token passes pipeline
    stages one after the other."""
    return on.gpu.bandwidth * on.reached.memory / (on.layout.pipeline * _weights_read_by_gpu(on, 1))


def bubble(stages: int, batches: int) -> float:
    """Share of time in which pipeline stages wait for one another, with so many batches on their way."""
    return (stages - 1) / (batches + stages - 1)


def power_of_two_below(value: float) -> int:
    """The largest power of two up to a value, at least 1."""
    return int(2 ** math.floor(math.log2(max(value, 1.0))))
