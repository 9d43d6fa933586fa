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


def late_engines(source: SeriesSource, quantity: Quantity, at: float, seconds: float) -> list[Labels]:
    """The engines at which more were late in the `seconds` before `at` than chance explains."""
    found = late_and_all(source, quantity, at, seconds)
    return [engine for engine, (late, total) in found.items() if beyond_chance(late, total)]


def late_and_all(
    source: SeriesSource, quantity: Quantity, at: float, seconds: float
) -> dict[Labels, tuple[float, float]]:
    """How many were late in the `seconds` before `at`, and how many there were, by engine. An engine without an
    objective or a histogram is none of them. What lies in the bucket of the objective counts as in time."""
    family, objective = HISTOGRAMS[quantity]
    limits = dict(_values(source, f'max by ({_BY}) (kvitals_slo_seconds{{slo="{objective}",class=""}})', at))
    grown: dict[Labels, dict[float, float]] = {}
    for labels, value in _values(source, f"sum by ({_BY}, le) (increase({family}[{round(seconds)}s]))", at):
        if (bound := bucket_bound(labels.get("le", ""))) is not None:
            grown.setdefault(labels.drop("le"), {})[bound] = value
    return {
        engine: (bounds[math.inf] - bounds[min(bound for bound in bounds if bound >= limits[engine])], bounds[math.inf])
        for engine, bounds in grown.items()
        if engine in limits and math.inf in bounds
    }


def beyond_chance(late: float, total: float) -> bool:
    """Whether `late` of `total` are more than what is allowed, by the error of counting so few."""
    return late - DEVIATIONS * math.sqrt(max(late, 0.0)) > ALLOWED * total


def _values(source: SeriesSource, text: str, at: float) -> list[tuple[Labels, float]]:
    found = evaluate(expression(text), source, at)
    assert not isinstance(found, float)
    return [(labels, float(value)) for labels, value in found]
