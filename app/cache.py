"""What caches hold and for whom: of a running agent, of a live engine that is listened to, or of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.agent.node import Node
from kvitals.app.agent_client import AgentClient, NotKvitalsError
from kvitals.app.errors import NoEngineError
from kvitals.app.pipeline import Setup
from kvitals.app.sources.live import Collector
from kvitals.app.sources.recording import ended_node
from kvitals.config import Config


@dataclass(frozen=True)
class CacheReport:
    """The ledger's report (docs/ledger.md) and its cascades (docs/cascade.md); both empty where no engine told of
    blocks."""

    cache: dict[str, Any] = field(default_factory=dict)
    cascades: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()  # what was said while looking

    @property
    def names(self) -> dict[str, str]:
        """What stands for a tenant -> its name, where it may be told."""
        names = self.cache.get("tenant_names", {})
        return names if isinstance(names, dict) else {}


def of_recording(path: Path, setup: Setup) -> CacheReport:
    """Replay a recording, by the objectives of a setup. Raises CaptureError, ConfigError."""
    return _known(*replay_ledger(path, setup))


def replay_ledger(path: Path, setup: Setup | None = None) -> tuple[LedgerSide | None, Sequence[str]]:
    """The ledger at a recording's end, None where it has no KV events, and what was said while looking. Without a setup
    by the defaults. Raises CaptureError, ConfigError."""
    config, sources = (setup.config, setup.slo_sources) if setup is not None else (Config(), {})
    ended = ended_node(path, config, sources)
    return ended.node.ledger, [loss.text for loss in ended.losses]


async def of_engines(setup: Setup, urls: Sequence[str], seconds: float) -> CacheReport:
    """Listen to engines for so long; not at all where none of them answers. Raises ConfigError, NoEngineError."""
    async with Collector(setup, urls) as collector:
        async for _ in collector.collect(seconds):
            if len(complaints := collector.complaints()) == len(collector.targets):
                raise NoEngineError("\n".join(complaints))
        node = collector.pipeline.node
        return _known(node.ledger, (*collector.said, *collector.complaints()))


def of_agent(url: str) -> CacheReport | None:
    """Ask a running agent; None where something else answers, such as an engine. Raises AgentError."""
    client = AgentClient(url)
    try:
        report = client.cache()
        return CacheReport() if report is None else CacheReport(report, client.cascades())
    except NotKvitalsError:
        return None


def of_node(node: Node) -> CacheReport:
    """What the ledger of a node knows."""
    return _known(node.ledger, ())


def _known(ledger: LedgerSide | None, notes: Sequence[str]) -> CacheReport:
    return CacheReport(notes=notes) if ledger is None else CacheReport(ledger.report(), ledger.cascades.report(), notes)
