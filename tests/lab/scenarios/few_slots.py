"""The engine may run two requests at a time: sixteen clients queue beside an idle KV cache."""

from ..scenario import Scenario, Slo
from ..traffic import Tenant

SCENARIO = Scenario(
    wrong="--max-num-seqs 2 makes requests wait for a slot while the KV cache is nearly empty.",
    expect=("SCH01",),
    slo=Slo(ttft_p99=0.25, itl_p99=0.3),
    flags={"max_num_seqs": 2, "num_gpu_blocks_override": 1024},
    baseline=(
        Tenant("alpha", clients=1, think_s=0.3, prefix=256, question=32, answer=32),
        Tenant("beta", clients=1, think_s=0.3, prefix=256, question=32, answer=32),
    ),
    incident=(
        Tenant("alpha", clients=8, prefix=256, question=32, answer=32),
        Tenant("beta", clients=8, prefix=256, question=32, answer=32),
    ),
)
