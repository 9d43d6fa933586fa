"""Reads an engine's own /metrics, on purpose with nothing of the product: it is what the product is held to.

    async with Watch(engine.url) as watch:
        await asyncio.sleep(10)
    print(watch.gained("vllm:request_success_total"))

Counters are taken as what they gained, gauges as what they were on average, every half second.
"""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Mapping
from typing import Self

import aiohttp

EVERY_S = 0.5

Series = tuple[str, frozenset[tuple[str, str]]]
Snapshot = dict[Series, float]

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(text: str) -> Snapshot:
    """The samples of a Prometheus text exposition."""
    matches = filter(None, map(_LINE.match, text.splitlines()))
    return {(m[1], frozenset(_LABEL.findall(m[2] or ""))): float(m[3]) for m in matches}


def total(snapshot: Snapshot, name: str, **labels: str) -> float:
    """The sum over all series of this name that carry these labels."""
    wanted = frozenset(labels.items())
    return sum(value for (series, has), value in snapshot.items() if series == name and wanted <= has)


async def scrape(session: aiohttp.ClientSession, url: str) -> Snapshot:
    async with session.get(f"{url}/metrics") as response:
        return parse(await response.text())


class Watch:
    """Watches one server: what its counters gained and how its gauges went while the block lasted.

    Without `polling` it looks at the beginning, at the end and when it is told to.
    """

    def __init__(self, url: str, *, polling: bool = True) -> None:
        self.lost = False
        """Whether the server did not answer the last look: what it counted since is not known."""
        self._url = url
        self._polling = polling
        self._snapshots: list[Snapshot] = []
        self._poller: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        self._snapshots.append(await scrape(self._session, self._url))
        if self._polling:
            self._poller = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        await self.look()
        await self._session.close()

    async def look(self) -> None:
        """Take in the page as it is now."""
        try:
            self._snapshots.append(await scrape(self._session, self._url))
            self.lost = False
        except (aiohttp.ClientError, TimeoutError):
            self.lost = True

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    def says(self, name: str) -> bool:
        """Whether the last page had a series of this name."""
        return any(series == name for series, _ in self._snapshots[-1])

    def gained(self, name: str, **labels: str) -> float:
        return total(self._snapshots[-1], name, **labels) - total(self._snapshots[0], name, **labels)

    def mean(self, name: str, **labels: str) -> float:
        seen = self._snapshots[1:] or self._snapshots
        return statistics.fmean(total(snapshot, name, **labels) for snapshot in seen)

    def maximum(self, name: str, **labels: str) -> float:
        return max(total(snapshot, name, **labels) for snapshot in self._snapshots)

    def quantile(self, histogram: str, share: float) -> float | None:
        """As PromQL's histogram_quantile would see what was gained."""
        gained: dict[float, float] = {}
        for (name, labels), value in self._snapshots[-1].items():
            if name == f"{histogram}_bucket":
                bound = float(dict(labels)["le"])
                gained[bound] = gained.get(bound, 0.0) + value - self._snapshots[0].get((name, labels), 0.0)
        return quantile_of(gained, share)


def quantile_of(cumulative: Mapping[float, float], share: float) -> float | None:
    bounds = sorted(cumulative)
    if not bounds or cumulative[bounds[-1]] <= 0:
        return None
    rank = share * cumulative[bounds[-1]]
    below_bound = below_count = 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= rank:
            if bound == float("inf"):
                return below_bound
            inside = (rank - below_count) / (count - below_count) if count > below_count else 1.0
            return round(below_bound + (bound - below_bound) * inside, 3)
        below_bound, below_count = bound, count
    return None
