"""What every source of answers can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.lookups import Lookups
from kvitals.app.request_sources import RequestAnswer, RequestQuery
from kvitals.rules.finding import Triage

MAX_STEPS = 200
"""Points of a line: one for every four pixels of a chart, which are what drawing takes its time for."""

MAX_LINES = 200
"""Of one answer; others are left out, and that is said."""


@dataclass(frozen=True)
class PageWindow:
    """The window that is looked at, in seconds since the epoch."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class ChartLine:
    """A series: its labels, and (time, value) in order of time."""

    labels: Mapping[str, str]
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Happening:
    """Something on the time axis. `end` is None for a moment, `code` a rule's where it is a finding."""

    kind: Literal["finding", "event", "verdict"]
    title: str
    start: float
    end: float | None = None
    severity: str = ""
    entity: str = ""
    code: str = ""
    text: str = ""


@dataclass(frozen=True)
class Extent:
    """What there is: the first and the last moment, and the window that is judged when none is chosen."""

    start: float
    end: float
    window: float = 60.0


@dataclass(frozen=True)
class PastEvents:
    """What happened in a stretch of time, and why that may not be all."""

    happened: list[Happening] = field(default_factory=list)
    why_not_all: str = ""


class PageSource(Protocol):
    """Answers. Every method raises UnansweredError where there is none."""

    @property
    def kind(self) -> Literal["agent", "recording", "prometheus"]: ...

    @property
    def name(self) -> str:
        """For people; a stranger's text."""

    @property
    def live(self) -> bool:
        """Whether asking again later may tell something else."""

    def empty_pages(self) -> frozenset[str]:
        """The paths of pages for which this source has no data, as far as that is known without waiting."""

    def findings(self, look: PageWindow | None) -> Triage: ...

    def extent(self) -> Extent: ...

    def series(self, query: str, start: float, end: float) -> list[ChartLine]: ...

    def past(self, start: float, end: float) -> PastEvents: ...

    def blocks(self) -> Blocks: ...

    def requests(self, asked: RequestQuery) -> RequestAnswer: ...

    def lookups(self) -> Lookups: ...


def step_of(start: float, end: float, least: float = 1.0) -> float:
    """Seconds between the points of a line over a stretch of time."""
    return max(least, (end - start) / MAX_STEPS)
