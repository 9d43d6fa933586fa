"""Which engines have had no requests for a while: what a window still shows of them is of the load before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from kvitals.diagnoser.entities import Entities
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.unusable import UNUSABLE
from kvitals.rules.expressions import expression
from kvitals.rules.loader import family_of
from kvitals.rules.model import SCOPES, Scope
from kvitals.series.promql import Expr
from kvitals.series.types import Labels

STEP_SECONDS = 5.0
"""Between two moments that are looked at, at least."""
QUIET_STEPS = 3
"""An engine is quiet after so many steps without requests: between two requests of a low load are a few."""
LOOK_BACK_SECONDS = 60.0
REFUSALS = ("kvitals_requests_rejected_total", "kvitals_requests_failed_total", "kvitals_requests_finished_total")
"""An engine that refuses every request has no other sign of them."""

_BY = ", ".join(SCOPES["engine"])


def quiet_engines(signals: Signals, metrics: Iterable[str], span: EvaluationSpan) -> dict[Labels, float]:
    """The engines that were watched for long enough and have no requests at the end of a span -> the moment of their
    last one, seconds since the epoch; where none is in sight, the moment from which on it was looked for.

    metrics: gauges and counters of requests.
    """
    step = max(STEP_SECONDS, signals.sample_seconds(span))
    end = math.ceil(span.at / step) * step  # of steps that are the same a second later
    start = end - step * math.ceil(max(LOOK_BACK_SECONDS / step, QUIET_STEPS))
    gauges, counters = _by_kind(signals, metrics)
    known = _any_of([f"sum by ({_BY}) ({metric})" for metric in (*gauges, *counters)])
    busy = _any_of(
        [f"sum by ({_BY}) ({metric}) > 0" for metric in gauges]
        + [f"sum by ({_BY}) ({metric}) != sum by ({_BY}) ({metric} offset {round(step)}s)" for metric in counters]
    )
    last = {one.labels: float(one.times[-1]) for one in signals.course(busy, start, end, step)}
    watched = signals.course(known, end - QUIET_STEPS * step, end, step)
    since = {one.labels: last.get(one.labels, start) for one in watched if len(one.times) > QUIET_STEPS}
    return {engine: moment for engine, moment in since.items() if moment <= span.at - QUIET_STEPS * step}


def quiet_entities(engines: Mapping[Labels, float], there: Entities) -> dict[tuple[Scope, Labels], float]:
    """The same of engines and of what is made of quiet engines only, by scope and entity."""
    since: dict[tuple[Scope, Labels], list[float | None]] = {}
    for engine in there.of("engine"):
        for scope, labels in there.around("engine", engine).items():
            since.setdefault((scope, labels), []).append(engines.get(engine))
    found = {key: [moment for moment in several if moment is not None] for key, several in since.items()}
    return {key: max(moments) for key, moments in found.items() if moments and len(moments) == len(since[key])}


def _by_kind(signals: Signals, metrics: Iterable[str]) -> tuple[list[str], list[str]]:
    families = signals.knowledge.families
    there = [metric for metric in dict.fromkeys(metrics) if metric != UNUSABLE and signals.reports(metric)]
    gauges = [metric for metric in there if (of := family_of(metric, families)) and families[of].type == "gauge"]
    return gauges, [metric for metric in there if metric not in gauges]


def _any_of(texts: list[str]) -> Expr:
    return expression(" or ".join(texts) or "vector(0) > 0")
