"""The audit as families of a running agent."""

from __future__ import annotations

import time

import numpy as np

from kvitals.app.derived_metrics.scaling_audit import Auditing, audited_day
from kvitals.rules.loader import load
from kvitals.series.promql import Vector, evaluate
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

START = 1.7e9
ONSETS = range(1500, 12000, 2000)
NAMES = (
    {METRIC_NAME: "kvitals_requests_waiting"},
    {METRIC_NAME: "kvitals_ttft_seconds_bucket", "le": "0.5"},
    {METRIC_NAME: "kvitals_ttft_seconds_bucket", "le": "1.0"},
    {METRIC_NAME: "kvitals_ttft_seconds_bucket", "le": "+Inf"},
    {METRIC_NAME: "kvitals_process_start_time_seconds"},
    {METRIC_NAME: "kvitals_ttft_seconds_count"},
)


def past() -> Window:
    """An engine whose queue is long for two minutes before its first tokens are late, six times."""
    window = Window(retention=40000, max_series=20)
    group = window.group("engine")
    columns = [group.column(Labels({"engine": "a", "pool": "chat", **name})) for name in NAMES]
    numbers = [column for column in columns if column is not None]
    fast = every = 0.0
    for t in np.arange(0, 13000, 5.0).tolist():
        late = any(onset <= t < onset + 300 for onset in ONSETS)
        queue = 9.0 if any(onset - 120 <= t < onset + 300 for onset in ONSETS) else float(t // 5 % 2)
        every += 50
        fast += 25 if late else 50
        group.append(START + t, numbers, np.array([queue, fast, every, every, START - 30, every]))
    return window


def test_what_leads_is_told_and_declared() -> None:
    window, now = Window(retention=3600, max_series=100), START + 12990
    auditing = Auditing(window, lambda now: audited_day(past(), now, 5.0, 0.5))
    deadline = time.monotonic() + 60
    found = Vector([], np.empty(0))
    while not len(found) and time.monotonic() < deadline:
        auditing.cycle(now)
        now += 61
        time.sleep(0.05)
        answer = evaluate('{__name__=~"kvitals_(scaling|ready).*"}', window, now)
        assert isinstance(answer, Vector)
        found = answer
    told = {(labels[METRIC_NAME], labels.get("signal", labels.get("phase"))): value for labels, value in found}
    assert 100 <= told["kvitals_scaling_lead_seconds", "queue"] <= 140
    assert told["kvitals_scaling_caught_ratio", "queue"] == 1
    assert {name for name, _ in told} <= load().families.keys()
