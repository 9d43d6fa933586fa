"""How history fares, as families."""

from __future__ import annotations

from collections.abc import Mapping

from kvitals.series.history.writer import HistoryStatus
from kvitals.series.types import METRIC_NAME, Labels


def series(status: HistoryStatus, labels: Mapping[str, str]) -> dict[Labels, float]:
    """The series of a status; `labels` are this node's. What is not known has none."""
    values = {
        "committed_timestamp_seconds": status.committed,
        "oldest_timestamp_seconds": status.oldest,
        "bytes": float(status.bytes) if status.committed is not None else None,
        "series": float(status.series) if status.committed is not None else None,
        "write_seconds": status.write_seconds,
    }
    found = {_labels(name, labels): value for name, value in values.items() if value is not None}
    found[_labels("state", labels, state=status.state, reason=status.reason)] = 1.0
    for reason, count in status.dropped.items():
        found[_labels("dropped_total", labels, reason=reason)] = float(count)
    return found


def _labels(name: str, labels: Mapping[str, str], **more: str) -> Labels:
    return Labels({METRIC_NAME: f"kvitals_history_{name}", **labels, **more})
