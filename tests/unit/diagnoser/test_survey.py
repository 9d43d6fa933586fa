"""How far apart a server's samples are, also where it has few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvitals.diagnoser.sources.prometheus import PrometheusQuery, PrometheusSeries
from kvitals.diagnoser.sources.survey import _interval
from kvitals.series.promql import evaluate
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher

AT = 100_000.0


class Up:
    """A server whose targets are scraped each so many seconds, since a while."""

    def __init__(self, interval: float, age: float, targets: int = 3) -> None:
        labels = [Labels({METRIC_NAME: "up", "instance": f"{n}"}) for n in range(targets)]
        times = np.arange(AT - age, AT, interval)
        self._frame = Frame(times, np.ones((len(times), targets)), labels)

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        rows = (self._frame.times >= start) & (self._frame.times <= end)
        return [Frame(self._frame.times[rows], self._frame.values[rows], self._frame.labels)] if rows.any() else []

    def one(self, question: PrometheusQuery) -> list[PrometheusSeries]:
        result: Any = evaluate(question.text, self, question.end)
        return [PrometheusSeries(dict(labels), value=(question.end, repr(value))) for labels, value in result]


@pytest.mark.parametrize("interval", [5.0, 15.0, 30.0, 60.0, 120.0])
@pytest.mark.parametrize("samples", [5.4, 12.0, 200.0])
def test_the_distance_of_samples(interval: float, samples: float) -> None:
    """A Prometheus of two minutes that scrapes each 30 s was "sampled every 120 s", and judged over 960 s."""
    assert _interval(Up(interval, interval * samples), "up", AT + 0.1, float("-inf")) == interval  # type: ignore[arg-type]


def test_two_samples_are_too_few_for_a_distance() -> None:
    assert _interval(Up(30.0, 45.0), "up", AT, float("-inf")) in (120.0, 180.0, 300.0)  # type: ignore[arg-type]
