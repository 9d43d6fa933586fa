"""Which times before and after a change are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvitals.app.since_change import _latest, _periods
from kvitals.app.timeseries_sources import TimeseriesSource
from kvitals.diagnoser.change_effect import Period, SettingChange
from kvitals.series.promql import Expr, Series
from kvitals.series.types import METRIC_NAME, Labels

GAP = 6.0
ENGINE = Labels({"engine": "eng"})
FACT = Labels({METRIC_NAME: "kvitals_engine_fact", "engine": "eng", "fact": "slots", "source": "command line"})


def history(slots: Sequence[tuple[float, float]], end: float) -> TimeseriesSource:
    """Slots since each moment; as many requests as slots all the time, in rows six seconds apart."""
    begins, values = (np.array(one) for one in zip(*slots, strict=True))

    def ask(expr: Expr, start: float, until: float, step: float) -> list[Series]:
        times = np.arange(start, until + 1e-6, step)
        times = times[times >= begins[0]]
        if not len(times):
            return []
        rows = begins[0] + np.floor((times - begins[0]) / GAP) * GAP
        told = values[np.searchsorted(begins, rows, "right") - 1]
        if "engine_fact" in str(expr):
            return [Series(FACT, times, told)]
        return [Series(ENGINE, times, told)] if "running" in str(expr) else []

    return TimeseriesSource("test", ask, begins[0], end, GAP)


def test_only_the_configuration_before_a_change_is_compared_with_the_one_after_it() -> None:
    """Seen: slots 4, 32, 4, 32 within three minutes, and a time "before" that held all of them."""
    of = history([(0.0, 4.0), (120.0, 32.0), (180.0, 4.0), (240.0, 32.0)], 312.0)
    change, begun = _latest(of)
    assert change.settings == (SettingChange("slots", "4", "32"),)
    assert (change.last, change.first, begun) == (234.0, 240.0, 180.0)
    before, after = _periods(change, begun, of)
    assert before is not None and before.end == 228.0 and before.end - before.seconds >= 195.0
    assert after == Period(312.0, 54.0)


def test_forty_seconds_of_load_after_a_change_are_enough() -> None:
    """Seen: rows six seconds apart, and 71 s of load were fewer than 15 s."""
    of = history([(0.0, 4.0), (120.0, 32.0)], 160.0)
    change, begun = _latest(of)
    before, after = _periods(change, begun, of)
    assert before is not None and before.seconds == 60.0  # as long ago the load was another one
    assert after is not None and after.seconds >= 15.0


def test_a_change_soon_after_another_has_nothing_to_be_compared_with() -> None:
    of = history([(0.0, 4.0), (120.0, 32.0), (144.0, 4.0)], 300.0)
    before, after = _periods(*_latest(of), of)
    assert before is None and after is not None
