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


_PAGES = ("agent.senses", "agent.families", "rules.engine_map")

MODULES = {
    "parser": _PAGES,
    "families": _PAGES,
    "otlp": ("agent.senses.otlp_json", "agent.senses.otlp_wire", "agent.requests"),
    "kv_events": ("agent.senses.kv_events_wire", "agent.ledger"),
    "log_lines": ("agent.requests",),
    "promql": ("series.promql",),
    "patterns": ("series.patterns", "series.promql"),
    "captures": ("series.capture", "agent.service"),
    "rules": ("rules.loader", "rules.condition"),
    "config": ("agent.config",),
    "http1_requests": ("agent.tap.http1",),
    "http1_responses": ("agent.tap.http1",),
    "history": ("series.history",),
    "slack": ("ui.escaping", "ui.notify"),
    "pagerduty": ("ui.escaping", "ui.notify"),
    "alertmanager": ("ui.escaping", "ui.notify"),
    "html": ("ui.escaping",),
    "markdown": ("ui.escaping",),
    "terminal": ("ui.escaping",),
}
"""By the name of an attack, the modules whose coverage leads it."""

PAGES = ("parser", "families")
