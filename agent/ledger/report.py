"""What the ledgers know, as one document for people and programs that ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvitals.agent.ledger.event import GPU
from kvitals.agent.ledger.reuse_curves import CAPACITIES
from kvitals.agent.ledger.tenants import LedgerTenants
from kvitals.agent.ledger.watched import WatchedEngine
from kvitals.kvcache.reuse import Curve

MAX_POINTS = 64
"""Of a curve, beside those at today's size and its multiples."""


def report(
    engines: Iterable[WatchedEngine], tenants: LedgerTenants, curves: Mapping[tuple[str, str], Curve], duplicates: int
) -> dict[str, Any]:
    """Engines with their residency, blame and curve, and tenants. Tokens everywhere; null is unknown."""
    return {
        "engines": [_engine(watched, curves.get(("engine", watched.name))) for watched in engines],
        "tenants": {
            name: {
                "lookup_tokens": sums.lookup,
                "hit_tokens": sums.hits,
                "attainable_tokens": sums.attainable or None,
                "refaulted_tokens": sums.refaulted,
                "resident_tokens": sums.resident,
                "token_seconds": sums.token_seconds,
                "curve": _curve(curves.get(("tenant", name))),
            }
            for name, sums in tenants.sums.items()
        },
        "curve": _curve(curves.get(("node", ""))),
        "duplicate_tokens": duplicates,
    }


def _engine(watched: WatchedEngine, curve: Curve | None) -> dict[str, Any]:
    ledger, blame = watched.ledger, watched.blame
    gpu = ledger.tallies.get(GPU)
    return {
        "engine": watched.name,
        "block_tokens": ledger.block_tokens,
        "pool_blocks": ledger.pool,
        "live_blocks": ledger.main.live,
        "ghost_blocks": ledger.main.ghosts,
        "confidence": ledger.share,
        "observed": watched.observed_from_start,
        "accesses": watched.sources,
        "unobserved": ledger.unobserved,
        "lookup_tokens": watched.lookup_tokens,
        "hit_tokens": watched.hit_tokens,
        "refaulted_tokens": gpu.refaulted_tokens if gpu is not None else 0,
        "resident_tokens": watched.residency.purposes,
        "owner_tokens": watched.residency.known,
        "blame": {
            "known": blame.known,
            "error": blame.error,
            "tokens": [
                {"tenant": victim, "by": by, "tokens": round(tokens, 1)}
                for (victim, by), tokens in sorted(blame.cells.items(), key=lambda cell: -cell[1])
            ],
        },
        "curve": _curve(curve, ledger.pool),
    }


def _curve(curve: Curve | None, pool: int | None = None) -> dict[str, Any] | None:
    if curve is None:
        return None
    every = max(1, -(-len(curve.capacity) // MAX_POINTS))
    sizes = {int(size) for size in curve.capacity[::-every]}
    if pool:  # today's size and its multiples, each as it is and not as the point below
        wanted = (round(times * pool) for times in CAPACITIES)
        sizes |= {size for size in wanted if curve.capacity[0] <= size <= curve.capacity[-1]}
    points = [(size, there) for size in sorted(sizes) if (there := curve.at(size)) is not None]
    return {
        "capacity_blocks": [size for size, _ in points],
        "token_hit_rate": [round(rate, 5) for _, (rate, _) in points],
        "error": [round(error, 5) for _, (_, error) in points],
        "references": round(curve.references),
        "sample_rate": curve.rate,
    }
