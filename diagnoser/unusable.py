"""Metrics whose values are not used, because they cannot be true: which ones, and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvitals.rules.value_bounds import REASONS
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, SeriesSource, is_stale

UNUSABLE = "kvitals_family_unusable"
MAX_LISTED = 3
"""Metrics that a sentence names."""
TO_DO = "Check the engine, and any proxy before its metrics page; `kvitals check` lists these metrics."


def unusable_metrics(source: SeriesSource, start: float, at: float) -> Sequence[Labels]:
    """The series of the metrics whose newest values between two times, in seconds since the epoch, are not used."""
    frames = source.select([Matcher(METRIC_NAME, MatchOp.EQ, UNUSABLE)], start, at)
    rows = [(labels, frame.values[-1:, i]) for frame in frames for i, labels in enumerate(frame.labels)]
    return sorted((labels for labels, newest in rows if len(newest) and not is_stale(newest)[0]), key=str)


def of_family(found: Iterable[Labels], family: str | None, entity: Labels) -> Labels | None:
    """The series of an entity's family; None where its values are used."""
    own = (labels for labels in found if labels.get("family") == family and labels.keep(tuple(entity)) == entity)
    return next(own, None)


def metric_text(labels: Mapping[str, str]) -> str:
    """One of the metrics: `num_requests_running (below 0)`."""
    reason = labels.get("reason", "")
    return f"{labels.get('raw', '')} ({REASONS.get(reason, reason)})"


def impossible(found: Iterable[Labels]) -> list[Labels]:
    """Of these series, those of values that cannot be true; a gauge that is NaN has no value, which is no fault."""
    return [labels for labels in found if labels.get("reason") != "not_a_number"]


def sentence(found: Sequence[Labels], families: Iterable[str] = (), who: str = "The engine reports") -> str:
    """Which metrics are not used, and what to do; empty where there are none. families: to name first, in order.
    who: reports them."""
    place = {family: i for i, family in enumerate(families)}
    ordered = sorted(found, key=lambda labels: place.get(labels.get("family", ""), len(place)))
    listed = list(dict.fromkeys(map(metric_text, ordered)))
    if not listed:
        return ""
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return f"{who} values that cannot be used: {', '.join(listed[:MAX_LISTED])}{more}. {TO_DO}"
