"""Dimensions out of a config.json. The configs have the published dimensions of the models; counts are checked against
the catalogue, which has them from other sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvitals.diagnoser.sizing import config
from kvitals.diagnoser.sizing.config import ConfigFileError
from kvitals.diagnoser.sizing.memory import kv_per_token
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


def test_what_is_not_counted_right_is_unknown() -> None:
    assert config.model_of({**LLAMA_70B, "model_type": "falcon_mamba"}, "x", "").parameters == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no object"),
        ("{", "not a config.json"),
        ("{}", "num_hidden_layers is missing"),
        (json.dumps({**LLAMA_70B, "num_hidden_layers": -1}), "no whole number"),
        (json.dumps({**LLAMA_70B, "hidden_size": 1e99}), "no whole number"),
        (json.dumps({**LLAMA_70B, "num_attention_heads": True}), "no whole number"),
        (json.dumps({**LLAMA_70B, "num_key_value_heads": 0}), "num_key_value_heads is missing or 0"),
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
