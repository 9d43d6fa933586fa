"""Clients hang up between prefill and decode: what was prefilled for them stays pinned until its lease ends."""

from ..scenario import Pair, Scenario, Slo
from ..traffic import Tenant

CHAT = Tenant("chat", clients=2, think_s=0.4, prefix=256, question=32, answer=24)
IMPATIENT = Tenant("impatient", rate=4.0, question=480, answer=16)

SCENARIO = Scenario(
    wrong="Four prompts a second are prefilled and never fetched; their KV is pinned for 6 s each.",
    expect=("PDX07",),
    slo=Slo(ttft_p99=1.0, itl_p99=0.3),
    system="pd",
    engines=("prefill", "decode"),
    pair=Pair(lease_s=6, hangs_up=IMPATIENT.name),
    baseline=(CHAT,),
    incident=(CHAT, IMPATIENT),
)
