"""The recording rules where a Prometheus scrapes the engines themselves and no agent (docs/decisions/0017).

Families come first: normalising rules record what engines' pages show under the names that agents export, with one
label `engine`. The signals above are the same as with agents. What only an agent knows is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvitals.dashboards.alerts_guards import SCRAPES, SOURCES
from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.parsed import parse_once
from kvitals.dashboards.recording_rules import (
    RecordingRules,
    definition,
    group_of,
    in_order,
    rule_of,
)
from kvitals.diagnoser.entities import ENTITIES, INFO
from kvitals.diagnoser.sources.engine_pages import FACT, LOCAL, OBJECTIVE, Pages, page_maps
from kvitals.rules.compiled_signal import selections
from kvitals.rules.engine_map import EngineMap
from kvitals.rules.loader import HISTOGRAM_PARTS, SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import Family
from kvitals.series.promql import Aggregate, Binary, Expr, Selector
from kvitals.series.promql.rewrite import map_children

FAMILIES, HISTOGRAMS = "kvitals-families", "kvitals-families-histograms"
"""Groups of normalising rules; two, so that each is small enough for an object of Kubernetes."""
SEEN = "1h"
"""For so long an engine that is gone with requests on it is reported as down. One that ended idle was taken away."""

TARGET = ("namespace", "pod", "job")
"""Labels of an engine's target that boards offer to choose engines by, where the server has them."""

REQUESTS_RUNNING = "kvitals_requests_running"
_UP = f"""\
max by (cluster, pool, node, engine) (0 * kvitals_requests_running + 1)
or
max by (cluster, pool, node, engine) (0 * (last_over_time(kvitals_requests_running[{SEEN}]) > 0))"""
_INFO = "group by (cluster, pool, node, engine, model) (kvitals_requests_running)"
_IDENTITY = LOCAL
_INFO_LABELS = frozenset({"cluster", "pool", "node", "engine", "model", "system", "kind", *TARGET})
_ANY = frozenset({"cluster", "pool", "node", "engine", "model", *TARGET})
"""Labels that select among engines; whether a page reports a family does not depend on them."""


class PageCoverage:
    """What engines' own pages report of what signals, alerts and boards read."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._maps = page_maps()
        self._pages = _pages(self._maps, knowledge.families)

    def reports(self, selector: Selector) -> bool:
        """Whether rules can record a series of engines' pages that the selector would find."""
        if selector.name == INFO:
            return all(m.name in _INFO_LABELS or m.matches({}) for m in selector.matchers)
        if selector.name in (ENTITIES, OBJECTIVE):
            return True
        return any(isinstance(node, Selector) and node.name != selector.name for node in self._leaf(selector).walk())

    def _leaf(self, selector: Selector) -> Expr:
        return self._pages.leaf(replace(selector, matchers=tuple(m for m in selector.matchers if m.name not in _ANY)))

    def why_not(self, expr: Expr, signals: Collection[str] = ()) -> str:
        """Why an expression can have no value without agents; empty where it can. `signals`: recorded names."""
        for either in selections(expr):
            if not any(one.name in signals or self.reports(one) for one in either):
                return f"{' or '.join(sorted({str(one) for one in either}))} needs the agent"
        return ""

    def record(self, options: Options, read: Iterable[str]) -> RecordingRules:
        """The families in `read`, names of metrics, and every signal that can be made of what pages report."""
        groups: dict[str, list[dict[str, Any]]] = {}
        recorded: set[str] = set()
        left_out: dict[str, str] = {}
        metrics = set(read)
        for name in in_order(self._knowledge):
            text = definition(self._knowledge.signals[name], options)
            expr = parse_once(text)
            if why := self.why_not(expr, recorded):
                left_out[name] = why
                continue
            recorded.add(SIGNAL_PREFIX + name)
            metrics |= {node.name for node in expr.walk() if isinstance(node, Selector)}
            groups.setdefault(group_of(name, self._knowledge, options), []).append(rule_of(name, text))
        return RecordingRules(groups, left_out, self._families(sorted(metrics), options))

    def _families(self, metrics: Sequence[str], options: Options) -> dict[str, list[dict[str, Any]]]:
        """A normalising rule for each metric that pages report, and what identifies the engines after these."""
        plain: list[dict[str, Any]] = []
        histograms: list[dict[str, Any]] = []
        for metric in metrics:
            if metric not in _IDENTITY and self._pages.sources(metric):
                whole = histograms if metric not in self._knowledge.families else plain
                whole.append({"record": metric, "expr": str(self._pages.leaf(Selector(metric)))})
        return {FAMILIES: [*plain, *self._identity(options)], HISTOGRAMS: histograms}

    def _identity(self, options: Options) -> Iterator[dict[str, Any]]:
        """Which engines there are, of what kind, what they report of their configuration, and their objectives."""
        yield {"record": "kvitals_target_up", "expr": _UP}
        counted = _counted(self._pages.leaf(Selector(REQUESTS_RUNNING)))
        yield {"record": SOURCES, "expr": f"max by (cluster, pool, node, engine) ({counted})"}
        sampled = parse_once(f"count_over_time({REQUESTS_RUNNING}[{duration(options.fast_seconds)}])")
        yield {"record": SCRAPES, "expr": f"max by (cluster, pool, node, engine) ({self._pages.rewrite(sampled)})"}
        for map_ in self._maps:
            about = {"system": map_.system, "kind": map_.kind}
            info = _pages([map_], self._knowledge.families).rewrite(parse_once(_INFO))
            yield {"record": "kvitals_engine_info", "labels": about, "expr": str(with_target(info))}
        yield {"record": FACT, "labels": {"source": "metrics page"}, "expr": str(self._pages.leaf(Selector(FACT)))}
        for slo, seconds in (("ttft_p99", options.slo_ttft_seconds), ("itl_p99", options.slo_itl_seconds)):
            objective = f"0 * max by (cluster, pool, node, engine) (kvitals_target_up) + {seconds:g}"
            yield {"record": OBJECTIVE, "labels": {"slo": slo, "source": "recording rule"}, "expr": objective}


def with_target(expr: Expr) -> Expr:
    """The expression with the labels of the target wherever it groups by engine."""
    expr = map_children(expr, with_target)
    if isinstance(expr, Aggregate) and not expr.without and "engine" in expr.grouping:
        return replace(expr, grouping=tuple(sorted({*expr.grouping, *TARGET})))
    return expr


def _counted(expr: Expr) -> Expr:
    """The aggregations that a leaf is made of, as counts: how many series each of them adds."""
    if isinstance(expr, Aggregate):
        return replace(expr, op="count")
    assert isinstance(expr, Binary)
    return replace(expr, left=_counted(expr.left), right=_counted(expr.right))


def _pages(maps: Sequence[EngineMap], families: Mapping[str, Family]) -> Pages:
    """The dialect of a server that has every name that the maps know."""
    names = {
        prefix + metric.raw + part
        for map_ in maps
        for metric in map_.metrics
        for prefix in (("",) if metric.bare or map_.full_names else map_.recognise.prefixes)
        for part in (HISTOGRAM_PARTS if families[metric.family].type == "histogram" else ("",))
    }
    return Pages(frozenset(names), maps, None, {})
