"""Reads an engine's own /metrics, on purpose with nothing of the product: it is what the product is held to.

    async with Watch(engine.url) as watch:
        await asyncio.sleep(10)
    print(watch.signature())

Counters are taken as what they gained, gauges as what they were on average, every half second.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
from collections.abc import Mapping
from typing import Any, Self

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
    """Watches one engine: what its counters gained and how its gauges went while the block lasted."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._snapshots: list[Snapshot] = []
        self._poller: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        self._snapshots.append(await scrape(self._session, self._url))
        self._poller = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            self._snapshots.append(await scrape(self._session, self._url))
        await self._session.close()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                self._snapshots.append(await scrape(self._session, self._url))

    def gained(self, name: str, **labels: str) -> float:
        return total(self._snapshots[-1], name, **labels) - total(self._snapshots[0], name, **labels)

    def mean(self, name: str, **labels: str) -> float:
        return statistics.fmean(total(snapshot, name, **labels) for snapshot in self._snapshots[1:])

    def signature(self) -> dict[str, Any]:
        """The numbers by which an operator would know the situation."""
        queries = self.gained("vllm:prefix_cache_queries_total")
        requests = self.gained("vllm:request_success_total")
        evicted = self.gained("vllm:kv_block_lifetime_seconds_count")
        waiting = "vllm:num_requests_waiting_by_reason"
        return {
            "requests": int(requests),
            "hit_ratio": _round(self.gained("vllm:prefix_cache_hits_total") / queries) if queries else None,
            "running": _round(self.mean("vllm:num_requests_running")),
            "waiting_capacity": _round(self.mean(waiting, reason="capacity")),
            "waiting_deferred": _round(self.mean(waiting, reason="deferred")),
            "kv_usage": _round(self.mean("vllm:kv_cache_usage_perc")),
            "kv_usage_max": _round(max(total(s, "vllm:kv_cache_usage_perc") for s in self._snapshots)),
            "preemptions": int(self.gained("vllm:num_preemptions_total")),
            "evictions_per_request": _round(evicted / requests) if requests else None,
            "reuse_gaps": int(self.gained("vllm:kv_block_reuse_gap_seconds_count")),
            "idle_before_evict": int(self.gained("vllm:kv_block_idle_before_evict_seconds_count")),
            "queue_s": self._average("vllm:request_queue_time_seconds"),
            "prefill_s": self._average("vllm:request_prefill_time_seconds"),
            "ttft_p99_s": self.quantile("vllm:time_to_first_token_seconds", 0.99),
            "itl_p99_s": self.quantile("vllm:inter_token_latency_seconds", 0.99),
        }

    def quantile(self, histogram: str, share: float) -> float | None:
        """As PromQL's histogram_quantile would see what was gained."""
        gained: dict[float, float] = {}
        for (name, labels), value in self._snapshots[-1].items():
            if name == f"{histogram}_bucket":
                bound = float(dict(labels)["le"])
                gained[bound] = gained.get(bound, 0.0) + value - self._snapshots[0].get((name, labels), 0.0)
        return _quantile(gained, share)

    def _average(self, histogram: str) -> float | None:
        count = self.gained(f"{histogram}_count")
        return _round(self.gained(f"{histogram}_sum") / count, 3) if count else None


def _quantile(cumulative: Mapping[float, float], share: float) -> float | None:
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
            return _round(below_bound + (bound - below_bound) * inside, 3)
        below_bound, below_count = bound, count
    return None


def _round(value: float, digits: int = 2) -> float:
    return round(value, digits)
