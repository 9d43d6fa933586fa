"""Figures of tenants in the block cache: of all that the source has seen, or of a time range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvitals.app.cache import CacheReport as Blocks
from kvitals.ui.web import data
from kvitals.ui.web.sources.base import PageWindow

COUNTERS = {
    "lookup_tokens": "kvitals_cache_tenant_lookup_tokens_total",
    "hit_tokens": "kvitals_cache_tenant_hit_tokens_total",
    "attainable_tokens": "kvitals_cache_tenant_attainable_tokens_total",
    "refaulted_tokens": "kvitals_cache_tenant_refaulted_tokens_total",
}
RESIDENT = "kvitals_cache_tenant_resident_tokens"
BLAME = "kvitals_cache_blame_tokens_total"
NOBODY = ("", "unattributed", "shared")
"""Names in the blame that are no tenant."""

Cells = Mapping[tuple[str, str], float]
"""(victim, tenant whose blocks were stored) -> tokens."""


@dataclass(frozen=True)
class TenantFigures:
    """Tokens by tenant and by name of the figure (`COUNTERS`, and `resident_tokens`), and the blame."""

    sums: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    blame: Cells = field(default_factory=dict)

    def caused(self) -> dict[str, float]:
        """Tokens of other tenants that were recomputed because of a tenant's blocks."""
        found: dict[str, float] = {}
        for (victim, by), tokens in self.blame.items():
            if victim != by:
                found[by] = found.get(by, 0.0) + tokens
        return found

    def suffered_from(self, culprit: str) -> dict[str, float]:
        """Recomputed tokens of each other tenant because of one tenant's blocks, the most first."""
        of = {victim: tokens for (victim, by), tokens in self.blame.items() if by == culprit and victim != culprit}
        return dict(sorted(of.items(), key=lambda item: -item[1]))


def of_blocks(known: Blocks) -> TenantFigures:
    """All that the source has seen."""
    blame: dict[tuple[str, str], float] = {}
    for engine in known.cache.get("engines") or []:
        for cell in engine["blame"]["tokens"]:
            pair = (cell["tenant"], cell["by"])
            blame[pair] = blame.get(pair, 0.0) + cell["tokens"]
    tenants = known.cache.get("tenants") or {}
    names = (*COUNTERS, "resident_tokens")
    sums = {
        tenant: {name: float(of[name]) for name in names if of.get(name) is not None} for tenant, of in tenants.items()
    }
    return TenantFigures(sums, blame)


def of_window(place: str, window: PageWindow) -> TenantFigures:
    """The counters at the end of a window less those at its start. Raises UnansweredError."""
    start = max(window.start, data.extent(place).start)
    sums: dict[str, dict[str, float]] = {}
    for name, family in COUNTERS.items():
        for key, tokens in _increase(place, family, ("tenant",), start, window.end).items():
            sums.setdefault(key[0], {})[name] = tokens
    for key, tokens in _at(place, RESIDENT, ("tenant",), window.end).items():
        sums.setdefault(key[0], {})["resident_tokens"] = tokens
    blame = _increase(place, BLAME, ("tenant", "by"), start, window.end)
    return TenantFigures(sums, {(key[0], key[1]): tokens for key, tokens in blame.items() if tokens > 0})


def _increase(place: str, family: str, by: tuple[str, ...], start: float, end: float) -> dict[tuple[str, ...], float]:
    """By how much a counter grew; one that was reset counts from zero."""
    before = _at(place, family, by, start)
    now = _at(place, family, by, end)
    return {key: value - before.get(key, 0.0) if value >= before.get(key, 0.0) else value for key, value in now.items()}


def _at(place: str, family: str, by: tuple[str, ...], t: float) -> dict[tuple[str, ...], float]:
    found = data.series(place, f"sum by ({', '.join(by)}) ({family})", t, t)
    return {tuple(line.labels.get(name, "") for name in by): line.points[-1][1] for line in found}
