"""How listening to KV events fares, as families, from the records alone.

events_in = KvEventsIn(window)
events_in.feed(record, {"engine": "host:8000/0", "node": "n"})      # pure; a replay feeds recorded ones
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.ledger.event import KvEventsRecord
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

MAX_PUBLISHERS = 1024
MAX_REASONS = 16
MAX_LABEL = 64
OTHER = "other"

_COUNTERS = ("batches", "batches_replayed", "batches_lost", "gaps", "late", "restarts")


class KvEventsIn:
    """Counts what publishers bring into a window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._publishers: dict[tuple[str, str], _Publisher] = {}

    def feed(self, record: KvEventsRecord, labels: Mapping[str, str]) -> None:
        """Count a record. labels: of the engine's series. Publishers beyond the first ones are not counted."""
        key = record.target, record.rank[:MAX_LABEL]
        publisher = self._publishers.get(key)
        if publisher is None:
            if len(self._publishers) >= MAX_PUBLISHERS:
                return
            rows = GaugeRows(self._window, f"kv events {key[0]} {key[1]}")
            publisher = self._publishers[key] = _Publisher(rows)
        publisher.feed(record, labels)

    def gone(self, target: str) -> None:
        """A target is watched no more."""
        for key in [one for one in self._publishers if one[0] == target]:
            del self._publishers[key]
            self._window.drop_group(f"kv events {key[0]} {key[1]}")


@dataclass
class _Publisher:
    rows: GaugeRows
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))
    dropped: dict[str, int] = field(default_factory=dict)
    newest: float | None = None  # the engine's clock in the last batch
    seconds: float = 0.0
    row_at: float | None = None

    def feed(self, record: KvEventsRecord, labels: Mapping[str, str]) -> None:
        """Count a record. One look may give several, all of one time: what is beyond the first is in the next row."""
        if self.row_at is None:
            self._write(record, labels)  # at 0, as counters begin
            self.row_at = record.t
        self._count(record)
        if record.t > self.row_at:
            self._write(record, labels)
            self.row_at, self.seconds = record.t, 0.0

    def _count(self, record: KvEventsRecord) -> None:
        lost = max(record.lost, 0)
        found = (len(record.batches), record.replayed, lost, bool(record.lost), record.late, record.restarted)
        for name, number in zip(_COUNTERS, found, strict=True):
            self.counts[name] += int(number)
        for reason, number in record.dropped.items():
            known = reason if reason in self.dropped or len(self.dropped) < MAX_REASONS else OTHER
            self.dropped[known[:MAX_LABEL]] = self.dropped.get(known[:MAX_LABEL], 0) + max(number, 0)
        if record.batches:
            self.newest = record.batches[-1].at
        self.seconds += record.seconds

    def _write(self, record: KvEventsRecord, labels: Mapping[str, str]) -> None:
        def named(family: str, **more: str) -> Labels:
            return Labels({**labels, **more, METRIC_NAME: f"kvitals_kv_event_{family}"})

        row = {
            named("up"): float(record.state == "ok"),
            named("state", state=record.state[:MAX_LABEL], reason=record.reason[:MAX_LABEL]): 1.0,
            named("duration_seconds"): self.seconds,
        }
        row |= {named(f"{name}_total"): float(count) for name, count in self.counts.items()}
        row |= {named("dropped_total", reason=reason): float(count) for reason, count in self.dropped.items()}
        if self.newest is not None:
            row[named("age_seconds")] = max(record.t - self.newest, 0.0)
        self.rows.write(record.t, row)
