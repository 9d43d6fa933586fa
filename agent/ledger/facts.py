"""What the window knows of an engine that its ledger wants to know."""

from __future__ import annotations

from kvitals.series.types import METRIC_NAME, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

FACT_SECONDS = 300.0
"""How old a sample may be: pages are read every few seconds, some facts only when they change."""


class EngineFacts:
    """Asks the window. None is unknown."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def pool(self, engine: str, t: float) -> int | None:
        """Blocks that the device has for KV."""
        found = self._last("kvitals_engine_fact", engine, t, ("fact", "kv_blocks"))
        return int(found) if found is not None and 1 <= found < 1e12 else None

    def pinned(self, engine: str, t: float) -> float | None:
        """The share of the pool that requests hold."""
        found = self._last("kvitals_kv_usage_ratio", engine, t)
        return min(max(found, 0.0), 1.0) if found is not None else None

    def looked_up(self, engine: str, t: float) -> float | None:
        """Prompt tokens that were looked up, as the engine counts them."""
        return self._last("kvitals_prefix_query_tokens_total", engine, t)

    def _last(self, family: str, engine: str, t: float, label: tuple[str, str] | None = None) -> float | None:
        matchers = [Matcher(METRIC_NAME, MatchOp.EQ, family), Matcher("engine", MatchOp.EQ, engine)]
        if label is not None:
            matchers.append(Matcher(label[0], MatchOp.EQ, label[1]))
        newest: tuple[float, float] | None = None
        for frame in self._window.select(matchers, t - FACT_SECONDS, t):
            for column in frame.values.T:
                there = ~is_stale(column) & (column == column)
                if there.any():
                    at, value = float(frame.times[there][-1]), float(column[there][-1])
                    newest = (at, value) if newest is None or at >= newest[0] else newest
        return newest[1] if newest is not None else None
