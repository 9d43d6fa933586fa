"""A model's dimensions out of its config.json, as Hugging Face keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvitals.rules.catalogue import Model
from kvitals.series.bounds import Bound, short_value
from kvitals.series.files import read_regular
from kvitals.series.undecodable import UNDECODABLE

MAX_BYTES = 1 << 20
_SIZE = Bound(0, 10**7, whole=True)
_HEADS = Bound(0, 65536, "heads", whole=True)
_EXPERTS = Bound(0, 65536, "experts", whole=True)
BOUNDS = {
    "num_hidden_layers": Bound(1, 10_000, "layers", whole=True),
    "sliding_window": Bound(0, 10**9, "tokens", whole=True),
    "max_position_embeddings": Bound(0, 10**9, "tokens", whole=True),
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "num_experts": _EXPERTS,
    "n_routed_experts": _EXPERTS,
    "num_local_experts": _EXPERTS,
}
"""Ranges of the dimensions of a config.json; of all others: `_SIZE`."""
DTYPES = ("bfloat16", "float16", "float32", "half", "float", "auto")
"""Published formats without quantization: engines serve all of them in 16 bits."""
INDEXER_SCALE_BYTES = 4
"""Beside each FP8 key of a sparse-attention indexer."""
ATTENTION_ONLY = (
    "llama", "mistral", "mistral3", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma",
    "gemma2", "gemma3", "gemma3_text", "phi3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4",
    "glm4_moe", "glm_moe_dsa", "gpt_oss", "granite", "olmo2", "olmo3", "seed_oss", "smollm3", "internlm3", "minimax_m2",
    "dots1", "ernie4_5",
)  # fmt: skip
"""Model types whose layers are attention and gated feed-forward parts, which parameters are counted by here."""
_USED = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")
WINDOW_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2}
"""One layer in so many has full attention, where a config with a window does not list its layers."""
STATE_BYTES = 2
"""Of an element of a recurrent state: 16 bits at least."""


class ConfigFileError(ValueError):
    """A config.json that tells no dimensions; the message says what is missing."""


def read(path: Path, weights: str = "") -> Model:
    """The model that a config.json describes. weights: their format, where the user states it: then the format in the
    file is not used, and the model's note states that. Raises ConfigFileError."""
    found = _decoded(path)
    try:
        return model_of(found, path.parent.name or path.name, f"config.json, {path}", weights)
    except ConfigFileError as error:
        raise ConfigFileError(f"{path}: {error}") from error


