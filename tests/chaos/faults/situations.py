"""Every situation by its name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from . import clock, disk, engines, hostile, network, restarts, servers
from .stage import Stage, Told

Situation = Callable[[Stage, Told], Awaitable[None]]

SITUATIONS: dict[str, Situation] = {
    "engine_killed": engines.killed,
    "engine_stopped": engines.stopped,
    "engine_upgraded": engines.upgraded,
    "clock_stepped": clock.stepped,
    "disk_full": disk.full,
    "network_broken": network.broken,
    "packets_lost": network.packets_lost,
    "prometheus_down": servers.prometheus,
    "alertmanager_down": servers.alertmanager,
    "agent_killed": restarts.killed,
    "hostile_targets": hostile.targets,
    "hostile_queries": hostile.queries,
    "hostile_files": hostile.files,
}
