"""The longest sequence that each model of the catalogue is published for, in tokens: prompt and answer together.

From `max_position_embeddings` of the public configurations (aiconfigurator_core 0.12.0, litgpt 0.5.13); those marked
`from memory` were not confirmed. An engine that extends it (RoPE scaling, such as YaRN) takes longer ones.
"""

from __future__ import annotations

from collections.abc import Mapping

CONTEXT_LENGTHS: Mapping[str, int] = {
    "Meta-Llama-3.1-8B": 131_072,
    "Meta-Llama-3.1-70B": 131_072,
    "Meta-Llama-3.1-405B": 131_072,
    "Llama-3.3-70B-Instruct": 131_072,
    "Llama-3.2-1B": 131_072,
    "Llama-3.2-3B": 131_072,
    "Qwen2.5-7B": 131_072,
    "Qwen2.5-14B": 131_072,
    "Qwen2.5-32B": 131_072,
    "Qwen2.5-72B": 131_072,
    "Qwen3-0.6B": 40_960,
    "Qwen3-8B": 40_960,
    "Qwen3-14B": 40_960,  # from memory
    "Qwen3-32B": 40_960,
    "Qwen3-30B-A3B": 40_960,
    "Qwen3-235B-A22B": 40_960,
    "Qwen3-Coder-480B-A35B-Instruct": 262_144,
    "Qwen3-Next-80B-A3B-Instruct": 262_144,  # from memory
    "Qwen3.5-397B-A17B": 262_144,
    "Mistral-7B-v0.3": 32_768,
    "Mistral-Large-Instruct-2407": 131_072,  # from memory; litgpt has 32,768
    "Mistral-Nemo-12B-2407": 131_072,  # from memory
    "Mistral-Small-3.2-24B-Instruct-2506": 131_072,  # from memory
    "Mixtral-8x7B-v0.1": 32_768,
    "Mixtral-8x22B-v0.1": 65_536,
    "Gemma-2-9b": 8_192,
    "Gemma-2-27b": 8_192,
    "Gemma-3-4b-it": 131_072,
    "Gemma-3-12b-it": 131_072,
    "Gemma-3-27b-it": 131_072,
    "DeepSeek-V2 (236B)": 163_840,  # from memory
    "DeepSeek-V2-Lite": 163_840,  # from memory
    "DeepSeek-V3": 163_840,
    "DeepSeek-R1": 163_840,
    "DeepSeek-V3.2": 163_840,
    "GLM-4.5-Air": 131_072,  # from memory
    "GLM-5": 202_752,
    "Kimi-K2-Instruct": 131_072,
    "gpt-oss-20b": 131_072,
    "gpt-oss-120b": 131_072,
    "Phi-3-mini-4k-instruct": 4_096,
    "phi-4": 16_384,
    "Phi-4-mini-instruct": 131_072,
    "Llama-4-Scout-17B-16E-Instruct": 10_485_760,
    "MiniMax-M2.5": 196_608,
    "Llama-2-7B": 4_096,  # from memory
    "OPT-13B": 2_048,  # from memory
}
