"""Prefix caching is switched off while tenants send long system prompts again and again."""

from ..scenario import Scenario, Slo
from ..traffic import Tenant

SCENARIO = Scenario(
    wrong="The engine runs with --no-enable-prefix-caching: every request computes its whole system prompt.",
    expect=("PFX02",),
    slo=Slo(ttft_p99=0.1, itl_p99=0.5),
    flags={"enable_prefix_caching": False},
    baseline=(
        Tenant("alpha", clients=2, think_s=0.6, question=32, answer=16),
        Tenant("beta", clients=1, think_s=0.4, question=32, answer=16),
    ),
    incident=(
        Tenant("alpha", clients=2, think_s=0.6, prefix=1280, question=32, answer=16),
        Tenant("beta", clients=1, think_s=0.4, prefix=1600, question=32, answer=16),
    ),
)
