"""SGLang, and nothing is wrong: the prompts fit in the radix cache and there is room for everyone."""

from ..scenario import Scenario, Slo
from ..traffic import Tenant

LOAD = (
    Tenant("shop", clients=2, think_s=0.5, prefix=480, question=32, answer=24),
    Tenant("support", clients=1, think_s=0.5, prefix=640, question=32, answer=24),
    Tenant("notes", rate=0.7, prefix=320, question=24, answer=16),
)

SCENARIO = Scenario(
    wrong="Nothing: the incident is more of the same.",
    expect=(),
    slo=Slo(ttft_p99=1.5, itl_p99=0.5),
    system="sglang",
    baseline=LOAD,
    incident=LOAD,
)
