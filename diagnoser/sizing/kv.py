"""How much KV cache a token and a sequence take, in all and on each GPU."""

from __future__ import annotations

import math

from kvitals.rules.catalogue import Model


def per_token(model: Model, element: float) -> float:
    """Bytes that a token adds while all layers grow, with elements of so many bytes.

    Two vectors a layer and KV head, or one latent vector with MLA; an indexer's keys keep their own format.
    """
    return (model.full + model.sliding) * layer_token(model, element) + model.layers * model.indexer


def layer_token(model: Model, element: float) -> float:
    """Bytes of one token in one layer, without an indexer."""
    return (model.latent or 2 * model.kv_heads * model.head_dim) * element


def sequence(model: Model, context: float, element: float) -> float:
    """Bytes of a sequence of `context` tokens. Layers with a window stop growing at it."""
    held = model.full * context + model.sliding * (min(context, model.window) if model.window else context)
    return held * layer_token(model, element) + context * model.layers * model.indexer


def sequence_on_gpu(model: Model, context: float, element: float, tensor: int, pipeline: int = 1) -> float:
    """Bytes of a sequence on the GPU that holds most of it.

    Tensor parallelism divides KV heads, down to one on each GPU; the latent vector of MLA, and an indexer's keys, are
    on every one of them. Pipeline parallelism divides layers.
    """
    share = math.ceil(model.layers / pipeline) / model.layers
    indexer = context * model.layers * model.indexer
    heads = 1.0 if model.latent else math.ceil(model.kv_heads / tensor) / model.kv_heads
    return share * ((sequence(model, context, element) - indexer) * heads + indexer)
