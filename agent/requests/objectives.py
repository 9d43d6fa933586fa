"""The objective that a request was to meet, as the window has it for its engine.

So a recording is judged as the configuration of its replay says, like everything else in it.
"""

from __future__ import annotations

from agent.requests.record import RequestRecord
from series.types import METRIC_NAME, Matcher, MatchOp, is_stale
from series.window import Window

AGAIN_SECONDS = 30.0
"""How long what was found for an engine holds."""

LOOKBACK_SECONDS = 300.0
MAX_ENGINES = 256


class TtftObjectives:
    """Looks up objectives for the time to first token."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._found: dict[str, tuple[float, float | None]] = {}  # engine -> when, seconds

    def __call__(self, record: RequestRecord) -> float | None:
        """The seconds for a request; None where its engine is not known or nothing is asked of it."""
        engine = record.engines.get("unified") or record.engines.get("decode") or ""
        at, seconds = self._found.get(engine, (float("-inf"), None))
        if engine and abs(record.end - at) > AGAIN_SECONDS:
            if len(self._found) >= MAX_ENGINES:
                self._found.clear()
            seconds = self._newest(engine, record.end)
            self._found[engine] = record.end, seconds
        return seconds

    def _newest(self, engine: str, t: float) -> float | None:
        wanted = {METRIC_NAME: "kvitals_slo_seconds", "engine": engine, "slo": "ttft_p99", "class": ""}
        matchers = [Matcher(name, MatchOp.EQ, value) for name, value in wanted.items()]
        newest: tuple[float, float] | None = None
        for frame in self._window.select(matchers, t - LOOKBACK_SECONDS, t + AGAIN_SECONDS):
            for time, values in zip(frame.times, frame.values, strict=True):
                for value in values[~is_stale(values)]:
                    if newest is None or float(time) >= newest[0]:
                        newest = float(time), float(value)
        return newest[1] if newest is not None else None
