"""How the sources of parts fare, as families, from their records alone.

parts_in = PartsIn(window, {"cluster": "c", "node": "n"})
parts_in.feed(record)      # pure; a replay feeds recorded ones
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from agent.requests.part import PartsRecord
from series.types import METRIC_NAME, Labels
from series.window import Group, Window

ROW_SECONDS = 1.0
"""Records may come many times a second, rows do not."""

MAX_SOURCES = 64
MAX_REASONS = 32
MAX_LABEL = 64
OTHER = "other"

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A family and the labels that its series has beside the node's."""


class PartsIn:
    """Counts what sources bring into a window."""

    def __init__(self, window: Window, labels: Mapping[str, str]) -> None:
        """`labels` are the node's."""
        self._window = window
        self._labels = dict(labels)
        self._sources: dict[str, _Source] = {}

    def feed(self, record: PartsRecord) -> None:
        """Count a record. Sources beyond the first ones are not counted."""
        name = record.source[:MAX_LABEL]
        source = self._sources.get(name)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                return
            source = self._sources[name] = _Source(name, self._window.group(f"parts {name}"), self._labels)
        source.feed(record)

    def advance(self, t: float) -> None:
        """Write the rows that are due: of a source that speaks now and then, what it said last would stay untold."""
        for source in self._sources.values():
            source.advance(t)


@dataclass
class _Source:
    name: str
    group: Group
    labels: Mapping[str, str]
    parts: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)  # reasons that have a sample; the first one is 0, so that it can rise
    waiting: int = 0
    state: tuple[str, str] = ("", "")
    row_at: float = -1e18
    live: dict[Key, int] = field(default_factory=dict)  # series of the last row -> column
    untold: PartsRecord | None = None  # the last record, where no row was written since

    def feed(self, record: PartsRecord) -> None:
        first = not self.live
        self.waiting = max(self.waiting, record.waiting)
        if first:
            self._row(record, record.t)  # at 0, as counters begin
        self.parts += len(record.parts)
        for reason, count in record.dropped.items():
            known = reason if reason in self.dropped or len(self.dropped) < MAX_REASONS else OTHER
            self.dropped[known[:MAX_LABEL]] = self.dropped.get(known[:MAX_LABEL], 0) + max(count, 0)
        self.untold = record
        state = record.state[:MAX_LABEL], record.reason[:MAX_LABEL]
        if not first and (state != self.state or abs(record.t - self.row_at) >= ROW_SECONDS):
            self._row(record, record.t)

    def advance(self, t: float) -> None:
        if self.untold is not None and abs(t - self.row_at) >= ROW_SECONDS:
            self._row(self.untold, t)

    def _row(self, record: PartsRecord, t: float) -> None:
        self.state, self.row_at, self.untold = (record.state[:MAX_LABEL], record.reason[:MAX_LABEL]), t, None
        source = ("source", self.name)
        row: dict[Key, float] = {
            ("kvitals_sense_state", (("sense", self.name), ("state", self.state[0]), ("reason", self.state[1]))): 1.0,
            ("kvitals_parts_total", (source,)): float(self.parts),
            ("kvitals_parts_waiting", (source,)): float(self.waiting),
        }
        for reason, count in self.dropped.items():
            key: Key = ("kvitals_parts_dropped_total", (source, ("reason", reason)))
            row[key] = float(count) if reason in self.said else 0.0
        self.said = set(self.dropped)
        self.waiting = 0
        self.group.end([column for key, column in self.live.items() if key not in row])
        placed: dict[Key, int] = {}
        for key in row:
            column = self.live[key] if key in self.live else self.group.column(self._named(key))
            if column is not None:
                placed[key] = column
        self.live = placed
        values = np.fromiter((row[key] for key in placed), np.float64, len(placed))
        self.group.append(t, np.fromiter(placed.values(), np.intp, len(placed)), values)

    def _named(self, key: Key) -> Labels:
        family, labels = key
        return Labels({**self.labels, **dict(labels), METRIC_NAME: family})
