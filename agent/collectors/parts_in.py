"""How the sources of parts fare, as families, from their records alone.

parts_in = PartsIn(window, {"cluster": "c", "node": "n"})
parts_in.feed(record)      # pure; a replay feeds recorded ones
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvitals.agent.gauge_writer import KeyedRows
from kvitals.agent.requests.observation import PartsRecord
from kvitals.agent.series_keys import Key, node_series
from kvitals.series.window import Window

ROW_SECONDS = 1.0
"""Records may come many times a second, rows do not."""

MAX_SOURCES = 64
MAX_REASONS = 32
MAX_LABEL = 64
OTHER = "other"


class PartsIn:
    """Counts what sources bring into a window."""

    def __init__(self, window: Window, labels: Mapping[str, str]) -> None:
        """`labels` are the node's."""
        self._window = window
        self._named = node_series(labels)
        self._sources: dict[str, _Source] = {}

    def feed(self, record: PartsRecord) -> None:
        """Count a record. Sources beyond the first ones are not counted."""
        name = record.source[:MAX_LABEL]
        source = self._sources.get(name)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                return
            rows: KeyedRows[Key] = KeyedRows(self._window, f"parts {name}", self._named)
            source = self._sources[name] = _Source(name, rows)
        source.feed(record)

    def advance(self, t: float) -> None:
        """Write the rows that are due: of a source that speaks now and then, what it said last would stay untold."""
        for source in self._sources.values():
            source.advance(t)


@dataclass
class _Source:
    name: str
    rows: KeyedRows[Key]
    parts: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)  # reasons that have a sample; the first one is 0, so that it can rise
    waiting: int = 0
    state: tuple[str, str] = ("", "")
    row_at: float | None = None  # when the last row was written
    untold: PartsRecord | None = None  # the last record, where no row was written since

    def feed(self, record: PartsRecord) -> None:
        first = self.row_at is None
        self.waiting = max(self.waiting, record.waiting)
        if first:
            self._row(record, record.t)  # at 0, as counters begin
        self.parts += len(record.parts)
        for reason, count in record.dropped.items():
            known = reason if reason in self.dropped or len(self.dropped) < MAX_REASONS else OTHER
            self.dropped[known[:MAX_LABEL]] = self.dropped.get(known[:MAX_LABEL], 0) + max(count, 0)
        self.untold = record
        state = record.state[:MAX_LABEL], record.reason[:MAX_LABEL]
        if not first and (state != self.state or self._is_due(record.t)):
            self._row(record, record.t)

    def advance(self, t: float) -> None:
        if self.untold is not None and self._is_due(t):
            self._row(self.untold, t)

    def _is_due(self, t: float) -> bool:
        return self.row_at is None or abs(t - self.row_at) >= ROW_SECONDS

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
        self.rows.write(t, row)
