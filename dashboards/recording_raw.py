"""The same recording rules where a Prometheus scrapes the engines themselves and no agent.

Each signal is rewritten to raw names by the engine maps, in all versions that these know. What identifies the engines
is recorded first, under the names that the agent has for it. What only an agent knows is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.recording_rules import RecordingRules, definition, group_of, in_order, rule_of
from kvitals.diagnoser.sources.engine_pages import FACT, OBJECTIVE, Pages
from kvitals.rules.compiled_signal import needed_metrics
from kvitals.rules.engine_map import EngineMap, load_map, systems
from kvitals.rules.loader import HISTOGRAM_PARTS, SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import Family
from kvitals.series.promql import Expr, Selector, parse

ENGINES = "kvitals-engines"
SEEN = "1h"
"""For so long an engine that is gone with requests on it is reported as down. One that ended idle was taken away."""

_UP = f"""\
max by (cluster, pool, node, engine) (0 * kvitals_requests_running + 1)
or
max by (cluster, pool, node, engine) (0 * (last_over_time(kvitals_requests_running[{SEEN}]) > 0))"""
_INFO = "group by (cluster, pool, node, engine, model) (kvitals_requests_running)"


class RawCoverage:
    """What can be told of engines by their own pages."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._maps = [m for m in map(load_map, systems()) if m.kind == "engine" and not m.guest]
        self._pages = _pages(self._maps, knowledge.families, without=FACT)  # these are recorded
        self._told = {"kvitals_target_up", "kvitals_engine_info", OBJECTIVE, FACT}

    def record(self, options: Options) -> RecordingRules:
        """The recording rules of every signal that the pages tell."""
        groups: dict[str, list[dict[str, Any]]] = {ENGINES: list(self._engines(options))}
        left_out: dict[str, str] = {}
        for name in in_order(self._knowledge):
            expr = parse(definition(self._knowledge.signals[name], options))
            if why := self.why_not(expr):
                left_out[name] = why
                continue
            self._told.add(SIGNAL_PREFIX + name)
            rule = rule_of(name, str(self.rewrite(expr)))
            groups.setdefault(group_of(name, self._knowledge, options), []).append(rule)
        return RecordingRules(groups, left_out)

    def rewrite(self, expr: Expr) -> Expr:
        """An expression over families and recorded signals in raw names."""
        return self._pages.rewrite(expr)

    def why_not(self, expr: Expr) -> str:
        """Why an expression can have no value here; empty where it can."""
        for either in needed_metrics(expr):
            if not any(metric in self._told or self._pages.sources(metric) for metric in either):
                return f"{' or '.join(sorted(either))} needs the agent"
        return ""

    def _engines(self, options: Options) -> Iterator[dict[str, Any]]:
        """Which engines there are, of what kind, what they tell of their configuration, and their objectives."""
        yield {"record": "kvitals_target_up", "expr": str(self.rewrite(parse(_UP)))}
        for map_ in self._maps:
            about = {"system": map_.system, "kind": map_.kind}
            told = _pages([map_], self._knowledge.families).rewrite(parse(_INFO))
            yield {"record": "kvitals_engine_info", "labels": about, "expr": str(told)}
        facts = _pages(self._maps, self._knowledge.families).rewrite(Selector(FACT))
        yield {"record": FACT, "labels": {"source": "metrics page"}, "expr": str(facts)}
        for slo, seconds in (("ttft_p99", options.slo_ttft_seconds), ("itl_p99", options.slo_itl_seconds)):
            objective = f"0 * max by (cluster, pool, node, engine) (kvitals_target_up) + {seconds:g}"
            yield {"record": OBJECTIVE, "labels": {"slo": slo, "source": "recording rule"}, "expr": objective}


def _pages(maps: Sequence[EngineMap], families: Mapping[str, Family], without: str = "") -> Pages:
    """The dialect of a server that has every name that the maps know, less those of one family."""
    names = {
        prefix + metric.raw + part
        for map_ in maps
        for metric in map_.metrics
        if metric.family != without
        for prefix in (("",) if metric.bare or map_.full_names else map_.recognise.prefixes)
        for part in (HISTOGRAM_PARTS if families[metric.family].type == "histogram" else ("",))
    }
    return Pages(frozenset(names), maps, None, {})
