"""Dynamo's frontend before two mocker workers, and nothing is wrong."""

from ..scenario import Scenario, Slo
from ..traffic import Tenant

LOAD = (
    Tenant("shop", clients=4, think_s=0.5, prefix=480, question=32, answer=24),
    Tenant("support", clients=2, think_s=0.5, prefix=640, question=32, answer=24),
)

SCENARIO = Scenario(
    wrong="Nothing: the incident is more of the same.",
    expect=(),
    slo=Slo(ttft_p99=1.0, itl_p99=0.3),
    system="dynamo",
    engines=("worker-1", "worker-2"),
    baseline=LOAD,
    incident=LOAD,
)
