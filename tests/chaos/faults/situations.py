"""Every situation by its name, the longest first, since some run beside each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from . import clock, collectors, disk, engines, hostile, network, real, restarts, servers, siege, silent
from .stage import Stage, Told

Situation = Callable[[Stage, Told], Awaitable[None]]

SITUATIONS: dict[str, Situation] = {
    "agent_killed": restarts.killed,
    "floods": siege.floods,
    "clock_stepped": clock.stepped,
    "prometheus_down": servers.prometheus,
    "hostile_files": hostile.files,
    "alertmanager_down": servers.alertmanager,
    "engine_upgraded": engines.upgraded,
    "disk_full": disk.full,
    "network_broken": network.broken,
    "hostile_targets": hostile.targets,
    "engine_killed": engines.killed,
    "packets_lost": network.packets_lost,
    "engine_stopped": engines.stopped,
    "hostile_queries": hostile.queries,
    "silent_peers": silent.peers,
    "hung_collector": collectors.hung,
    "fifo_targets": collectors.fifo_targets,
}

ON_REAL_ENGINES: dict[str, Situation] = {"real_engine": real.engines}
"""Those that need the lab's vLLM. They run when they are asked for by name."""

LONG: dict[str, Situation] = {"siege": siege.siege}
"""Those that load the machine for minutes. They run when they are asked for by name."""
