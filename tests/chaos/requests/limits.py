"""What must hold, whatever is done."""

PEAK_MB = {"agent": 500.0, "tap": 150.0}
"""Resident memory at its peak. The agent's is that of all situations in one process, one after the other, so with
each of its bounds reached: 20,000 requests open, 50,000 names of tenants remembered, 40,000 parts of spans and as many
of the tap waiting, and what pieces of freed memory the allocator keeps."""

GOOD_P99_SECONDS = 0.25
"""By how much the good client's p99 through the tap may be above that of the same requests to the engine itself at the
same time: of what else the machine does, neither knows."""

PAGE_BYTES = 2_000_000
"""The agent's own /metrics."""

PAGE_SECONDS = 5.0
"""How long the agent may take for that page, at worst: half of what a Prometheus waits for it."""

RECOVER_SECONDS = 30.0
"""From the end of an attack until everything is counted and nothing is left of it."""
