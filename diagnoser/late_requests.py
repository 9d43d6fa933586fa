"""Whether more first tokens or gaps were late in a short time than chance explains.

An objective for p99 allows one in a hundred to be late. Of the few dozen requests of ten seconds one that is late is
more than that, and means nothing yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvitals.rules.expressions import expression
from kvitals.rules.model import SCOPES, Quantity
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.promql import evaluate
from kvitals.series.types import Labels, SeriesSource

ALLOWED = 0.01
"""Of requests, by an objective for their 99th percentile."""
DEVIATIONS = 3.0
"""Standard deviations by which the number of late ones has to be above what is allowed."""
HISTOGRAMS: Mapping[Quantity, tuple[str, str]] = {
    "ttft": ("kvitals_ttft_seconds_bucket", "ttft_p99"),
    "itl": ("kvitals_itl_seconds_bucket", "itl_p99"),
}
"""By what a symptom is about: the histogram, and the objective that it is held against."""

_BY = ", ".join(SCOPES["engine"])


def late_beyond_chance(source: SeriesSource, quantity: Quantity, entity: Labels, at: float, seconds: float) -> bool:
    """Whether so many were late at an engine in the `seconds` before `at`. False where it has no objective or no
    histogram. What lies in the bucket of the objective counts as in time."""
    family, objective = HISTOGRAMS[quantity]
    limits = _values(source, f'max by ({_BY}) (kvitals_slo_seconds{{slo="{objective}",class=""}})', entity, at)
    grown = _values(source, f"sum by ({_BY}, le) (increase({family}[{round(seconds)}s]))", entity, at)
    bounds = {bound: value for labels, value in grown if (bound := bucket_bound(labels.get("le", ""))) is not None}
    if not limits or math.inf not in bounds:
        return False
    limit, total = max(value for _, value in limits), bounds[math.inf]
    in_time = bounds[min((bound for bound in bounds if bound >= limit), default=math.inf)]
    return beyond_chance(total - in_time, total)


def beyond_chance(late: float, total: float) -> bool:
    """Whether `late` of `total` are more than what is allowed, by the error of counting so few."""
    return late - DEVIATIONS * math.sqrt(max(late, 0.0)) > ALLOWED * total


def _values(source: SeriesSource, text: str, entity: Labels, at: float) -> list[tuple[Labels, float]]:
    found = evaluate(expression(text), source, at)
    assert not isinstance(found, float)
    return [(labels, float(value)) for labels, value in found if labels.keep(tuple(entity)) == entity]
