"""The block ledger's look-ups, to be replayed: of a recording or of a running agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvitals.app.agent_client import AgentClient
from kvitals.app.cache import replay_ledger
from kvitals.kvcache.accesses import Accesses


class LedgerError(Exception):
    """There is nothing to replay; the message says what to do."""


@dataclass(frozen=True)
class Known:
    """Look-ups, and the blocks of the largest engine where that is known."""

    accesses: Accesses
    pool: int | None


def of_recording(path: Path) -> Known:
    """Keep the ledger of a recording anew, to its end. Raises CaptureError, ConfigError, LedgerError."""
    ledger, _ = replay_ledger(path)
    if ledger is None:
        raise LedgerError(
            f"{path} has no KV events. Engines publish them with --kv-events-config (see `kvitals check`);"
            " then record it anew."
        )
    accesses = ledger.accesses()
    if accesses is None or not len(accesses):
        raise LedgerError(f"{path}: its KV events tell of no look-up; record for longer, or while requests come")
    return Known(accesses, max((w.ledger.pool for w in ledger.engines.values() if w.ledger.pool), default=None))


def of_agent(url: str) -> Known:
    """Ask a running agent for its latest lookups. Raises LedgerError, AgentError."""
    client = AgentClient(url)
    accesses = client.accesses()
    if accesses is None:
        raise LedgerError(
            f"the agent at {url} has no lookups yet. Engines must publish KV events: `kvitals check` names the flag."
        )
    report = client.cache() or {}
    pools = [pool for engine in report.get("engines", []) if isinstance(pool := engine.get("pool_blocks"), int)]
    return Known(accesses, max(pools, default=None))
