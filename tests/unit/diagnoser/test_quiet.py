"""What a window still shows of a load that is over does not begin, and is reported as over."""

from __future__ import annotations

import pytest

from kvitals.diagnoser.evaluator import TRAFFIC
from kvitals.diagnoser.quiet import REFUSALS, quiet_engines
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.loader import load
from kvitals.series.types import Labels
from kvitals.series.window import Window

KNOWLEDGE = load()
ENGINE = Labels({"cluster": "", "node": "n", "engine": "127.0.0.1:8000/0"})
START = 1_700_000_000.0
END_OF_LOAD = START + 120.0


def window(every: float, last: float, *, running: float = 4.0, completes: float = 2.0) -> Window:
    """Samples of an engine: requests run until END_OF_LOAD, some end in each sample; then none."""
    made = Window(retention=600, max_series=100)
    group = made.group("engine")
    names = ("kvitals_target_up", "kvitals_requests_running", "kvitals_requests_waiting", "kvitals_ttft_seconds_count")
    columns = [group.column(Labels({**ENGINE, "__name__": name})) for name in names]
    at, count = START, 0.0
    while at <= last:
        loaded = at <= END_OF_LOAD
        count += completes if loaded else 0.0
        group.append(at, columns, [1.0, running if loaded else 0.0, 0.0, count])
        at += every
    return made


def quiet(made: Window, at: float) -> dict[Labels, float]:
    signals, span = Signals(KNOWLEDGE, made), EvaluationSpan(at)
    signals.observe(span)
    return quiet_engines(signals, (*signals.metrics(TRAFFIC, span), *REFUSALS), span)


def test_an_engine_is_quiet_a_while_after_its_last_request() -> None:
    made = window(1.0, END_OF_LOAD + 50)
    assert quiet(made, END_OF_LOAD) == {}
    assert quiet(made, END_OF_LOAD + 10) == {}
    (since,) = quiet(made, END_OF_LOAD + 30).values()
    assert abs(since - END_OF_LOAD) <= 5.0


@pytest.mark.parametrize("every", [1.0, 5.0, 15.0])
def test_short_requests_that_no_sample_shows_running_keep_it_busy(every: float) -> None:
    """Of a low load the gauges are zero in most samples."""
    made = window(every, END_OF_LOAD + 90, running=0.0, completes=1.0)
    for later in range(0, 60, 5):
        assert quiet(made, START + 60.0 + later) == {}
    assert quiet(made, END_OF_LOAD + 4 * max(every, 5.0)) != {}


def test_what_reports_no_load_is_not_quiet() -> None:
    made = Window(retention=600, max_series=100)
    group = made.group("engine")
    column = group.column(Labels({**ENGINE, "__name__": "kvitals_target_up"}))
    for second in range(60):
        group.append(START + second, [column], [1.0])
    assert quiet(made, START + 59.0) == {}


def test_what_was_watched_for_a_moment_only_is_not_quiet() -> None:
    """An agent that takes over has one row."""
    made = Window(retention=600, max_series=100)
    group = made.group("engine")
    names = ("kvitals_target_up", "kvitals_requests_running")
    columns = [group.column(Labels({**ENGINE, "__name__": name})) for name in names]
    group.append(START, columns, [1.0, 0.0])
    assert quiet(made, START) == quiet(made, START + 8.0) == {}
