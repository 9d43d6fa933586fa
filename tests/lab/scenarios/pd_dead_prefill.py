"""The prefill engine of a pair dies with prompts that the decode engine has still to fetch from it."""

from ..scenario import Pair, Scenario, Slo
from ..traffic import Tenant

LOAD = (Tenant("chat", clients=16, think_s=0.3, prefix=256, question=64, answer=24),)

SCENARIO = Scenario(
    wrong="The prefill engine was killed; the decode engine fails on every prompt that it is sent for its KV.",
    expect=("PDX06",),
    slo=Slo(ttft_p99=2.5, itl_p99=0.5),
    system="pd",
    engines=("prefill", "decode"),
    pair=Pair(hand_over_s=1.0, retry_s=60.0),
    dies="prefill",
    baseline=LOAD,
    incident=LOAD,
)
