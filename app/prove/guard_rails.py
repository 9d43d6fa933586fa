"""What ends a trial at once: limits that are set from the objectives and from the time before the change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvitals.diagnoser.text import render

WINDOW_SECONDS = 15.0
"""That a guard rail is checked over. With fewer requests than a percentile needs, the mean stands in."""
LONGEST_SECONDS = 60.0
REQUESTS_IN_WINDOW = 30.0
CONFIRMED = 2
"""Checks in a row in which the same guard rail is broken, for it to count."""
CHECK_SECONDS = 5.0
MORE_THAN_BEFORE = 1.5
"""Times the worst value before the change: the limit where an objective was missed before."""
MORE_FAILED, MORE_PREEMPTED = 0.02, 0.5
"""Of the requests, above the most in a check before the change."""
FAILED, PREEMPTED, FINISHED = "failed_per_request", "preemptions_per_request", "finished_per_second"
LATENCIES = {"ttft_p99": ("TTFT", "ttft_p99_seconds", "ttft_mean_seconds"),
             "itl_p99": ("ITL", "itl_p99_seconds", "itl_mean_seconds")}  # fmt: skip


@dataclass(frozen=True)
class GuardLimit:
    """A limit of one signal, or of another that may stand in for it. why: where the limit is from."""

    title: str
    signals: tuple[str, ...]
    most: float
    unit: str
    why: str

    @property
    def sentence(self) -> str:
        """The limit, for people."""
        return f"{self.title} at most {render(self.most, self.unit)} ({self.why})"

    def broken(self, values: Mapping[str, float]) -> str:
        """What was measured, where that is more; empty where it is not, or not known."""
        worst = max((values[name] for name in self.signals if name in values), default=0.0)
        if worst <= self.most:
            return ""
        return f"{self.title} {render(worst, self.unit)}, limit {render(self.most, self.unit)} ({self.why})"


@dataclass(frozen=True)
class GuardRails:
    """All limits of a trial."""

    limits: tuple[GuardLimit, ...]
    finishes: bool  # whether requests finished before, so that they have to after

    @property
    def sentences(self) -> list[str]:
        """The limits, for people."""
        stall = ["requests finish"] if self.finishes else []
        return [*(one.sentence for one in self.limits), *stall, "the engine answers but did not restart"]

    def broken(self, values: Mapping[str, float]) -> list[str]:
        """What is broken at a check, in the order in which it is named."""
        found = [told for one in self.limits if (told := one.broken(values))]
        waiting = values.get("running_avg", 0.0) + values.get("waiting_avg", 0.0)
        if self.finishes and values.get(FINISHED) == 0 and waiting >= 1:
            found.append(f"no request finishes, and {render(waiting, 'requests')} wait or run")
        return found


def window_seconds(finished_per_second: float) -> float:
    """How long a check is: as long as it takes for enough requests, within limits."""
    wanted = REQUESTS_IN_WINDOW / finished_per_second if finished_per_second > 0 else LONGEST_SECONDS
    return min(max(WINDOW_SECONDS, wanted), LONGEST_SECONDS)


def guard_rails(objectives: Mapping[str, float], before: Iterable[Mapping[str, float]]) -> GuardRails:
    """The limits. objectives: name -> seconds. before: the signals of each check before the change."""
    checks = list(before)
    return GuardRails(tuple(_limits(objectives, checks)), any(one.get(FINISHED, 0.0) > 0 for one in checks))


def _limits(objectives: Mapping[str, float], checks: list[Mapping[str, float]]) -> Iterator[GuardLimit]:
    for name, (title, p99, mean) in LATENCIES.items():
        if name not in objectives:
            continue
        promised, worst = objectives[name], _most(checks, p99)
        missed = worst > promised
        yield GuardLimit(
            f"{title} p99",
            (p99, mean),
            MORE_THAN_BEFORE * worst if missed else promised,
            "seconds",
            f"1.5 times the value before, which missed {render(promised, 'seconds')}" if missed else "objective",
        )
    more = {
        FAILED: ("failed requests", MORE_FAILED, "ratio"),
        PREEMPTED: ("preemptions per request", MORE_PREEMPTED, "count"),
    }
    for signal, (title, allowed, unit) in more.items():
        yield GuardLimit(title, (signal,), _most(checks, signal) + allowed, unit, "more than before")


def _most(checks: Iterable[Mapping[str, float]], signal: str) -> float:
    return max((one[signal] for one in checks if signal in one), default=0.0)


class GuardWatch:
    """Checks guard rails until one has been broken several times in a row."""

    def __init__(self, rails: GuardRails) -> None:
        self._rails = rails
        self._in_a_row = 0

    def check(self, values: Mapping[str, float]) -> str:
        """What broke for good; empty where nothing did."""
        broken = self._rails.broken(values)
        self._in_a_row = self._in_a_row + 1 if broken else 0
        return "; ".join(broken) if self._in_a_row >= CONFIRMED else ""
