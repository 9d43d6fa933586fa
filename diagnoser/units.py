"""Numbers that are used and cannot be: sums below 0, latencies of days. Others are left out as they come in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.loader import family_of
from kvitals.rules.model import Family
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher, SeriesSource, is_stale

MAX_MEAN_SECONDS = 86_400.0

WRONG_UNIT = "the unit changed with the version, or the page is not the engine's own"
WRONG_SUM = (
    "vLLM adds a wrong time when a KV transfer fails; its means since the start stay wrong until a restart, and "
    "rates are right over intervals without such a failure"
)


def oddities(
    source: SeriesSource, of: Sequence[Matcher], span: EvaluationSpan, families: dict[str, Family]
) -> Iterator[tuple[str, str]]:
    """What can not be among the newest values of an entity's series, in words, and what it may come from."""
    latest = dict(_latest(source.select(list(of), span.at - span.fast, span.at)))
    for labels, value in latest.items():
        name = labels[METRIC_NAME]
        family = families.get(family_of(name, families) or "")
        if family is None:
            continue
        if value < 0 and family.type in ("counter", "histogram"):
            yield f"{name} is {value:g}, but a sum of durations or counts is never below 0", WRONG_SUM
        if name.endswith("_seconds_sum"):
            count = latest.get(labels.with_(**{METRIC_NAME: name.removesuffix("_sum") + "_count"}), 0.0)
            if count > 0 and value / count > MAX_MEAN_SECONDS:
                yield (
                    f"{name.removesuffix('_sum')} is {value / count:,.0f} s on average, which is more than a day",
                    WRONG_UNIT,
                )


def _latest(frames: Sequence[Frame]) -> Iterator[tuple[Labels, float]]:
    for frame in frames:
        there = ~(is_stale(frame.values) | np.isnan(frame.values))
        for column, labels in enumerate(frame.labels):
            rows = np.flatnonzero(there[:, column])
            if rows.size:
                yield labels, float(frame.values[rows[-1], column])
