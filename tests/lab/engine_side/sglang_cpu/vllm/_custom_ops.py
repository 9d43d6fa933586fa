"""Rotary position embedding in plain torch, with the name, arguments and in-place effect of vLLM's compiled one."""

from __future__ import annotations

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate query and key in place. `cos_sin_cache` is [position, cosines then sines]."""
    cosines, sines = cos_sin_cache.index_select(0, positions.flatten()).chunk(2, dim=-1)
    rotated = 2 * cosines.shape[-1]
    for tensor in (query, key):
        if tensor is None:
            continue
        heads = tensor.view(positions.numel(), -1, head_size)[..., :rotated]
        cos, sin = (part.unsqueeze(1).to(heads.dtype) for part in (cosines, sines))
        first, second = heads.chunk(2, dim=-1) if is_neox else (heads[..., 0::2], heads[..., 1::2])
        turned = first * cos - second * sin, second * cos + first * sin
        first.copy_(turned[0])
        second.copy_(turned[1])
