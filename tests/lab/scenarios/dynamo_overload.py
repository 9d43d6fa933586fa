"""Far more requests at once than Dynamo's workers have slots: they queue, and the first token is late."""

from dataclasses import replace

from ..scenario import Scenario, Slo
from ..traffic import Tenant

CHAT = Tenant("chat", clients=4, think_s=0.5, prefix=320, prefixes=4, question=32, answer=48)

SCENARIO = Scenario(
    wrong="100 clients wait for 2 x 4 slots, and the workers' KV caches are nearly empty.",
    expect=("SCH01", "SCH10"),
    slo=Slo(ttft_p99=1.0, itl_p99=0.3),
    system="dynamo",
    engines=("worker-1", "worker-2"),
    flags={"max_num_seqs": 4, "num_gpu_blocks_override": 512},
    baseline=(CHAT,),
    incident=(replace(CHAT, clients=100, think_s=0.0),),
)
