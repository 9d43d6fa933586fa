"""Lookups to replay, of a recording or of a running agent, and the sizes of cache to replay them with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvitals.agent.ledger.node_ledgers import LedgerSide
from kvitals.app.agent_client import AgentClient
from kvitals.app.cache import replay_ledger
from kvitals.app.errors import UsageError
from kvitals.app.trace_files import doubt_of_times, read_trace
from kvitals.kvcache.accesses import Accesses
from kvitals.kvcache.traces.request import TraceError, TraceFacts
from kvitals.kvcache.whatif import ReplayRow

MAX_BLOCKS = 10**12
_BY_SESSION = ("sticky", "prefix")


class LedgerError(Exception):
    """There is nothing to replay; the message says what to do."""


@dataclass(frozen=True)
class Lookups:
    """What to replay: accesses, what they are of, and the blocks that one node has today where that is known.

    trace: how a trace file was read, None for the look-ups of engines. notes: what could not be read of a recording,
    and what makes the times of a trace doubtful."""

    accesses: Accesses
    title: str
    today: int | None
    trace: TraceFacts | None = None
    notes: Sequence[str] = ()

    @property
    def extent(self) -> str:
        """How much is replayed, in words."""
        of = self.accesses
        lasted = float(of.time[-1] - of.time[0])
        return (
            f"{len(of):,} request{'s' * (len(of) != 1)} in {lasted:,.0f} s, {int(of.tokens.sum()):,} prompt tokens, "
            f"{of.references:,} blocks of {of.block_size} tokens looked up"
        )

    @property
    def recorded_hit_rate(self) -> float | None:
        """The hit rate of the lookups whose hits the engine reported; None where it reported none."""
        reported = self.accesses.hit >= 0
        tokens = int(self.accesses.tokens[reported].sum())
        return int(self.accesses.hit[reported].sum()) * self.accesses.block_size / tokens if tokens else None

    def guesses_sessions(self, rows: Sequence[ReplayRow]) -> bool:
        """Whether a row depends on sessions and no lookup names one, so that they are guessed from the prompts."""
        by_session = any((row.routing in _BY_SESSION and row.nodes > 1) or row.policy == "priority" for row in rows)
        return by_session and not bool((self.accesses.session >= 0).any())


def trace_lookups(path: Path, block_size: int | None) -> Lookups:
    """The requests of a trace with prefix ids. Raises TraceError."""
    trace = read_trace(path, block_size)
    if trace.facts.block_size is None:
        raise TraceError(
            f"{path}: the {trace.facts.format} format has no prefix ids, so no hit rate can be calculated for any"
            f" capacity, eviction or routing. `kvitals size --trace {path}` uses only the trace's arrivals and lengths."
        )
    doubt = doubt_of_times(trace)
    return Lookups(trace.accesses, str(path), None, trace.facts, (doubt,) if doubt else ())


def recorded_lookups(path: Path) -> Lookups:
    """Keep the ledger of a recording anew, to its end. Raises CaptureError, ConfigError, LedgerError."""
    ledger, notes = replay_ledger(path)
    if ledger is None:
        raise LedgerError(
            f"{path} has no KV events. Engines publish prefix ids with --kv-events-config (see `kvitals "
            f"check`); then record again."
        )
    lookups = ledger_lookups(ledger, str(path))
    if lookups is None:
        raise LedgerError(f"{path}: its KV events contain no lookup; record for longer, or while requests arrive")
    return replace(lookups, notes=notes)


def ledger_lookups(ledger: LedgerSide, title: str) -> Lookups | None:
    """The lookups that a ledger has seen, with the blocks of its largest engine; None where it has seen none."""
    accesses = ledger.accesses()
    if accesses is None or not len(accesses):
        return None
    pools = [watched.ledger.pool for watched in ledger.engines.values() if watched.ledger.pool]
    return Lookups(accesses, title, max(pools, default=None))


def agent_lookups(url: str) -> Lookups:
    """Ask a running agent for its latest lookups. Raises LedgerError, AgentError."""
    client = AgentClient(url)
    accesses = client.accesses()
    if accesses is None:
        raise LedgerError(
            f"the agent at {url} has no lookups yet. Engines must publish KV events: `kvitals check` names the flag."
        )
    report = client.cache() or {}
    pools = [pool for engine in report.get("engines", []) if isinstance(pool := engine.get("pool_blocks"), int)]
    return Lookups(accesses, url, max(pools, default=None))


def parse_capacity(text: str, lookups: Lookups) -> int | None:
    """Blocks of a node; None for `inf`. Raises UsageError."""
    text = text.strip()
    if text == "inf":
        return None
    if not text.endswith("x"):
        return parse_size(text, lookups.accesses.block_size, "--capacity")
    if lookups.today is None:
        raise UsageError(f"--capacity {text}: today's capacity is unknown; give it with --today BLOCKS")
    return _whole(text.removesuffix("x"), lookups.today, f"--capacity {text}")


def parse_size(text: str, block_size: int, option: str) -> int:
    """`1953` blocks or `3000000t` tokens as whole blocks. Raises UsageError."""
    tokens = text.endswith("t")
    return _whole(text.removesuffix("t"), 1 / block_size if tokens else 1, f"{option} {text}")


def _whole(text: str, unit: float, where: str) -> int:
    try:
        blocks = math.floor(float(text) * unit + 1e-9)
    except (ValueError, OverflowError):
        blocks = 0
    if not 1 <= blocks <= MAX_BLOCKS:
        raise UsageError(
            f"{where}: not a capacity of at least one block; write blocks (1953), tokens (3000000t), 2x or inf"
        )
    return blocks
