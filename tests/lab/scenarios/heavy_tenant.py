"""One tenant's long generations fill the KV cache, and everyone pays with preemptions and waiting."""

from ..scenario import Scenario, Slo
from ..traffic import Tenant

LIGHT = (
    Tenant("light-a", clients=1, think_s=0.3, prefix=32, question=32, answer=32),
    Tenant("light-b", clients=1, think_s=0.3, prefix=32, question=32, answer=32),
)
HEAVY = Tenant("heavy", clients=24, question=64, answer=320)

SCENARIO = Scenario(
    wrong="The tenant 'heavy' runs 24 long generations at once; 128 blocks hold about ten of them.",
    expect=("KVC01",),
    slo=Slo(ttft_p99=0.5, itl_p99=0.5),
    flags={"num_gpu_blocks_override": 129, "max_num_seqs": 32},
    baseline=LIGHT,
    incident=(*LIGHT, HEAVY),
)