def _decoded(path: Path) -> dict[str, Any]:
    """Raises ConfigFileError."""
    try:
        found = msgspec.json.decode(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise ConfigFileError(f"{path}: cannot be read: {error.strerror}; give the model's config.json") from error
    except UNDECODABLE as error:
        raise ConfigFileError(f"{path}: not a config.json: {error}") from error
    if not isinstance(found, dict):
        raise ConfigFileError(f"{path}: not a config.json: it does not contain an object")
    return found


def model_of(config: Mapping[str, Any], name: str, source: str, weights: str = "") -> Model:
    """The model of a config; weights: as in `read`. Raises ConfigFileError, also for an architecture that is not known
    here."""
    text = config.get("text_config")
    of = _Dimensions(text if isinstance(text, dict) else config)
    kind = str(of.config.get("model_type", ""))
    layers, heads, hidden = of.must("num_hidden_layers"), of.must("num_attention_heads"), of.must("hidden_size")
    latent = of.get("kv_lora_rank") + of.get("qk_rope_head_dim") if of.get("kv_lora_rank") else 0
    recurrent = RECURRENT.get(kind)
    if recurrent is None and kind not in ATTENTION_ONLY:
        known = ", ".join(sorted((*ATTENTION_ONLY, *RECURRENT)))
        what = f"architecture {kind} is not known" if kind else "model_type is missing"
        raise ConfigFileError(f"{what}, so its layers cannot be counted; known: {known}")
    found = recurrent(of, layers) if recurrent else LayerKinds(*_kinds(of, layers))
    if found.full + found.sliding > layers:
        raise ConfigFileError(f"{found.full + found.sliding} layers have attention, but num_hidden_layers is {layers}")
    _check_counts(of, heads)
    total, active = (0.0, 0.0) if recurrent else _parameters(of, layers, heads, hidden)
    indexer = of.get("index_head_dim")
    experts, used = of.first("num_experts", "n_routed_experts", "num_local_experts"), of.first(*_USED)
    native, note = _format_of(config, of.config, weights)
    if recurrent:
        note = f"{note}; " * bool(note) + "this config does not state its parameters; give --dims parameters=N,active=N"
    return Model(
        name=name,
        attention=("hybrid " if recurrent else "")
        + ("MLA" if latent else "GQA")
        + ("+DSA" if indexer else "")
        + ("+SWA" if found.sliding else ""),
        layers=layers,
        full=found.full,
        sliding=found.sliding,
        window=found.window,
        query_heads=heads,
        kv_heads=0 if latent else of.must("num_key_value_heads", heads),
        head_dim=0 if latent else of.get("attention_head_dim") or of.must("head_dim", hidden // heads),
        latent=latent,
        indexer=indexer + INDEXER_SCALE_BYTES if indexer else 0,
        hidden=hidden,
        parameters=total,
        active=active,
        vocab=of.get("vocab_size"),
        inner=_inner(of, experts, used),
        experts=experts if experts > 1 else 0,
        used=used if experts > 1 else 0,
        state=float(found.state * STATE_BYTES),
        context=of.get("max_position_embeddings"),
        native=native,
        source=source,
        note=note,
    )


def _inner(of: _Dimensions, experts: int, used: int) -> int:
    """The width of the feed-forward part that a token passes."""
    inner = of.get("intermediate_size")
    if experts < 2:
        return inner
    shared = of.first("n_shared_experts", "num_shared_experts")
    return (used + shared) * of.get("moe_intermediate_size", inner) + of.get("shared_expert_intermediate_size")


def _check_counts(of: _Dimensions, heads: int) -> None:
    """Raises ConfigFileError for counts that contradict each other."""
    groups = of.get("num_key_value_heads", heads)
    if groups > heads or (groups and heads % groups):
        raise ConfigFileError(f"num_key_value_heads is {groups}: it must divide num_attention_heads, which is {heads}")
    experts, used = of.first("num_experts", "n_routed_experts", "num_local_experts"), of.first(*_USED)
    if experts > 1 and not 1 <= used <= experts:
        raise ConfigFileError(f"{_USED[0]} is {used or 'missing or 0'}: it must be from 1 to the {experts} experts")


def _format_of(config: Mapping[str, Any], text: Mapping[str, Any], weights: str) -> tuple[str, str]:
    """The format of the weights, and what is not used of the config. Raises ConfigFileError."""
    keys = ("quantization_config", "dtype", "torch_dtype")
    stated = {key: next((of[key] for of in (config, text) if of.get(key) is not None), None) for key in keys}
    quantized, dtype = stated.pop(keys[0]), next((item for item in stated.items() if item[1] is not None), None)
    if weights:
        unused = f"--weights {weights} is used, quantization_config is not used: {short_value(quantized)}"
        return "", unused if quantized is not None else ""
    if quantized is not None:
        return native_format(quantized), ""
    if dtype is None:
        return "bf16", ""
    name, value = dtype
    if not isinstance(value, str) or value.removeprefix("torch.") not in DTYPES:
        raise ConfigFileError(f"{name} {short_value(value)} is unknown: expected {', '.join(DTYPES)}; give --weights")
    wide = value.removeprefix("torch.") in ("float32", "float")
    return "bf16", f"{name} {value} is not used: engines load these weights in 16 bits" if wide else ""


def native_format(quantized: object) -> str:
    """The format of weights that a config's quantization_config states. Raises ConfigFileError for an unknown one."""
    if not isinstance(quantized, Mapping):
        raise ConfigFileError(f"quantization_config {short_value(quantized)} is not an object; give --weights")
    method = str(quantized.get("quant_method", "")).lower()
    bits = quantized.get("bits", quantized.get("w_bit"))
    if method == "compressed-tensors":
        method, bits = _compressed(quantized)
    if method in ("modelopt", "modelopt_fp4") or "quant_algo" in quantized:
        inner = quantized.get("quantization")
        method = str((inner if isinstance(inner, Mapping) else quantized).get("quant_algo", method)).lower()
    if method == "bitsandbytes":
        loads = [bits for bits in (4, 8) if quantized.get(f"load_in_{bits}bit") is True]
        bits = loads[0] if len(loads) == 1 else None
    if method in ("awq", "gptq", "auto-round", "bitsandbytes", "int"):
        if type(bits) is not int or bits not in (4, 8):
            raise ConfigFileError(
                f"quantization_config: {method} weights have 4 or 8 bits, here: {short_value(bits)}; give --weights"
            )
        return f"int{bits}"
    found = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}.get(method)
    if found is None:
        raise ConfigFileError(
            f"quantization_config: format {short_value(method) if method else 'without quant_method'} is unknown; give "
            f"--weights"
        )
    return found


def _compressed(quantized: Mapping[str, Any]) -> tuple[str, object]:
    """The format of the weights of a compressed-tensors config, by its first group."""
    groups = quantized.get("config_groups")
    first: object = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return "compressed-tensors without weights", None
    bits = weights.get("num_bits")
    if weights.get("type") == "float":
        return {8: "fp8", 4: "nvfp4"}.get(bits if type(bits) is int else 0, f"float of {short_value(bits)} bits"), bits
    return "int", bits


@dataclass(frozen=True)
class LayerKinds:
    """Layers by how their KV grows, and elements of the recurrent state of a sequence."""

    full: int
    sliding: int = 0
    window: int = 0
    state: int = 0


class _Dimensions:
    """Whole numbers of a config that someone else wrote."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, name: str, otherwise: int = 0) -> int:
        """A dimension, or `otherwise` where it is not told."""
        value = self.config.get(name)
        if value is None:
            return otherwise
        try:
            BOUNDS.get(name, _SIZE).check(name, value)
        except ValueError as error:
            raise ConfigFileError(str(error)) from None
        return int(value)

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
        if len(kinds) != layers:
            raise ConfigFileError(f"layer_types names {len(kinds)} layers, but num_hidden_layers is {layers}")
        if unknown := {str(kind) for kind in kinds} - {"full_attention", "sliding_attention"}:
            raise ConfigFileError(
                f"layer_types has {', '.join(sorted(unknown))}, which kvitals does not know for this architecture"
            )
        sliding = kinds.count("sliding_attention") if window else 0
        return layers - sliding, sliding, window if sliding else 0
    pattern = of.get("sliding_window_pattern") or WINDOW_PATTERNS.get(str(of.config.get("model_type")), 0)
    if pattern and window:
        full = layers // pattern
        return full, layers - full, window
    return (0, layers, window) if window else (layers, 0, 0)


def _delta_net(of: _Dimensions, layers: int) -> LayerKinds:
    """Qwen3-Next and Qwen3.5: gated delta nets, with full attention every few layers."""
    kinds = of.config.get("layer_types")
    every = of.get("full_attention_interval", 4) or 4
    full = kinds.count("full_attention") if isinstance(kinds, list) and kinds else layers // every
    keys = of.must("linear_num_key_heads") * of.must("linear_key_head_dim")
    values = of.must("linear_num_value_heads")
    width = of.must("linear_value_head_dim")
    kernel = of.get("linear_conv_kernel_dim", 4)
    each = values * width * of.must("linear_key_head_dim") + (kernel - 1) * (2 * keys + values * width)
    return LayerKinds(full, state=(layers - full) * each)


def _kimi_linear(of: _Dimensions, layers: int) -> LayerKinds:
    """Kimi-Linear: delta attention, with latent attention in the layers that it names."""
    linear = of.config.get("linear_attn_config")
    full = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
    if not isinstance(linear, Mapping) or not isinstance(full, list):
        raise ConfigFileError("linear_attn_config.full_attn_layers is missing")
    inner = _Dimensions(linear)
    heads, width = inner.must("num_heads"), inner.must("head_dim")
    each = heads * width * width + (inner.get("short_conv_kernel_size", 4) - 1) * 3 * heads * width
    return LayerKinds(len(full), state=(layers - len(full)) * each)


def _mamba2(of: _Dimensions, layers: int) -> LayerKinds:
    """Nemotron-H, Granite 4 and Bamba: Mamba-2 layers, attention in some, and in Nemotron-H layers with neither."""
    pattern, kinds = of.config.get("hybrid_override_pattern"), of.config.get("layer_types")
    indices = of.config.get("attn_layer_indices")
    if isinstance(pattern, str) and pattern:
        full, mamba = pattern.count("*"), pattern.count("M")
        if len(pattern) != layers:
            raise ConfigFileError(
                f"hybrid_override_pattern has {len(pattern)} layers, but num_hidden_layers is {layers}"
            )
    elif isinstance(kinds, list) and len(kinds) == layers:
        full, mamba = kinds.count("attention") + kinds.count("full_attention"), kinds.count("mamba")
    elif isinstance(indices, list):
        full, mamba = len(indices), layers - len(indices)
    else:
        raise ConfigFileError(
            "the config does not state which layers have attention: hybrid_override_pattern or layer_types is missing"
        )
    heads = of.first("mamba_num_heads", "mamba_n_heads")
    width = of.first("mamba_head_dim", "mamba_d_head")
    size = of.first("ssm_state_size", "mamba_d_state")
    groups, kernel = of.first("n_groups", "mamba_n_groups") or 1, of.first("conv_kernel", "mamba_d_conv") or 4
    if not heads * width * size:
        raise ConfigFileError("mamba_num_heads, mamba_head_dim or ssm_state_size is missing or 0")
    each = heads * width * size + (kernel - 1) * (heads * width + 2 * groups * size)
    return LayerKinds(full, state=mamba * each)


def _jamba(of: _Dimensions, layers: int) -> LayerKinds:
    """Jamba: Mamba layers, with attention once in a period."""
    period, offset = of.must("attn_layer_period"), of.get("attn_layer_offset")
    full = sum(1 for layer in range(layers) if layer % period == offset)
    inner = of.get("mamba_expand", 2) * of.must("hidden_size")
    each = inner * (of.must("mamba_d_state") + of.get("mamba_d_conv", 4) - 1)
    return LayerKinds(full, state=(layers - full) * each)


RECURRENT: dict[str, Callable[[_Dimensions, int], LayerKinds]] = {
    "qwen3_next": _delta_net,
    "qwen3_5": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "kimi_linear": _kimi_linear,
    "nemotron_h": _mamba2,
    "granitemoehybrid": _mamba2,
    "bamba": _mamba2,
    "jamba": _jamba,
}
"""Model types with recurrent layers, and how their layers are counted."""


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
    used = of.first(*_USED)
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
