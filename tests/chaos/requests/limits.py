"""What must hold, whatever is done."""

PEAK_MB = 300.0
"""Resident memory of the agent, and of the tap, at its peak."""

GOOD_P99_SECONDS = 0.25
"""Of the good client's requests through the tap, each of which the engine answers within 30 ms."""

PAGE_BYTES = 2_000_000
"""The agent's own /metrics."""

PAGE_SECONDS = 3.0
"""How long the agent may take for that page, at worst. A Prometheus waits 10 s."""

RECOVER_SECONDS = 30.0
"""From the end of an attack until everything is counted and nothing is left of it."""
