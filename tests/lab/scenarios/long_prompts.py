"""Whole documents between chats: while one is computed, step after step, nobody else's prompt is begun."""

from ..scenario import Scenario, Slo
from ..traffic import Tenant

SCENARIO = Scenario(
    wrong="Prompts of 4,000 tokens take the whole budget of each step; short ones wait behind them beside free slots.",
    expect=("SCH09",),
    slo=Slo(ttft_p99=0.5, itl_p99=1.0),
    flags={"max_num_seqs": 64, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 2048, "max_model_len": 8192},
    baseline=(Tenant("chat", clients=2, think_s=0.3, prefix=256, question=64, answer=16),),
    incident=(
        Tenant("chat", clients=6, think_s=0.2, prefix=256, question=64, answer=16),
        Tenant("documents", burst=1, every_s=3.0, question=4000, answer=8),
    ),
)
