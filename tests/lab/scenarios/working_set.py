"""The tenants' system prompts outgrow the cache: blocks are evicted and computed again and again."""

from dataclasses import replace

from ..scenario import Scenario, Slo
from ..traffic import Tenant

APPS = Tenant("apps", clients=4, think_s=0.3, prefix=960, question=16, answer=8)

SCENARIO = Scenario(
    wrong="24 system prompts of 30 blocks each are in use, and the cache holds 352 blocks.",
    expect=("KVC06",),
    slo=Slo(ttft_p99=0.1, itl_p99=0.5),
    flags={"num_gpu_blocks_override": 353},
    baseline=(replace(APPS, prefixes=5),),
    incident=(replace(APPS, prefixes=24),),
)
