"""What the collectors of one node share."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from kvitals.agent.collectors.boundary import Collectors
from kvitals.agent.collectors.scrape import ScrapeSense
from kvitals.agent.engine_resolver import SeenEngines
from kvitals.agent.memory_limit import MemoryLimit, limit_of
from kvitals.agent.watched_targets import WatchedTargets
from kvitals.config import Config
from kvitals.series.window import Window

MAX_SERIES = 200_000
MAX_TARGET_SERIES = 20_000  # within the window, those that ended included


class NodeContext:
    """One node's window, targets and engines, and its configuration now."""

    def __init__(self, config: Config, slo_sources: Mapping[str, str] | None = None) -> None:
        """slo_sources: objective -> where it was set, for those not from the file."""
        self.config = config
        self.slo_sources = dict(slo_sources or {})
        self.is_recorded = False
        """Whether the records are those of a recording, perhaps from another machine."""
        self.window = Window(config.agent.window, MAX_SERIES, MAX_TARGET_SERIES)
        self.memory = MemoryLimit(limit_of(config.agent.memory_limit))
        self.collectors = Collectors(self.window, self.node_labels())
        self.scraper = ScrapeSense(self.window, refuses=self.memory.refuses)
        self.targets = WatchedTargets(self.scraper, config.labels)
        self.engines = SeenEngines(self.window)

    def node_labels(self) -> dict[str, str]:
        """The labels of this node."""
        labels = {"cluster": self.config.labels.cluster, "node": self.config.labels.node}
        return {name: value for name, value in labels.items() if value}

    def labels(self) -> dict[str, str]:
        """The labels of the node that the records are of. The name of this machine says nothing of a recorded one."""
        labels = self.node_labels()
        if self.is_recorded and labels.get("node") == socket.gethostname():
            del labels["node"]
        return labels

    def system(self, key: str) -> str:
        """The system whose page a target has, such as vllm; empty until a page was read."""
        reading = self.scraper.translator(key).reading
        return reading.system.system if reading is not None else ""
