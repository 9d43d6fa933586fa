"""A model's dimensions out of its config.json, as Hugging Face keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvitals.rules.catalogue import Model
from kvitals.series.files import read_regular

MAX_BYTES = 1 << 20
MAX_DIMENSION = 10**7
INDEXER_SCALE_BYTES = 4
"""Beside each FP8 key of a sparse-attention indexer."""
ELSEWISE = ("ssm", "mamba", "opt", "gpt2", "bloom", "falcon", "llama4")
"""Words of model types whose layers are not the ones that parameters are counted by here."""


class ConfigFileError(ValueError):
    """A config.json that tells no dimensions; the message says what is missing."""


def read(path: Path) -> Model:
    """The model that a config.json describes. Raises ConfigFileError."""
    try:
        found = msgspec.json.decode(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise ConfigFileError(f"{path}: cannot be read: {error.strerror}; give the model's config.json") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigFileError(f"{path}: not a config.json: {error}") from error
    if not isinstance(found, dict):
        raise ConfigFileError(f"{path}: not a config.json: it holds no object")
    try:
        return model_of(found, path.parent.name or path.name, f"config.json, {path}")
    except ConfigFileError as error:
        raise ConfigFileError(f"{path}: {error}") from error


def model_of(config: Mapping[str, Any], name: str, source: str) -> Model:
    """The model of a config. Raises ConfigFileError."""
    text = config.get("text_config")
    of = _Dimensions(text if isinstance(text, dict) else config)
    layers, heads, hidden = of.must("num_hidden_layers"), of.must("num_attention_heads"), of.must("hidden_size")
    latent = of.get("kv_lora_rank") + of.get("qk_rope_head_dim") if of.get("kv_lora_rank") else 0
    full, sliding, window = _kinds(of, layers)
    countable = not any(word in str(of.config.get("model_type", "")).lower() for word in ELSEWISE)
    linear = layers - full - sliding
    total, active = _parameters(of, layers, heads, hidden) if countable and not linear else (0.0, 0.0)
    indexer = of.get("index_head_dim")
    return Model(
        name=name,
        attention=("MLA" if latent else "GQA") + ("+DSA" if indexer else "") + ("+SWA" if sliding else ""),
        layers=layers,
        full=full,
        sliding=sliding,
        window=window,
        query_heads=heads,
        kv_heads=0 if latent else of.must("num_key_value_heads", heads),
        head_dim=0 if latent else of.must("head_dim", hidden // heads),
        latent=latent,
        indexer=indexer + INDEXER_SCALE_BYTES if indexer else 0,
        hidden=hidden,
        parameters=total,
        active=active,
        source=source,
        note="linear-attention layers hold a state of fixed size, which is not counted" if linear else "",
    )


class _Dimensions:
    """Whole numbers of a config that someone else wrote."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, name: str, otherwise: int = 0) -> int:
        """A dimension, or `otherwise` where it is not told."""
        value = self.config.get(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DIMENSION:
            raise ConfigFileError(f"{name} is no whole number up to {MAX_DIMENSION}")
        return value

    def first(self, *names: str) -> int:
        """The first of several names for the same that is there."""
        return next((self.get(name) for name in names if self.config.get(name) is not None), 0)

    def must(self, name: str, otherwise: int = 0) -> int:
        """A dimension that can not be 0; `otherwise`: where it is not told."""
        if not (value := self.get(name, otherwise)):
            raise ConfigFileError(f"{name} is missing or 0")
        return value


def _kinds(of: _Dimensions, layers: int) -> tuple[int, int, int]:
    """Layers with full attention, those with a window, and the window."""
    kinds = of.config.get("layer_types")
    window = of.get("sliding_window") if of.config.get("use_sliding_window") is not False else 0
    if isinstance(kinds, list) and kinds:
        sliding = kinds.count("sliding_attention") if window else 0
        linear = sum(1 for kind in kinds if kind in ("linear_attention", "mamba"))
        if sliding + linear > layers:
            raise ConfigFileError(f"layer_types names {len(kinds)} layers, and num_hidden_layers is {layers}")
        return layers - sliding - linear, sliding, window if sliding else 0
    if pattern := of.get("sliding_window_pattern"):
        full = layers // pattern
        return full, layers - full, window
    return (0, layers, window) if window else (layers, 0, 0)


def _parameters(of: _Dimensions, layers: int, heads: int, hidden: int) -> tuple[float, float]:
    """Parameters in all, and those that one token passes: attention, gated feed-forward layers, embeddings."""
    attention = _attention(of, heads, hidden)
    inner = of.get("intermediate_size")
    experts = of.first("num_experts", "n_routed_experts", "num_local_experts")
    dense = 3 * hidden * inner
    tables = of.must("vocab_size") * hidden * (1 if of.config.get("tie_word_embeddings") is True else 2)
    rest = layers * (attention + 2 * hidden) + tables + hidden
    if experts < 2:
        return float(rest + layers * dense), float(rest + layers * dense)
    expert = 3 * hidden * of.get("moe_intermediate_size", inner)
    shared = of.first("n_shared_experts", "num_shared_experts") * expert
    shared += 3 * hidden * of.get("shared_expert_intermediate_size")
    first = min(of.get("first_k_dense_replace"), layers)
    used = of.first("num_experts_per_tok", "experts_per_token")
    rest += first * dense + (layers - first) * (shared + hidden * experts)
    return float(rest + (layers - first) * experts * expert), float(rest + (layers - first) * used * expert)


def _attention(of: _Dimensions, heads: int, hidden: int) -> int:
    """Parameters of one layer's attention."""
    if not (rank := of.get("kv_lora_rank")):
        width = of.get("head_dim", hidden // heads)
        return hidden * width * 2 * (heads + of.get("num_key_value_heads", heads))
    nope, rope, value = (of.get(n) for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    squeezed = of.get("q_lora_rank")
    query = heads * (nope + rope)
    queries = hidden * squeezed + squeezed * query if squeezed else hidden * query
    keys = hidden * (rank + rope) + rank * heads * (nope + value)
    indexer = of.get("index_head_dim")
    looking = (squeezed or hidden) * of.get("index_n_heads") * indexer + hidden * (indexer + of.get("index_n_heads"))
    return queries + keys + heads * value * hidden + (looking if indexer else 0)
