"""Series as they are written in case files: promtool's notation, read into a SeriesSource.

'1+2x3'     1 3 5 7: a start, a step, and how many steps follow
'5x3'       5 5 5 5
'9-3x2'     9 6 3
'1 _x2 4'   two samples are missing: the last one is still seen by a lookback
'1 stale'   the series ends
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from kvitals.series.promql import Selector, parse
from kvitals.series.types import METRIC_NAME, STALE, Frame, Labels, Matcher, MatchOp, is_stale

_NUMBER = r"(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan)"
_RUN = re.compile(rf"(?P<start>[+-]?{_NUMBER})(?P<step>[+-]{_NUMBER})?(?:x(?P<times>\d+))?", re.I)
_GAP = re.compile(r"_(?:x(?P<times>\d+))?")
MAX_SAMPLES = 20_000
"""Of one series; a case that needs more is no case."""


def values(text: str) -> list[float | None]:
    """The samples that a notation stands for; None where there is no sample."""
    found: list[float | None] = []
    for item in text.split():
        run, gap = _RUN.fullmatch(item), _GAP.fullmatch(item)
        if item == "stale":
            found.append(STALE)
        elif gap:
            found += [None] * _few(int(gap["times"] or 1), found)
        elif run and (run["times"] or not run["step"]):
            start, step = float(run["start"]), float(run["step"] or 0)
            found += [start + i * step for i in range(_few(int(run["times"] or 0) + 1, found))]
        else:
            raise ValueError(f"{item!r} is not a value: write 5, 5x3, 1+2x3, _, _x2 or stale")
    return found


def _few(more: int, before: list[float | None]) -> int:
    """So many more samples. Raises ValueError where a series is too long."""
    if len(before) + more > MAX_SAMPLES:
        raise ValueError(f"a series has at most {MAX_SAMPLES:,} samples; choose a longer interval")
    return more


def labels(text: str) -> Labels:
    """The labels of a series written as `name{label="value"}`."""
    selector = parse(text)
    if not isinstance(selector, Selector) or any(m.op is not MatchOp.EQ for m in selector.matchers):
        raise ValueError(f'{text!r} is not a series: write name{{label="value"}}')
    pairs = {m.name: m.value for m in selector.matchers}
    return Labels({METRIC_NAME: selector.name, **pairs} if selector.name else pairs)


class WrittenSeries:
    """A SeriesSource over written series. Sample i is at `start + i * interval`."""

    def __init__(self, series: Mapping[str, str], start: float, interval: float) -> None:
        self.start = start
        self.end = start
        self._frames: dict[str, list[Frame]] = {}  # by metric
        for name, text in series.items():
            samples = values(text)
            kept = [i for i, sample in enumerate(samples) if sample is not None]
            times = start + interval * np.array(kept, dtype=np.float64)
            column = np.array([samples[i] for i in kept], dtype=np.float64)
            of = labels(name)
            self._frames.setdefault(of.name, []).append(Frame(times, column[:, None], [of]))
            self.end = max(self.end, start + interval * (len(samples) - 1))

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        found = []
        for frame in self._named(matchers):
            if all(m.matches(frame.labels[0]) for m in matchers):
                inside = (frame.times >= start) & (frame.times <= end)
                cells = frame.values[inside]
                if cells.size and not is_stale(cells).all():
                    found.append(Frame(frame.times[inside], cells, frame.labels))
        return found

    def has(self, name: str) -> bool:
        """Whether there are series of that name."""
        return name in self._frames

    def _named(self, matchers: Sequence[Matcher]) -> Iterable[Frame]:
        name = next((m.value for m in matchers if m.name == METRIC_NAME and m.op is MatchOp.EQ), None)
        return chain.from_iterable(self._frames.values()) if name is None else self._frames.get(name, ())
