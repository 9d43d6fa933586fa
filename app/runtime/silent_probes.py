"""Probes that the agent sends by itself, where `[agent] probe_silent_replicas` allows it.

A replica that serves nothing while its peers do (ENG14) is drained, or its engine core stopped while its gauges read
0. Metrics do not separate the two; one request for one token does. At most `MAX_REPLICAS` are asked at a time, each at
most once in `EVERY_SECONDS`: a wedged engine keeps each request in its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kvitals.agent.node import Node
from kvitals.agent.records import ProbeRecord
from kvitals.diagnoser.judgement import Judgement

SILENT = "ENG14"
EVERY_SECONDS = 60.0
MAX_REPLICAS = 2


class SilentProbes:
    """Sends the probes beside the cycles, which do not wait for them."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}  # engine -> when, seconds since the epoch
        self._asking: asyncio.Task[list[ProbeRecord]] | None = None

    def start(self, node: Node, judgements: Iterable[Judgement], now: float) -> None:
        """Ask the replicas that are silent and were not asked in the last `EVERY_SECONDS`, where that is allowed."""
        if not node.config.agent.probe_silent_replicas or self._asking is not None:
            return
        silent = {j.entity.get("engine", "") for j in judgements if j.rule.code == SILENT and j.outcome == "fired"}
        self._asked = {engine: at for engine, at in self._asked.items() if 0 <= now - at < EVERY_SECONDS}
        if due := sorted(silent - self._asked.keys())[:MAX_REPLICAS]:
            self._asked |= dict.fromkeys(due, now)
            self._asking = asyncio.create_task(node.probe(due))

    def drain(self) -> list[ProbeRecord]:
        """The answers that are in."""
        asking = self._asking
        if asking is None or not asking.done():
            return []
        self._asking = None
        return asking.result() if not asking.cancelled() else []

    def cancel(self) -> None:
        """End the probe under way: the agent ends."""
        if self._asking is not None:
            self._asking.cancel()
