"""KV cache sizes that engines reported when they started, by others, beside the bound and the estimate for the same."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from kvitals.diagnoser.sizing import memory
from kvitals.diagnoser.sizing.estimate import GIB, EngineSettings, Interval, kv_room
from kvitals.diagnoser.sizing.memory import GpuLayout, Precisions, precision
from kvitals.rules import catalogue

FILE = "kv_published.csv"


@dataclass(frozen=True)
class PublishedCache:
    """A row. gib: of KV on each GPU, None where only tokens were published; kv_tokens: of the instance."""

    model: str
    gpu: str
    tensor: int
    utilization: float
    tokens: int
    slots: int
    weights: str
    kv: str
    gib: float | None
    kv_tokens: int | None
    version: str
    source: str

    @property
    def bytes(self) -> float:
        """Of KV on each GPU, as published or by the tokens."""
        if self.gib is not None:
            return self.gib * GIB
        found = catalogue.model(self.model)
        return memory.kv_on_gpu(found, float(self.kv_tokens or 0), precision(self.kv).bytes, self.tensor)


@dataclass(frozen=True)
class CacheComparison:
    """bound: bytes that no engine with that share of the GPU can have for KV on each; room: the estimate."""

    bound: float
    room: Interval


@cache
def published_caches() -> tuple[PublishedCache, ...]:
    """Every row of the file."""
    with (catalogue.FOLDER / FILE).open(newline="", encoding="utf-8") as lines:
        return tuple(
            PublishedCache(
                model=row["model"],
                gpu=row["gpu"],
                tensor=int(row["tensor"]),
                utilization=float(row["utilization"]),
                tokens=int(row["tokens"]),
                slots=int(row["slots"]),
                weights=row["weights"],
                kv=row["kv"],
                gib=float(row["gib"]) if row["gib"] else None,
                kv_tokens=int(row["kv_tokens"]) if row["kv_tokens"] else None,
                version=row["version"],
                source=row["source"],
            )
            for row in csv.DictReader(lines)
        )


def compare_cache(of: PublishedCache) -> CacheComparison:
    """The bound and the estimate for a published configuration."""
    model, gpu, layout = catalogue.model(of.model), catalogue.gpu(of.gpu), GpuLayout(of.tensor)
    precisions = Precisions(precision(of.weights).bytes, precision(of.kv).bytes)
    bound = gpu.hbm * of.utilization - memory.weights_on_gpu(model, layout, precisions)
    settings = EngineSettings(of.utilization, of.tokens, of.slots)
    return CacheComparison(bound, kv_room(model, gpu, layout, precisions, settings))


def table() -> Iterator[str]:
    """A table in Markdown of all rows, for the documentation."""
    yield "| model | GPU | weights | vLLM | use | published | bound | estimate |"
    yield "|---|---|---|---|---:|---:|---:|---:|"
    for of in published_caches():
        found = compare_cache(of)
        low, likely, high = (value / GIB for value in (found.room.low, found.room.likely, found.room.high))
        mark = "" if found.room.holds(of.bytes) else " (missed)"
        version = of.version or "not stated"
        yield (
            f"| {of.model} | {of.tensor} x {of.gpu} | {of.weights} | {version} | {of.utilization:g} |"
            f" {of.bytes / GIB:.2f} | {found.bound / GIB:.2f} | {likely:.1f} ({low:.1f} to {high:.1f}){mark} |"
        )
