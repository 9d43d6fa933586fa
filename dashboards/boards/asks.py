"""Short forms of what panels ask of families, so that a board reads as a list of questions."""

from __future__ import annotations

from kvitals.dashboards.panels import Line
from kvitals.dashboards.queries import From, Of
from kvitals.rules.model import Scope


def of(signal: str, legend: str = "{{engine}}") -> Line:
    """A signal of each engine."""
    return Line(Of(signal), legend)


def rate(family: str, *by: str, unit: str = "per_second", scope: Scope = "engine") -> From:
    """How fast a counter grows, by more labels than those of the scope."""
    return From(f"sum by ({_labels(by)}) (rate({family}[$window]))", unit, scope)


def rise(family: str, *by: str, unit: str = "count", scope: Scope = "engine", over: str = "$window") -> From:
    """By how much a counter grew."""
    return From(f"sum by ({_labels(by)}) (increase({family}[{over}]))", unit, scope)


def gauge(family: str, *by: str, unit: str, scope: Scope = "engine", of: str = "max") -> From:
    """A gauge, of several the largest or what `of` makes of them."""
    return From(f"{of} by ({_labels(by)}) ({family})", unit, scope)


def mean(histogram: str, *by: str, unit: str = "seconds", scope: Scope = "engine") -> From:
    """The mean of what a histogram counted."""
    return share(f"{histogram}_sum", f"{histogram}_count", *by, unit=unit, scope=scope)


def share(part: str, whole: str, *by: str, unit: str = "ratio", scope: Scope = "engine", over: str = "$window") -> From:
    """The growth of one counter over that of another."""
    labels = _labels(by)
    text = f"sum by ({labels}) (rate({part}[{over}])) / sum by ({labels}) (rate({whole}[{over}]))"
    return From(text, unit, scope)


def percentile(q: float, histogram: str, *by: str, unit: str = "seconds", scope: Scope = "engine") -> From:
    """A quantile of what a histogram counted, no finer than its buckets."""
    labels = _labels((*by, "le"))
    return From(f"histogram_quantile({q:g}, sum by ({labels}) (rate({histogram}_bucket[$window])))", unit, scope)


def buckets(histogram: str, unit: str = "seconds") -> From:
    """How fast each bucket of a histogram grows, of all that is chosen together."""
    return From(f"sum by (le) (rate({histogram}_bucket[$window]))", unit, "fleet")


def tokens() -> tuple[Line, Line]:
    """What an engine generates, and what it is asked to read."""
    return (
        Line(rate("kvitals_generation_tokens_total"), "{{engine}} generated"),
        Line(Of("prompt_tokens_per_second"), "{{engine}} prompt", "faint"),
    )


def lost_events() -> tuple[Line, Line]:
    """KV events that never came."""
    return of("kv_event_gaps", "{{engine}} gaps"), of("kv_event_batches_lost", "{{engine}} batches")


def _labels(by: tuple[str, ...]) -> str:
    return ", ".join(("$scope", *by))
