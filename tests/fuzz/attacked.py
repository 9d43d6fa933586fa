"""Which parsers are attacked. This imports none of them: coverage is measured of what is imported later."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

Check = Callable[[bytes], None]
Mutate = Callable[[bytes, random.Random], bytes]


class Target(NamedTuple):
    """What must hold, examples to begin with, and how they are changed."""

    check: Check
    seeds: Callable[[], list[bytes]]
    mutate: Mutate


_PAGES = ("agent.senses", "agent.families", "rules.engine_map")

MODULES = {
    "parser": _PAGES,
    "families": _PAGES,
    "otlp": ("agent.senses.otlp_json", "agent.senses.otlp_wire", "agent.requests"),
    "kv_events": ("agent.senses.kv_events_wire", "agent.ledger"),
    "log_lines": ("agent.requests",),
    "promql": ("series.promql",),
    "captures": ("series.capture", "agent.service"),
    "rules": ("rules.loader", "rules.condition"),
    "config": ("agent.config",),
    "history": ("series.history",),
}
"""By the name of an attack, the modules whose coverage leads it."""

PAGES = ("parser", "families")
