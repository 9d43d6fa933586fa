"""The agent's own `/metrics` page: what the families are now, in Prometheus' text format 0.0.4, or as OpenMetrics 1.0.0
with exemplars, which lead from a bucket of a histogram to a request's trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from kvitals.agent.requests.request_families import Exemplar
from kvitals.rules.loader import family_of
from kvitals.rules.model import Family
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, SeriesSource, escape, is_stale

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
MAX_ACCEPTED = 50
MAX_EXEMPLAR = 128
"""Characters of an exemplar's labels, as OpenMetrics has it."""

LOOKBACK = 60.0
"""Seconds. A series whose newest sample is older, or which has ended, is not shown."""

_TYPES = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "info": "gauge"}
_PARTS = {"_bucket": 0, "_sum": 1, "_count": 2}
_WEIGHT = re.compile(r"[01](\.[0-9]{0,3})?")
_KVITALS = (Matcher(METRIC_NAME, MatchOp.RE, "kvitals_.+"),)


def render(source: SeriesSource, families: Mapping[str, Family], now: float, lookback: float = LOOKBACK) -> bytes:
    """The page at `now`, seconds since the epoch. Series of names that are no family are left out."""
    lines: list[str] = []
    for name, samples in _by_family(source, families, now, lookback):
        lines.append(f"# HELP {name} {_help(families[name].meaning)}")
        lines.append(f"# TYPE {name} {_TYPES[families[name].type]}")
        lines += [f"{_series(labels)} {number(value)}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines).encode()


def render_openmetrics(
    source: SeriesSource,
    families: Mapping[str, Family],
    now: float,
    exemplars: Iterable[tuple[Labels, Exemplar]] = (),
    lookback: float = LOOKBACK,
) -> bytes:
    """The same page as OpenMetrics. exemplars: of buckets, by their series."""
    found = {labels: _exemplar(exemplar) for labels, exemplar in exemplars}
    lines: list[str] = []
    for name, samples in _by_family(source, families, now, lookback):
        title, kind = _as_openmetrics(name, families)
        lines.append(f"# TYPE {title} {kind}")
        lines.append(f"# HELP {title} {_quoted(_help(families[name].meaning))}")
        lines += [f"{_series(_canonical(labels))} {number(value)}{found.get(labels, '')}" for labels, value in samples]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"]).encode()


def prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header asks for OpenMetrics at least as much as for the text format."""
    weights = {"text/plain": 0.0, OPENMETRICS: 0.0}
    for entry in accept.split(",")[:MAX_ACCEPTED]:
        kind, *parameters = (part.strip() for part in entry.lower().split(";"))
        q = next((p.removeprefix("q=") for p in parameters if p.startswith("q=")), "1")
        if kind in weights and _WEIGHT.fullmatch(q):
            weights[kind] = max(weights[kind], float(q))
    return 0.0 < weights[OPENMETRICS] >= weights["text/plain"]


def _by_family(
    source: SeriesSource, families: Mapping[str, Family], now: float, lookback: float
) -> Iterator[tuple[str, list[tuple[Labels, float]]]]:
    """The families that have series, each with its samples in order."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for labels, value in newest(source, now, lookback):
        family = family_of(labels.name, families)
        if family is not None:
            samples.setdefault(family, []).append((labels, value))
    for name in sorted(samples):
        order = _in_histogram if families[name].type == "histogram" else _by_labels
        yield name, sorted(samples[name], key=order)


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


def _as_openmetrics(name: str, families: Mapping[str, Family]) -> tuple[str, str]:
    """A family's name and type. A counter's name has no `_total`; where another family has that name, its type is not
    told, since a name may be there once only."""
    kind = _TYPES[families[name].type]
    if kind != "counter":
        return name, kind
    bare = name.removesuffix("_total")
    return (name, "unknown") if bare == name or bare in families else (bare, kind)


def _canonical(labels: Labels) -> Labels:
    """With the bound of a bucket as OpenMetrics writes it: `1.0`, `1e+06`."""
    le = labels.get("le")
    return labels if le is None else labels.with_(le=_bound_text(_bound(le)))


def _bound_text(bound: float) -> str:
    if not math.isfinite(bound) or bound == 0:
        return number(bound) if bound else "0.0"
    _, digits, exponent = Decimal(repr(bound)).normalize().as_tuple()
    assert isinstance(exponent, int)
    power = len(digits) + exponent - 1
    if -4 <= power < 6:
        return repr(bound)
    mantissa = ".".join(filter(None, (str(digits[0]), "".join(map(str, digits[1:])))))
    return f"{'-' if bound < 0 else ''}{mantissa}e{power:+03d}"


def _exemplar(exemplar: Exemplar) -> str:
    """What follows a bucket's value; nothing where the trace's id is too long to be told."""
    if len("trace_id") + len(exemplar.trace) > MAX_EXEMPLAR:
        return ""
    return f' # {{trace_id="{escape(exemplar.trace)}"}} {number(exemplar.value)} {exemplar.t:.3f}'


def _quoted(text: str) -> str:
    return text.replace('"', r"\"")


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
    bound = bucket_bound(le)
    return math.inf if bound is None else bound
