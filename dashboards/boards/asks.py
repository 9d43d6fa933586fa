"""Short forms of what panels ask of families, so that a board reads as a list of questions."""

from __future__ import annotations

from kvitals.dashboards.panels import PanelLine
from kvitals.dashboards.queries import ExpressionQuery, SignalQuery
from kvitals.rules.model import Scope


def engine_signal(signal: str, legend: str = "{{engine}}") -> PanelLine:
    """A signal of each engine."""
    return PanelLine(SignalQuery(signal), legend)


def rate(family: str, *by: str, unit: str = "per_second", scope: Scope = "engine") -> ExpressionQuery:
    """How fast a counter grows, by more labels than those of the scope."""
    return ExpressionQuery(f"sum by ({_labels(by)}) (rate({family}[$window]))", unit, scope)


def rise(family: str, *by: str, unit: str = "count", scope: Scope = "engine", over: str = "$window") -> ExpressionQuery:
    """By how much a counter grew."""
    return ExpressionQuery(f"sum by ({_labels(by)}) (increase({family}[{over}]))", unit, scope)


def gauge(family: str, *by: str, unit: str, scope: Scope = "engine", of: str = "max") -> ExpressionQuery:
    """A gauge, of several the largest or what `of` makes of them."""
    return ExpressionQuery(f"{of} by ({_labels(by)}) ({family})", unit, scope)


def mean(histogram: str, *by: str, unit: str = "seconds", scope: Scope = "engine") -> ExpressionQuery:
    """The mean of what a histogram counted."""
    return share(f"{histogram}_sum", f"{histogram}_count", *by, unit=unit, scope=scope)


def share(
    part: str, whole: str, *by: str, unit: str = "ratio", scope: Scope = "engine", over: str = "$window"
) -> ExpressionQuery:
    """The growth of one counter over that of another."""
    labels = _labels(by)
    text = f"sum by ({labels}) (rate({part}[{over}])) / sum by ({labels}) (rate({whole}[{over}]))"
    return ExpressionQuery(text, unit, scope)


def percentile(q: float, histogram: str, *by: str, unit: str = "seconds", scope: Scope = "engine") -> ExpressionQuery:
    """A quantile of what a histogram counted, no finer than its buckets."""
    labels = _labels((*by, "le"))
    return ExpressionQuery(
        f"histogram_quantile({q:g}, sum by ({labels}) (rate({histogram}_bucket[$window])))", unit, scope
    )


def buckets(histogram: str, unit: str = "seconds") -> ExpressionQuery:
    """How fast each bucket of a histogram grows, of all that is chosen together."""
    return ExpressionQuery(f"sum by (le) (rate({histogram}_bucket[$window]))", unit, "fleet")


def tokens() -> tuple[PanelLine, PanelLine]:
    """What an engine generates, and what it is asked to read."""
    return (
        engine_signal("generation_tokens_per_second", "{{engine}} generated"),
        PanelLine(SignalQuery("prompt_tokens_per_second"), "{{engine}} prompt", "faint"),
    )


def lost_events() -> tuple[PanelLine, PanelLine]:
    """KV events that never came."""
    return engine_signal("kv_event_gaps", "{{engine}} gaps"), engine_signal(
        "kv_event_batches_lost", "{{engine}} batches"
    )


def _labels(by: tuple[str, ...]) -> str:
    return ", ".join(("$scope", *by))
