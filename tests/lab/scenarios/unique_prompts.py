"""A release put a timestamp in front of the system prompt: from now on no two prompts share a block."""

from dataclasses import replace

from ..scenario import Scenario, Slo
from ..traffic import Tenant

BEFORE = Tenant("assistant", clients=3, think_s=0.4, prefix=1280, question=32, answer=16)

SCENARIO = Scenario(
    wrong="Four random tokens in front of the shared system prompt make every prompt unique.",
    expect=("PFX10", "PFX11"),
    slo=Slo(ttft_p99=0.1, itl_p99=0.5),
    flags={"num_gpu_blocks_override": 8000},
    baseline=(BEFORE,),
    incident=(replace(BEFORE, salt=4),),
)
