"""What kvitals says of a target itself: is it up, why not, what is it, what did we drop.

These series go on while the target is down, so they have a group of their own beside the target's families.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from kvitals.series.row_blocks import Columns
from kvitals.series.types import METRIC_NAME, STALE, Labels
from kvitals.series.window import Window


@dataclass(frozen=True)
class Identity:
    """Who a target is: its address (host:port), the name it was given, and labels from the configuration."""

    address: str
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def engine(self, rank: str | None, ranks: int) -> str:
        """The `engine` label of one rank of a page of `ranks`; None is the page as a whole.

        A configured name needs the rank behind it only where there are several. An address always has it, so
        nothing is renamed when ranks are added; only a target that never answered is its address alone.
        """
        if rank is None or (self.name and ranks == 1):
            return self.name or self.address
        return sys.intern(f"{self.name or self.address}/{rank}")  # each series of it keeps the name

    def series(self, family: str, engine: str, /, **labels: str) -> Labels:
        """The labels of a family's series of one engine."""
        return Labels({**self.labels, **labels, METRIC_NAME: family, "engine": engine})


class ScrapeOutcome(msgspec.Struct, frozen=True):
    """What one scrape came to. Sizes and counts are those of a good page."""

    reason: str
    duration: float
    size: int = 0
    samples: int = 0
    unknown: int = 0
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.reason == "ok"


DROPS = (
    *("duplicate", "own_timestamp", "falling_sum", "series_cap", "scale"),
    *("bucket_bound", "bucket_order", "clock"),
    *("out_of_range", "negative", "above_one"),
)
"""Why samples of a good page are not taken over, or not as they are."""

# What every row says, in the order of `TargetStatus.row`; a target that never answered has only the first ones.
_EVERY_ROW = (
    "kvitals_target_up",
    "kvitals_scrape_duration_seconds",
    "kvitals_scrape_age_seconds",
    "kvitals_scrape_size_bytes",
    "kvitals_scrape_samples",
    "kvitals_scrape_unknown_names",
)
_UNANSWERED = 2
STATUS = " status"
"""What a target's own group of series is called after the target."""


class TargetStatus:
    """Keeps a target's own series: one row per scrape, good or not."""

    def __init__(self, window: Window, key: str, identity: Identity) -> None:
        self._group = window.group(f"{key}{STATUS}", key)
        self._identity = identity
        self._said: dict[str, dict[Labels, float]] = {}  # topic -> its series
        self._columns: dict[Labels, int] = {}
        self._pending: dict[int, float] = {}  # column -> value of the next row
        self._each: Columns = np.empty(0, np.intp)  # columns that every row writes
        self._which: list[int] = []  # and which of `_EVERY_ROW` they have
        self._dropped = dict.fromkeys(DROPS, 0)
        self._good = ScrapeOutcome("unknown", 0.0)
        self._good_at = 0.0
        self.engines: list[str] = []
        self.answered = False
        self.last = ScrapeOutcome("unknown", 0.0)
        self._name_engines([identity.engine(None, 0)])

    def identify(self, engines: Sequence[str]) -> None:
        """The page's engines are known. The past of a target that never answered goes to the first one."""
        if self.answered and list(engines) == self.engines:
            return
        if not self.answered and engines[0] != self.engines[0]:
            self._rename(self.engines[0], engines[0])
        self.answered = True
        self._name_engines(engines)

    def say(self, topic: str, series: Mapping[Labels, float]) -> None:
        """From the next row on, these are the series of a topic; others that it had end."""
        before = self._said.get(topic, {})
        for labels in before.keys() - series.keys():
            column = self._columns.pop(labels, None)
            if column is not None:
                self._pending.pop(column, None)
                self._group.end([column])
        for labels, value in series.items():
            is_new = labels not in self._columns  # to the window, which may have refused it before
            if is_new:
                column = self._group.column(labels)
                if column is None:
                    continue
                self._columns[labels] = column
            if is_new or before.get(labels) != value:
                self._pending[self._columns[labels]] = value
        self._said[topic] = dict(series)

    def drop(self, reason: str, samples: int) -> None:
        """Count samples that were not taken over."""
        if samples:
            self._dropped[reason] += samples
            self._say_drops()

    def row(self, t: float, outcome: ScrapeOutcome) -> None:
        """Add the row of one scrape."""
        if outcome.ok:
            self._good, self._good_at = outcome, t
        if outcome.reason != self.last.reason:
            self._say_state(outcome.reason)
        self.last = outcome
        good = self._good
        age = t - self._good_at
        every = (float(outcome.ok), outcome.duration, age, good.size, good.samples, good.unknown)
        columns, values = self._each, [every[which] for which in self._which]
        if self._pending:
            columns = np.concatenate((columns, np.fromiter(self._pending, np.intp)))
            values += self._pending.values()
            self._pending.clear()
        self._group.append(t, columns, values)

    def _name_engines(self, engines: Sequence[str]) -> None:
        self.engines = list(engines)
        families = _EVERY_ROW if self.answered else _EVERY_ROW[:_UNANSWERED]
        which = {self._identity.series(name, e): i for e in engines for i, name in enumerate(families)}
        before = self._said.get("each", {})
        self.say("each", {labels: before.get(labels, STALE) for labels in which})
        placed = [(self._columns[labels], i) for labels, i in which.items() if labels in self._columns]
        for column, _ in placed:
            self._pending.pop(column, None)  # each row writes them anyway
        self._each = np.array([column for column, _ in placed], dtype=np.intp)
        self._which = [i for _, i in placed]
        self._say_state(self.last.reason)
        self._say_drops()

    def _say_state(self, reason: str) -> None:
        if reason != "unknown":
            name = "kvitals_target_state"
            self.say("state", {self._identity.series(name, e, reason=reason): 1.0 for e in self.engines})

    def _say_drops(self) -> None:
        # Nobody knows whose samples they were, so each engine of the page says the same.
        name, engines = "kvitals_scrape_dropped_total", self.engines if self.answered else []
        counts = [(engine, reason, float(n)) for engine in engines for reason, n in self._dropped.items()]
        self.say("dropped", {self._identity.series(name, e, reason=reason): n for e, reason, n in counts})

    def _rename(self, old: str, new: str) -> None:
        renamed = {labels: labels.with_(engine=new) for labels in self._columns if labels["engine"] == old}
        for before, after in renamed.items():
            self._group.relabel(self._columns[before], after)
            self._columns[after] = self._columns.pop(before)
        self._said = {
            topic: {renamed.get(labels, labels): value for labels, value in series.items()}
            for topic, series in self._said.items()
        }
