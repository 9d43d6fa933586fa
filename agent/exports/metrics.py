"""The agent's own `/metrics` page: what the families are now, in Prometheus' text format 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rules.loader import family_of
from rules.model import Family
from series.types import METRIC_NAME, Labels, Matcher, MatchOp, SeriesSource, escape, is_stale

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOKBACK = 60.0
"""Seconds. A series whose newest sample is older, or which has ended, is not shown."""

_TYPES = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "info": "gauge"}
_PARTS = {"_bucket": 0, "_sum": 1, "_count": 2}
_KVITALS = (Matcher(METRIC_NAME, MatchOp.RE, "kvitals_.+"),)


def render(source: SeriesSource, families: Mapping[str, Family], now: float, lookback: float = LOOKBACK) -> bytes:
    """The page at `now`, seconds since the epoch. Series of names that are no family are left out."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for labels, value in newest(source, now, lookback):
        family = family_of(labels.name, families)
        if family is not None:
            samples.setdefault(family, []).append((labels, value))
    lines: list[str] = []
    for name in sorted(samples):
        family_type = families[name].type
        lines.append(f"# HELP {name} {_help(families[name].meaning)}")
        lines.append(f"# TYPE {name} {_TYPES[family_type]}")
        order = _in_histogram if family_type == "histogram" else _by_labels
        lines += [f"{_series(labels)} {number(value)}" for labels, value in sorted(samples[name], key=order)]
    return "".join(f"{line}\n" for line in lines).encode()


def newest(source: SeriesSource, now: float, lookback: float) -> Iterator[tuple[Labels, float]]:
    """Every kvitals series that exists at `now`, with its value, once each."""
    found: dict[Labels, tuple[float, float]] = {}
    for frame in source.select(_KVITALS, now - lookback, now):
        time = float(frame.times[-1])
        alive = (~is_stale(frame.values[-1])).tolist()
        for labels, value, is_alive in zip(frame.labels, frame.values[-1].tolist(), alive, strict=True):
            if is_alive and found.get(labels, (-math.inf, 0.0))[0] < time:
                found[labels] = time, value
    for labels, (_, value) in found.items():
        yield labels, value


def number(value: float) -> str:
    """A sample value as Prometheus reads it."""
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _series(labels: Labels) -> str:
    inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items() if name != METRIC_NAME)
    return f"{labels.name}{{{inner}}}" if inner else labels.name


def _help(text: str) -> str:
    return " ".join(text.split()).replace("\\", r"\\")


def _by_labels(sample: tuple[Labels, float]) -> tuple[object, ...]:
    return tuple(sample[0].items())


def _in_histogram(sample: tuple[Labels, float]) -> tuple[object, ...]:
    """One histogram after the other, and in each its buckets from below, its sum and its count."""
    labels = sample[0]
    part = next(part for part in _PARTS if labels.name.endswith(part))
    identity = tuple(labels.drop(METRIC_NAME, "le").items())
    return identity, _PARTS[part], _bound(labels.get("le", ""))


def _bound(le: str) -> float:
    try:
        return float(le)
    except ValueError:
        return math.inf
