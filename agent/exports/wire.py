"""Times, durations and values as Prometheus' HTTP API reads and writes them (version 2.42)."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any, TypeVar

import msgspec
import numpy as np

from kvitals.series.promql import PromQLError, Series, Vector
from kvitals.series.types import Floats, Frame, Labels, is_stale

T = TypeVar("T")

MAX_POINTS = 1_000_000
"""In one answer, over all of its series; some 30 MB of JSON."""

_STRETCH = 2000  # items that are sorted or encoded without letting another thread run; some milliseconds
_MOST_SECONDS = 9.2e12  # in milliseconds it still fits 64 bits
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_DURATION = re.compile(
    r"((?P<y>\d+)y)?((?P<w>\d+)w)?((?P<d>\d+)d)?((?P<h>\d+)h)?((?P<m>\d+)m)?((?P<s>\d+)s)?((?P<ms>\d+)ms)?",
    re.ASCII,
)
_UNITS = {"y": 365 * 86400.0, "w": 7 * 86400.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def read_time(text: str) -> float:
    """Seconds since the epoch from a number or RFC 3339, in whole milliseconds. Raises ValueError."""
    if _NUMBER.fullmatch(text) and abs(float(text)) <= _MOST_SECONDS:
        return round(float(text) * 1000) / 1000
    if _RFC3339.fullmatch(text):
        try:
            return round(datetime.fromisoformat(text).timestamp() * 1000) / 1000
        except ValueError:
            pass
    raise ValueError(f'cannot parse "{text}" to a valid timestamp')


def read_duration(text: str) -> float:
    """Seconds from a number or a duration such as 1h30m. Raises ValueError."""
    if _NUMBER.fullmatch(text) and abs(float(text)) <= _MOST_SECONDS:
        return float(text)
    match = _DURATION.fullmatch(text) if 0 < len(text) <= 100 else None
    seconds = sum(int(n) * _UNITS[unit] for unit, n in match.groupdict().items() if n) if match else math.inf
    if seconds > _MOST_SECONDS:
        raise ValueError(f'cannot parse "{text}" to a valid duration')
    return seconds


def value(number: float) -> str:
    """A sample value: the shortest text that reads back as the same double, with Go's rules for exponents."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
    text = repr(number)
    if "e" in text and 1e-6 <= abs(number) < 1e21:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def time(t: float) -> float:
    """A timestamp in whole milliseconds, without a fraction where there is none."""
    rounded = round(t * 1000) / 1000
    return int(rounded) if rounded.is_integer() else rounded


def scalar(number: float, at: float) -> dict[str, Any]:
    return {"resultType": "scalar", "result": [time(at), value(number)]}


def string(text: str, at: float) -> dict[str, Any]:
    return {"resultType": "string", "result": [time(at), text]}


def vector(found: Vector, at: float) -> dict[str, Any]:
    t = time(at)
    result = ({"metric": dict(labels), "value": [t, value(number)]} for labels, number in found)
    return {"resultType": "vector", "result": encode_list(result)}


def matrix(found: Sequence[Series]) -> dict[str, Any]:
    """Encoded series by series, which takes a tenth of the memory. Raises PromQLError beyond MAX_POINTS."""
    points = sum(len(series.times) for series in found)
    if points > MAX_POINTS:
        raise PromQLError(f"the answer has {points} points, {MAX_POINTS} are allowed: use a longer step")
    encoded = [
        msgspec.Raw(
            msgspec.json.encode({"metric": dict(series.labels), "values": _points(series.times, series.values)})
        )
        for series in found
        if len(series.times)
    ]
    return {"resultType": "matrix", "result": encoded}


def encode_list(items: Iterable[object]) -> msgspec.Raw:
    """A JSON list, encoded in stretches: encoding holds the interpreter's lock, which the event loop needs as well."""
    parts, rest = [], iter(items)
    while stretch := list(islice(rest, _STRETCH)):
        parts.append(msgspec.json.encode(stretch)[1:-1])
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


def sort_in_steps(items: Iterable[T], key: Callable[[T], Any] = lambda item: item) -> Iterator[T]:
    """`sorted`, which holds the interpreter's lock to its end, in stretches."""
    stretches, rest = [], iter(items)
    while stretch := list(islice(rest, _STRETCH)):
        stretches.append(sorted(stretch, key=key))
    return heapq.merge(*stretches, key=key)


def raw_samples(frames: Sequence[Frame]) -> list[Series]:
    """The samples of each series, joined over the frames and ordered by labels and time."""
    parts: dict[Labels, list[tuple[Floats, Floats]]] = {}
    for frame in frames:
        here = ~is_stale(frame.values)
        for column, labels in enumerate(frame.labels):
            rows = here[:, column]
            parts.setdefault(labels, []).append((frame.times[rows], frame.values[rows, column]))
    found = []
    for labels in sorted(parts, key=lambda labels: tuple(labels.items())):
        times = np.concatenate([t for t, _ in parts[labels]])
        values = np.concatenate([v for _, v in parts[labels]])
        order = np.argsort(times, kind="stable")
        found.append(Series(labels, times[order], values[order]))
    return found


def _points(times: Floats, values: Floats) -> list[list[Any]]:
    return [[time(t), value(v)] for t, v in zip(times.tolist(), values.tolist(), strict=True)]
