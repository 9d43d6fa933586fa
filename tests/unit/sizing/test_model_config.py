"""Dimensions out of a config.json. The configs have the published dimensions of the models; counts are checked against
the catalogue, which has them from other sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvitals.diagnoser.sizing import config
from kvitals.diagnoser.sizing.config import ConfigFileError
from kvitals.diagnoser.sizing.memory import kv_of_sequence, kv_per_token
from kvitals.rules import catalogue

LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "vocab_size": 201088,
}


@pytest.mark.parametrize(
    ("found", "name", "within"),
    [(LLAMA_70B, "Meta-Llama-3.1-70B", 1e-4), (DEEPSEEK_V3, "DeepSeek-V3", 1e-3), (GPT_OSS, "gpt-oss-20b", 5e-3)],
)
def test_parameters_and_kv_are_the_catalogues(found: dict[str, Any], name: str, within: float) -> None:
    model, known = config.model_of(found, name, "test"), catalogue.model(name)
    assert model.parameters == pytest.approx(known.parameters, rel=within)
    assert kv_per_token(model, 2.0) == kv_per_token(known, 2.0)
    assert (model.full, model.sliding, model.window) == (known.full, known.sliding, known.window)


def test_a_model_inside_of_another_is_the_language_model() -> None:
    assert config.model_of({"vision_config": {}, "text_config": LLAMA_70B}, "x", "").layers == 80


@pytest.mark.parametrize("kind", ["falcon_mamba", "falcon_h1", "zamba2", ""])
def test_an_unknown_architecture_is_refused_by_its_name(kind: str) -> None:
    with pytest.raises(ConfigFileError, match=f"{kind or 'model_type'} is .* cannot be counted; known: "):
        config.model_of({**LLAMA_70B, "model_type": kind}, "x", "")


# Published configurations of hybrids, with the layers that keep KV and the elements of state counted by hand.
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "vocab_size": 151936,
}
NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "vocab_size": 131072,
}
JAMBA: dict[str, Any] = {
    "model_type": "jamba",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_expand": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "vocab_size": 65536,
}
KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "hidden_size": 2304,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
    "vocab_size": 163840,
}


@pytest.mark.parametrize(
    ("found", "per_token", "state"),
    [
        (QWEN3_NEXT, 2 * 12 * 2 * 256 * 2, 36 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)) * 2),
        (NEMOTRON_H, 2 * 4 * 8 * 128 * 2, 24 * (128 * 64 * 128 + 3 * (128 * 64 + 2 * 8 * 128)) * 2),
        (JAMBA, 2 * 4 * 8 * 128 * 2, 28 * 8192 * (16 + 3) * 2),
        (KIMI_LINEAR, 7 * 576 * 2, 20 * (32 * 128 * 128 + 3 * 3 * 32 * 128) * 2),
    ],
    ids=["qwen3_next", "nemotron_h", "jamba", "kimi_linear"],
)
def test_a_hybrid_keeps_kv_in_its_attention_layers_and_a_state(
    found: dict[str, Any], per_token: int, state: int
) -> None:
    model = config.model_of(found, "x", "")
    assert kv_per_token(model, 2.0) == per_token
    assert model.state == state
    assert kv_of_sequence(model, 1000, 2.0) == 1000 * per_token + state


def test_the_layers_of_older_gemma_configs_alternate() -> None:
    gemma = {**LLAMA_70B, "model_type": "gemma2", "num_hidden_layers": 42, "sliding_window": 4096}
    model = config.model_of(gemma, "x", "")
    assert (model.full, model.sliding, model.window) == (21, 21, 4096)


@pytest.mark.parametrize(
    ("quantized", "native"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
        ),
    ],
)
def test_the_format_of_the_weights_is_the_published_one(quantized: Any, native: str) -> None:
    assert config.model_of({**LLAMA_70B, "quantization_config": quantized}, "x", "").native == native


def test_an_unknown_format_of_weights_is_refused() -> None:
    with pytest.raises(ConfigFileError, match="quantization_config: format 'aqlm' is unknown; give --weights"):
        config.model_of({**LLAMA_70B, "quantization_config": {"quant_method": "aqlm"}}, "x", "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"quantization_config": "fp8"}, "quantization_config 'fp8' is not an object"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 2}}, "gptq weights have 4 or 8 bits, here: 2"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "8"}}, "here: '8'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": -4}}, "here: -4"),
        ({"quantization_config": {"quant_method": "gptq"}}, "here: None"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "here: None"),
        ({"torch_dtype": "float8_e9"}, "torch_dtype 'float8_e9' is unknown"),
        ({"dtype": 16}, "dtype 16 is unknown"),
        ({"num_key_value_heads": 128}, "num_key_value_heads is 128: it must divide num_attention_heads, which is 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"num_local_experts": 8}, "num_experts_per_tok is missing or 0: it must be from 1 to the 8 experts"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        (
            {"num_local_experts": 10**6},
            "num_local_experts must be .* 0 to 65,536 experts, not 1000000",
        ),
    ],
)
def test_a_value_that_contradicts_the_model_is_refused_with_its_key(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigFileError, match=says):
        config.model_of({**LLAMA_70B, **changes}, "x", "")


def test_what_is_not_used_of_a_config_is_stated() -> None:
    model = config.model_of({**LLAMA_70B, "quantization_config": {"quant_method": "hqq"}}, "x", "", "fp8")
    assert model.note == "--weights fp8 is used, quantization_config is not used: {'quant_method': 'hqq'}"
    model = config.model_of({**LLAMA_70B, "torch_dtype": "float32"}, "x", "")
    assert (model.native, model.note) == (
        "bf16",
        "torch_dtype float32 is not used: engines load these weights in 16 bits",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "does not contain an object"),
        ("{", "not a config.json"),
        ("{}", "num_hidden_layers is missing"),
        (json.dumps({**LLAMA_70B, "num_hidden_layers": -1}), "must be a whole number from"),
        (json.dumps({**LLAMA_70B, "hidden_size": 1e99}), "must be a whole number from"),
        (json.dumps({**LLAMA_70B, "num_attention_heads": True}), "must be a whole number from"),
        (json.dumps({**LLAMA_70B, "num_key_value_heads": 0}), "num_key_value_heads is missing or 0"),
        (json.dumps({**LLAMA_70B, "layer_types": ["mamba"] * 80}), "layer_types has mamba"),
        (json.dumps({**LLAMA_70B, "layer_types": ["mamba"] * 81}), "layer_types names 81 layers"),
        ("[" * 100_000, "not a config.json"),
    ],
)
def test_a_broken_config_is_told(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigFileError, match=says):
        config.read(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(" " * (config.MAX_BYTES + 1))
    with pytest.raises(ConfigFileError, match="larger than"):
        config.read(path)
