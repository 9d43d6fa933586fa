"""The objective that a request was to meet, as the window has it for its engine and for its tenant's class.

So a recording is judged as the configuration of its replay says, like everything else in it.
"""

from __future__ import annotations

from collections.abc import Callable

from kvitals.agent.requests.record import RequestRecord
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

ClassOf = Callable[[str], str]
"""The class of a tenant, by what stands for it; empty where it has none."""

AGAIN_SECONDS = 30.0
"""How long what was found for an engine and a class holds."""

LOOKBACK_SECONDS = 300.0
MAX_FOUND = 4096


class TtftObjectives:
    """Looks up objectives for the time to first token."""

    def __init__(self, window: Window, class_of: ClassOf = lambda _: "") -> None:
        self._window = window
        self._class_of = class_of
        self._found: dict[tuple[str, str], tuple[float, float | None]] = {}  # engine, class -> when, seconds

    def __call__(self, record: RequestRecord) -> float | None:
        """The seconds for a request: of its tenant's class, where that has an objective on its engine, else of the
        engine. None where the engine is not known or nothing is asked of it."""
        engine = record.engines.get("unified") or record.engines.get("decode") or ""
        if not engine:
            return None
        class_ = self._class_of(record.tenant)
        special = self._of(engine, class_, record.end) if class_ else None
        return special if special is not None else self._of(engine, "", record.end)

    def _of(self, engine: str, class_: str, t: float) -> float | None:
        at, seconds = self._found.get((engine, class_), (float("-inf"), None))
        if abs(t - at) > AGAIN_SECONDS:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            seconds = self._newest(engine, class_, t)
            self._found[engine, class_] = t, seconds
        return seconds

    def _newest(self, engine: str, class_: str, t: float) -> float | None:
        wanted = {METRIC_NAME: "kvitals_slo_seconds", "engine": engine, "slo": "ttft_p99", "class": class_}
        matchers = [Matcher(name, MatchOp.EQ, value) for name, value in wanted.items()]
        newest: tuple[float, float] | None = None
        for frame in self._window.select(matchers, t - LOOKBACK_SECONDS, t + AGAIN_SECONDS):
            for time, values in zip(frame.times, frame.values, strict=True):
                for value in values[~is_stale(values)]:
                    if newest is None or float(time) >= newest[0]:
                        newest = float(time), float(value)
        return newest[1] if newest is not None else None
