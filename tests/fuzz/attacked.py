"""Which parsers are attacked. This imports none of them: coverage is measured of what is imported later."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

Check = Callable[[bytes], None]
Mutate = Callable[[bytes, random.Random], bytes]


CPU_SECONDS = 5.0
"""CPU time of one input, at most, where a target names no other bound. Most inputs take a thousandth of it."""


class Target(NamedTuple):
    """What must hold, examples to begin with, how they are changed, and the CPU time of one input at most (seconds)."""

    check: Check
    seeds: Callable[[], list[bytes]]
    mutate: Mutate
    cpu_seconds: float = CPU_SECONDS

    def attack(self, data: bytes) -> None:
        """Check one input. Raises what the check raises, and AssertionError where it takes more than `cpu_seconds`.

        CPU time is that of the process, so a busy machine does not fail an input. A check therefore leaves no thread
        at work behind.
        """
        began = time.process_time()
        self.check(data)
        spent = time.process_time() - began
        assert spent < self.cpu_seconds, f"{spent:.2f} s of CPU for one input of {len(data)} bytes"


_PAGES = ("kvitals.agent.collectors", "kvitals.agent.families", "kvitals.rules.engine_map")

MODULES = {
    "parser": _PAGES,
    "families": _PAGES,
    "otlp": ("kvitals.agent.collectors.otlp_json", "kvitals.agent.collectors.otlp_wire", "kvitals.agent.requests"),
    "kv_events": ("kvitals.agent.collectors.kv_events_wire", "kvitals.agent.ledger"),
    "log_lines": ("kvitals.agent.requests",),
    "promql": ("kvitals.series.promql",),
    "patterns": ("kvitals.series.patterns", "kvitals.series.promql"),
    "captures": ("kvitals.series.recordings", "kvitals.agent.records"),
    "rules": ("kvitals.rules.loader", "kvitals.rules.condition"),
    "config": ("kvitals.config",),
    "http1_requests": ("kvitals.agent.tap.http1",),
    "http1_responses": ("kvitals.agent.tap.http1",),
    "history": ("kvitals.series.history",),
    "chat": ("kvitals.app.escaping", "kvitals.app.notify"),
}
"""By the name of an attack, the modules whose coverage leads it."""

PAGES = ("parser", "families")
