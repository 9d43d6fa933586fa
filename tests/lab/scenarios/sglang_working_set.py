"""SGLang: the tenants' system prompts outgrow the radix cache, and are evicted and computed again and again."""

from dataclasses import replace

from ..scenario import Scenario, Slo
from ..traffic import Tenant

APPS = Tenant("apps", clients=3, think_s=0.3, prefix=480, question=16, answer=8)

SCENARIO = Scenario(
    wrong="24 system prompts of 480 tokens each are in use, and the cache holds 4096 tokens.",
    expect=("KVC06",),
    slo=Slo(ttft_p99=0.1, itl_p99=0.5),
    system="sglang",
    baseline=(replace(APPS, prefixes=5),),
    incident=(replace(APPS, prefixes=24),),
)
