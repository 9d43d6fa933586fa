"""Grafana's arithmetic of time, as its Prometheus data source has it (pkg/tsdb/prometheus/models/query.go, intervalv2).

What a panel asks depends on the range that is shown, the pixels that there are and the least step of the query.
"""

from __future__ import annotations

import re

MAX_POINTS = 11_000
_ROUNDED = (
    (0.010, 0.001), (0.015, 0.010), (0.035, 0.020), (0.075, 0.050), (0.150, 0.100), (0.350, 0.200), (0.750, 0.500),
    (1.5, 1), (3.5, 2), (7.5, 5), (12.5, 10), (17.5, 15), (25, 20), (45, 30), (90, 60), (210, 120), (450, 300),
    (750, 600), (1050, 900), (1500, 1200), (2700, 1800), (5400, 3600), (9000, 7200), (16200, 10800), (32400, 21600),
    (86400, 43200), (604800, 86400), (1814400, 604800), (3628800, 2592000),
)  # fmt: skip
"""Upper bound of an interval -> what it becomes, seconds."""


def step(shown: float, points: int, least: float) -> float:
    """`$__interval`, the step of a query. `shown`: seconds on the axis; `points`: pixels; `least`: its min step."""
    calculated = least if shown / points < least else _rounded(shown / points)
    return max(calculated, _rounded(shown / MAX_POINTS))


def _rounded(interval: float) -> float:
    return next((to for bound, to in _ROUNDED if interval <= bound), 31536000.0)


def rate_interval(step_: float, least: float) -> float:
    """`$__rate_interval`. `least`: the query's min step; where it has none, the scrape interval of the data source."""
    return max(step_ + least, 4 * least)


def chosen(*values: str, all_value: str = "") -> str:
    """A variable of several values as it stands in `=~"..."`. No values: All, of a variable with `all_value`."""
    if not values:
        return all_value
    escaped = [re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", one.replace("\\", "\\" * 4)) for one in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def seconds(text: str) -> float:
    """A min step as a board has it: 15s, 1m."""
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
