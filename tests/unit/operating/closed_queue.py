"""An engine with slots under clients who each send their next request when they have the answer, as an agent sees it.

What it does is known: how many requests are late at each load, and how much it gets done.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvitals.app.derived_metrics.operating_families import ask_source
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.steps import Steps, gather
from kvitals.series.types import METRIC_NAME, Floats, Labels
from kvitals.series.window import Window

SLOTS = 8
ALONE, GROWTH = 0.11, 0.05
"""Seconds of a request alone, and what each one beside it adds to that."""
TOKENS = 32
BOUNDS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, np.inf)  # those of vLLM's histogram that matter here
START = 1.7e9


@dataclass(frozen=True)
class Served:
    """Requests of a run, by when they ended: seconds at which each was sent, got a slot and ended."""

    sent: Floats
    begun: Floats
    ended: Floats


def run(levels: Sequence[int], seconds: float, seed: int) -> Served:
    """Serve so many clients for so long, one level after the other, each from an empty engine."""
    random = np.random.default_rng(seed)
    rows: list[tuple[float, float, float]] = []
    now = 0.0
    for clients in levels:
        until = now + seconds
        waiting = deque([now] * clients)
        busy: list[tuple[float, float, float]] = []  # ended, sent, begun
        while busy or waiting:
            while waiting and len(busy) < SLOTS:
                long = ALONE * (1 + GROWTH * len(busy)) * random.gamma(4.0, 0.25)
                heapq.heappush(busy, (now + long, waiting.popleft(), now))
            ended, sent, begun = heapq.heappop(busy)
            rows.append((sent, begun, ended))
            now = ended
            if now < until:
                waiting.append(now)
    return Served(*np.array(rows).T)


def seen(served: Served, seed: int, step: float) -> Steps:
    """What an agent makes of it whose history has rows every five seconds, and now and then one between."""
    random = np.random.default_rng(seed)
    end = float(served.ended[-1])
    times = np.unique(np.concatenate([np.arange(0, end, 5.02), random.uniform(0, end, int(end / 20))]))
    window = Window(retention=2 * end, max_series=100)
    group = window.group("engine")
    names = [
        {METRIC_NAME: ENTITIES}, {METRIC_NAME: "kvitals_requests_running"}, {METRIC_NAME: "kvitals_requests_waiting"},
        {METRIC_NAME: "kvitals_generation_tokens_total"}, {METRIC_NAME: "kvitals_requests_finished_total"},
        {METRIC_NAME: "kvitals_e2e_seconds_sum"},
        *({METRIC_NAME: "kvitals_ttft_seconds_bucket", "le": "+Inf" if np.isinf(b) else str(b)} for b in BOUNDS),
    ]  # fmt: skip
    columns = [column for name in names if (column := group.column(Labels({"engine": "a", **name}))) is not None]
    residence = np.cumsum(served.ended - served.sent)
    first = np.sort(served.begun)
    waits = (served.begun - served.sent)[np.argsort(served.begun, kind="stable")]
    sent = np.sort(served.sent)
    for t in times.tolist():
        done = int(served.ended.searchsorted(t, side="right"))
        begun, here = int(first.searchsorted(t, side="right")), int(sent.searchsorted(t, side="right"))
        buckets = [int((waits[:begun] <= bound).sum()) for bound in BOUNDS]
        total = residence[done - 1] if done else 0.0
        row = [1.0, begun - done, here - begun, TOKENS * done, done, total, *buckets]
        group.append(START + t, columns, np.array(row, dtype=np.float64))
    (steps,) = gather(ask_source(window), START, START + end, step)
    return steps


def late(clients: int, seconds: float, limit: float) -> float:
    """The share of requests of so many clients that wait for longer than the limit."""
    served = run([clients], seconds, seed=clients)
    return float((served.begun - served.sent > limit).mean())
