"""Makes small LoRA adapters for the lab's model: `make_adapters.py MODEL FOLDER COUNT` writes FOLDER/a0, ...

Runs under the lab's engine environment. Weights come from a seeded generator; what an adapter says does not matter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 8


def adapter(model: dict[str, int], seed: int) -> dict[str, torch.Tensor]:
    """Random low-rank weights for the query and value projections of every layer."""
    draw = torch.Generator().manual_seed(seed)
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    outputs = {"q_proj": heads * model["head_dim"], "v_proj": model["num_key_value_heads"] * model["head_dim"]}
    weights = {}
    for layer in range(model["num_hidden_layers"]):
        for name, out in outputs.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(RANK, hidden, generator=draw) * 0.02
            weights[f"{place}.lora_B.weight"] = torch.randn(out, RANK, generator=draw) * 0.02
    return weights


CONFIGURATION = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "tiny",
    "r": RANK,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
}


def main() -> None:
    model = json.loads((Path(sys.argv[1]) / "config.json").read_text())
    for number in range(int(sys.argv[3])):
        folder = Path(sys.argv[2]) / f"a{number}"
        folder.mkdir(parents=True, exist_ok=True)
        save_file(adapter(model, number), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(CONFIGURATION))


if __name__ == "__main__":
    main()
