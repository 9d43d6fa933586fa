"""What the window knows of an engine's pace: first tokens, output, queue, prefill, by the second."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.types import METRIC_NAME, InstantRow, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

OLD_SECONDS = 60.0
"""What was read longer ago is not known any more."""

FACT_SECONDS = 300.0
"""How old what rarely changes may be."""

PREFILL_SECONDS = 300.0
"""Over which the speed of prefill is measured."""

MIN_PREFILL_TOKENS = 1_000.0

COUNTERS = {
    "requests": "kvitals_ttft_seconds_count",
    "ttft": "kvitals_ttft_seconds_sum",
    "output": "kvitals_generation_tokens_total",
    "prefill": "kvitals_prefill_seconds_sum",
    "computed": "kvitals_request_computed_tokens_sum",
}


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one second; None is unknown."""

    requests: float | None = None  # that got their first token
    ttft: float | None = None  # seconds until then, of all of them together
    late: float | None = None  # of them, those beyond the objective
    output: float | None = None  # tokens
    waiting: float | None = None
    running: float | None = None


class EnginePace:
    """Of one engine, from the pages that were read of it. Between two pages it is what it was between those before."""

    def __init__(self, window: Window, engine: str) -> None:
        self._window = window
        self._engine = engine
        self._read: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=2)  # the last two pages
        self._prefills: deque[tuple[float, float, float]] = deque()  # when, seconds, tokens: counters

    def at(self, t: float) -> Pace:
        """What is known at `t`."""
        found, when = self._counters(t)
        if found and (not self._read or when > self._read[-1][0]):
            self._read.append((when, found))
            self._keep_prefill(when, found)
        rates: dict[str, float] = {}
        if len(self._read) == 2 and t - self._read[-1][0] <= OLD_SECONDS:
            (before, old), (now, new) = self._read
            rates = {name: (new[name] - old[name]) / (now - before) for name in new if name in old}
        return Pace(
            requests=_counted(rates, "requests"),
            ttft=_counted(rates, "ttft"),
            late=_counted(rates, "late"),
            output=_counted(rates, "output"),
            waiting=self._sum("kvitals_requests_waiting", t, OLD_SECONDS),
            running=self._sum("kvitals_requests_running", t, OLD_SECONDS),
        )

    def prefill_rate(self) -> float | None:
        """Prompt tokens that a second of a request's prefill computes, as measured of late."""
        if len(self._prefills) < 2:
            return None
        (_, seconds, tokens), (_, later, more) = self._prefills[0], self._prefills[-1]
        enough = more - tokens >= MIN_PREFILL_TOKENS and later > seconds
        return (more - tokens) / (later - seconds) if enough else None

    def objective(self, t: float) -> float | None:
        """Seconds that the slowest hundredth of first tokens may take."""
        for labels, value in self._values("kvitals_slo_seconds", t, FACT_SECONDS):
            if labels.get("slo") == "ttft_p99" and not labels.get("class"):
                return value
        return None

    def gpus(self, t: float) -> float | None:
        """GPUs that the engine uses."""
        return self._sum("kvitals_engine_gpus", t, FACT_SECONDS)

    def _counters(self, t: float) -> tuple[dict[str, float], float]:
        found = {
            name: total for name, family in COUNTERS.items() if (total := self._sum(family, t, OLD_SECONDS)) is not None
        }
        objective = self.objective(t)
        late = self._beyond(objective, t) if objective is not None else None
        if late is not None:
            found["late"] = late
        return found, self._when(t)

    def _beyond(self, seconds: float, t: float) -> float | None:
        """First tokens later than that so far; inside a bucket they are taken to lie evenly."""
        counts: dict[float, float] = {}
        for labels, value in self._values("kvitals_ttft_seconds_bucket", t, OLD_SECONDS):
            bound = bucket_bound(labels.get("le", ""))
            if bound is not None:
                counts[bound] = counts.get(bound, 0.0) + value
        total, lower, below = counts.get(float("inf")), 0.0, 0.0
        if total is None:
            return None
        for bound in sorted(counts):
            if bound >= seconds:
                share = (seconds - lower) / (bound - lower) if bound < float("inf") else 0.0
                return total - (below + (counts[bound] - below) * share)
            lower, below = bound, counts[bound]
        return 0.0

    def _keep_prefill(self, when: float, found: Mapping[str, float]) -> None:
        if "prefill" not in found or "computed" not in found:
            return
        kept = self._prefills
        if kept and found["prefill"] < kept[-1][1]:  # it was restarted
            kept.clear()
        kept.append((when, found["prefill"], found["computed"]))
        while kept[0][0] < when - PREFILL_SECONDS:
            kept.popleft()

    def _when(self, t: float) -> float:
        return max((row.time for row in self._rows(COUNTERS["requests"], t, OLD_SECONDS)), default=float("-inf"))

    def _sum(self, family: str, t: float, old: float) -> float | None:
        values = [value for _, value in self._values(family, t, old)]
        return sum(values) if values else None

    def _values(self, family: str, t: float, old: float) -> list[tuple[Mapping[str, str], float]]:
        return [
            (labels, float(value))
            for row in self._rows(family, t, old)
            for labels, value, stale in zip(row.labels, row.values, is_stale(row.values), strict=True)
            if not stale and value == value
        ]

    def _rows(self, family: str, t: float, old: float) -> list[InstantRow]:
        matchers = (Matcher(METRIC_NAME, MatchOp.EQ, family), Matcher("engine", MatchOp.EQ, self._engine))
        return self._window.newest(matchers, t - old, t)


def _counted(rates: Mapping[str, float], name: str) -> float | None:
    rate = rates.get(name)
    return rate if rate is not None and rate >= 0 else None
