"""Metrics pages of loaded engines that go on changing, made from recorded ones.

Which series move, and how far in proportion to each other, is read off recordings of one engine under load.
From there a page is advanced a second at a time: histograms get observations that are distributed as the recorded
ones were, counters rise in proportion, gauges take values that they had.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

RECORDED = Path(__file__).parent.parent / "tests" / "fixtures" / "exposition"
REQUESTS_PER_SECOND = 8.0
_REQUESTS = "vllm:e2e_request_latency_seconds_count"


@dataclass
class _Histogram:
    """Lines of one histogram, and how its observations were distributed between the recordings."""

    buckets: list[int]
    weights: list[float]
    total: int
    count: int
    rate: float  # observations per second
    mean: float


class Engine:
    """One engine's page. `advance()` lets a second pass, `page()` is its text now."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        lines = _lines("vllm-0.32-after.prom")
        names = [_name(line) for line in lines]
        early, middle, late = (_values(f"vllm-0.32-{state}.prom") for state in ("preload", "loaded", "after"))
        self._heads = [f"{name} " if name else line for name, line in zip(names, lines, strict=True)]
        self._values = [late.get(name, 0.0) for name in names]
        self._comments = {i for i, name in enumerate(names) if not name}
        moved = {name: value - early.get(name, 0.0) for name, value in late.items()}
        speed = REQUESTS_PER_SECOND / sum(d for name, d in moved.items() if name.startswith(_REQUESTS))
        self._histograms = _histograms(names, moved, speed)
        self._counters: list[tuple[int, float]] = []  # line, rise per second
        self._gauges: list[tuple[int, list[float]]] = []  # line, values that it had
        parts = {line for h in self._histograms for line in (*h.buckets, h.total, h.count)}
        for i, name in enumerate(names):
            had = [page[name] for page in (early, middle, late) if name in page]
            if i in parts or len(set(had)) < 2:
                continue
            if "_total" in name:
                self._counters.append((i, moved[name] * speed))
            else:
                self._gauges.append((i, had))

    def advance(self) -> None:
        """Let a second pass."""
        rng, values = self._random, self._values
        for histogram in self._histograms:
            n = _whole(rng, histogram.rate)
            for bucket in rng.choices(range(len(histogram.buckets)), histogram.weights, k=n):
                for line in histogram.buckets[bucket:]:
                    values[line] += 1.0
            values[histogram.count] += n
            total = n * histogram.mean * rng.uniform(0.8, 1.2)
            values[histogram.total] += total if "seconds" in self._heads[histogram.total] else round(total)
        for line, rate in self._counters:
            step = rate * rng.uniform(0.5, 1.5)
            values[line] += step if "seconds" in self._heads[line] else _whole(rng, step)
        for line, had in self._gauges:
            values[line] = rng.uniform(min(had), max(had)) if max(had) <= 1.0 else rng.choice(had)

    def page(self) -> bytes:
        """The page as the engine would serve it now."""
        lines = enumerate(zip(self._heads, self._values, strict=True))
        text = (head if i in self._comments else f"{head}{value!r}" for i, (head, value) in lines)
        return ("\n".join(text) + "\n").encode()


def _histograms(names: list[str], moved: dict[str, float], speed: float) -> list[_Histogram]:
    lines = {name: i for i, name in enumerate(names) if name}
    families: dict[tuple[str, str], list[str]] = {}
    for name in lines:
        base, bucket, labels = name.partition("_bucket{")
        if bucket:
            others = ",".join(part for part in labels[:-1].split(",") if not part.startswith("le="))
            families.setdefault((base, f"{{{others}}}" if others else ""), []).append(name)
    found = []
    for (base, labels), buckets in families.items():
        total, count = f"{base}_sum{labels}", f"{base}_count{labels}"
        cumulative = [0.0, *(moved[name] for name in buckets)]
        weights = [max(b - a, 0.0) for a, b in pairwise(cumulative)]
        if moved[count] > 0 and sum(weights) > 0:
            rate, mean = moved[count] * speed, moved[total] / moved[count]
            found.append(_Histogram([lines[b] for b in buckets], weights, lines[total], lines[count], rate, mean))
    return found


def _lines(file: str) -> list[str]:
    return (RECORDED / file).read_text(encoding="utf-8").splitlines()


def _values(file: str) -> dict[str, float]:
    return {_name(line): float(line.rpartition(" ")[2]) for line in _lines(file) if _name(line)}


def _name(line: str) -> str:
    """The series of a line; empty for a comment."""
    return "" if line.startswith("#") else line.rpartition(" ")[0]


def _whole(rng: random.Random, x: float) -> int:
    """A whole number that is x on average."""
    return int(x) + (rng.random() < x - int(x))
